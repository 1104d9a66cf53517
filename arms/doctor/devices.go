package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// loop devices: every image comes through one.
func loop(_ context.Context, h *Host) []bench.HostFinding {
	return h.device("loop", "/dev/loop-control", h.Loop, Lack, "no image can be mounted",
		"load the loop module (modprobe loop), and give a container its devices")
}

// fuse: one of three ways to show an image.
func fuse(_ context.Context, h *Host) []bench.HostFinding {
	return h.device("fuse", "/dev/fuse", h.Fuse, Warn, `attach: "fuse" cannot be used`,
		`load the fuse module (modprobe fuse), and give a container its device; attach: "raw" needs none`)
}

func (h *Host) device(subject, node string, try func(dir string) error, severity, so, remedy string) []bench.HostFinding {
	there, err := h.exists(node)
	if err != nil {
		return unread(unlearnt(severity), subject, err)
	}
	if !there {
		return one(severity, subject, "there is no "+node+": "+so, remedy)
	}
	dir, err := h.nearest()
	if err != nil {
		return unread(unlearnt(severity), subject, err)
	}
	if err := try(dir); err != nil {
		return one(severity, subject, fmt.Sprintf("%s is there and does not work: %v: %s", node, err, so), remedy)
	}
	return fine(subject, "tried and works")
}

// unlearnt is how bad it is not to know what would be severity if it were missing.
func unlearnt(severity string) string {
	if severity == Lack {
		return Unknown
	}
	return Warn
}

// nbd: one of three ways to show an image.
func nbd(_ context.Context, h *Host) []bench.HostFinding {
	const remedy = `load the module (modprobe nbd nbds_max=16); attach: "raw" and "fuse" need none`
	there, err := h.exists("/dev/nbd0")
	switch {
	case err != nil:
		return unread(Warn, "nbd", err)
	case !there:
		return one(Warn, "nbd", `there is no /dev/nbd0: attach: "nbd" cannot be used`, remedy)
	}
	if _, err := h.Find("qemu-nbd", programDirs); err != nil {
		return one(Warn, "nbd", `there are nbd devices and no qemu-nbd: attach: "nbd" cannot be used`, "apt-get install qemu-utils")
	}
	return fine("nbd", "devices and qemu-nbd are there; not tried")
}

// kvm is for arms with virtual machines. This one needs none, so nothing here keeps it from running.
func kvm(_ context.Context, h *Host) []bench.HostFinding {
	const remedy = "nothing for this arm; an arm with virtual machines needs a host whose processor virtualises, with /dev/kvm given to this process"
	k, err := h.KVM()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return one(Warn, "kvm", "there is no /dev/kvm", remedy)
	case err != nil:
		return one(Warn, "kvm", "/dev/kvm is there and cannot be opened: "+err.Error(), remedy)
	case k.API != 12:
		return one(Warn, "kvm", fmt.Sprintf("/dev/kvm is there and is of API version %d, not 12: %v", k.API, k.Err), remedy)
	case !k.VM || !k.VCPU:
		return one(Warn, "kvm", fmt.Sprintf("/dev/kvm answers and makes no machine with a processor: %v", k.Err), remedy)
	}
	software, err := h.softwareKVM()
	switch {
	case err != nil:
		return unread(Warn, "kvm", err)
	case software != "":
		return one(Warn, "kvm", "/dev/kvm makes a machine, and it is software: "+software+"; its times say nothing about a host whose processor virtualises", remedy)
	}
	return fine("kvm", "makes a machine with a processor; that guests run in it is tried for the arm qemu")
}

// softwareKVM says how one knows that the processor does not virtualise; empty where it does, as far as one can see.
func (h *Host) softwareKVM() (string, error) {
	there, err := h.exists("/sys/module/kvm_pvm")
	if err != nil {
		return "", err
	}
	if there {
		return "the module is kvm_pvm", nil
	}
	if h.Machine != "x86_64" {
		return "", nil
	}
	text, err := h.read("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(name) != "flags" {
			continue
		}
		for _, flag := range strings.Fields(value) {
			if flag == "vmx" || flag == "svm" {
				return "", nil
			}
		}
		return "the processor has neither vmx nor svm", nil
	}
	return "", errors.New("/proc/cpuinfo has no flags")
}

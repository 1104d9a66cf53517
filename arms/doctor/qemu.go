package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// machines are the checks for the arm whose slots are virtual machines.
var machines = []check{
	{"root", false, root},
	{"confinement", false, confinement},
	{"cue-config", false, cueConfig},
	{"qemu", false, qemuTool},
	{"qemu-tools", false, qemuTools},
	{"qemu-accel", true, accelerators},
	{"tun", true, tun},
	{"cgroups", false, controllers},
	{"cgroup2", true, ownership},
	{"state", false, stateDirectory},
	{"space", false, space},
	{"loop", true, loop},
	{"hugepages", false, hugepages},
	{"ksm", false, ksm},
	{"leftovers", false, leftovers},
	{"strays", false, strays},
}

const qemuRemedy = "run scripts/setup, or apt-get install qemu-system-x86 qemu-utils qemu-system-common"

// qemuTool finds the QEMU that the arm would use.
func qemuTool(ctx context.Context, h *Host) []bench.HostFinding {
	tool, err := h.QEMU(ctx)
	switch {
	case err == nil:
		text := fmt.Sprintf("%s at %s, by %s", tool.Version, tool.Path, tool.Origin)
		if len(tool.Others) > 0 {
			text += "; not used: " + strings.Join(tool.Others, "; ")
		}
		return fine("qemu", "%s", text)
	case errors.Is(err, engine.ErrRefused):
		return one(Lack, "qemu", err.Error(), qemuRemedy)
	}
	return one(Unknown, "qemu", "cannot be asked: "+err.Error(), qemuRemedy)
}

// qemuTools are the programs beside it.
func qemuTools(_ context.Context, h *Host) []bench.HostFinding {
	var found []bench.HostFinding
	for _, name := range []string{"qemu-img", "qemu-storage-daemon"} {
		if _, err := h.Find(name, programDirs); err != nil {
			found = append(found, one(Lack, "qemu-tools", fmt.Sprintf("no %s: %v: no disk can be made, no kernel taken out of an image", name, err), qemuRemedy)...)
		}
	}
	if found == nil {
		found = fine("qemu-tools", "qemu-img and qemu-storage-daemon")
	}
	return found
}

// accelerators are tried, each with a machine whose guest has a few instructions: that
// QEMU has KVM built in, that /dev/kvm is there, and that QEMU starts with it, says little.
// Where an image's kernel is there it is tried too: kernels have hung where such guests ran.
func accelerators(ctx context.Context, h *Host) []bench.HostFinding {
	tool, err := h.QEMU(ctx)
	if err != nil {
		return one(Unknown, "qemu-accel", "no QEMU to ask", qemuRemedy)
	}
	var found []bench.HostFinding
	if have, known := h.Accelerator(ctx, tool, "tcg").Get(); !known || have != "tcg" {
		reason := h.Accelerator(ctx, tool, "tcg").Reason()
		return one(Lack, "qemu-accel", "QEMU does not start a machine at all: "+reason, qemuRemedy)
	}
	kvm := h.Accelerator(ctx, tool, "kvm")
	have, known := kvm.Get()
	if !known || have != "kvm" {
		why := kvm.Reason()
		if known {
			why = "QEMU falls back to " + have
		}
		return one(Warn, "qemu-accel", `accel: "kvm" is refused here: `+why,
			`for numbers that compare, use a host whose processor virtualises, with /dev/kvm given to this process; accel: "tcg" emulates`)
	}
	software, err := h.softwareKVM()
	switch {
	case err != nil:
		return unread(Warn, "qemu-accel", err)
	case software != "":
		return one(Warn, "qemu-accel", "QEMU runs with KVM, and it is software: "+software, "measure on a host whose processor virtualises")
	}
	switch tried, err := h.Kernel(ctx, tool, "kvm"); {
	case err != nil:
		return one(Warn, "qemu-accel", `accel: "kvm" does not serve here: a guest of a few instructions runs, and Linux does not start: `+err.Error(),
			`use a host on which Linux starts under KVM; accel: "tcg" emulates`)
	case !tried:
		return fine("qemu-accel", "QEMU runs machines with KVM, read back, and a guest of a few instructions ran to its end; a kernel is tried once an image was used with this arm")
	}
	return append(found, fine("qemu-accel", "QEMU runs machines with KVM, read back, and an image's kernel started")...)
}

// tun: a machine's network card hangs on such a device, in a namespace of its own.
func tun(_ context.Context, h *Host) []bench.HostFinding {
	const remedy = "load the tun module (modprobe tun), give a container /dev/net/tun, and this process CAP_NET_ADMIN and CAP_SYS_ADMIN"
	there, err := h.exists("/dev/net/tun")
	switch {
	case err != nil:
		return unread(Unknown, "tun", err)
	case !there:
		return one(Lack, "tun", "there is no /dev/net/tun: no machine can be reached", remedy)
	}
	if err := h.Tun(); err != nil {
		return one(Lack, "tun", "/dev/net/tun is there and does not work: "+err.Error(), remedy)
	}
	return fine("tun", "tried in a network namespace of its own and works")
}

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/oci"
	"github.com/drumsbench/drumsbench/arms/qemu"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
)

// Host is what the checks look at.
type Host struct {
	// FS is the host's root directory; /proc/self is this process.
	FS fs.FS
	// Env is the environment, as of os.Environ.
	Env []string
	// State is the absolute path of the state directory. It may not exist yet.
	State string
	// Machine as uname(2) names it.
	Machine string
	Probes
}

// Probes try things on the host. None leaves anything behind, and each says that
// something works only after it has seen the effect.
type Probes struct {
	// Tool finds the CRIU of the state directory, as an arm does.
	Tool func(ctx context.Context) (criu.Tool, error)
	// Runc finds the runc of the state directory, as the oci arm does.
	Runc func(ctx context.Context) (oci.Tool, error)
	// Systemd is the version of the systemd that answers.
	Systemd func(ctx context.Context) (string, error)
	// QEMU finds the host's QEMU, as the qemu arm does.
	QEMU func(ctx context.Context) (qemu.Tool, error)
	// Accelerator starts an empty machine with an accelerator and reads back which one runs it.
	Accelerator func(ctx context.Context, tool qemu.Tool, accel string) engine.Reading[string]
	// Kernel has the kernel of an image that was used run with an accelerator; tried is false where there is none.
	Kernel func(ctx context.Context, tool qemu.Tool, accel string) (tried bool, err error)
	// Tun makes a tap device in a network namespace of its own.
	Tun func() error
	// Check asks that CRIU whether this kernel lets it work.
	Check func(ctx context.Context, tool criu.Tool) error
	// Version is what a CRIU says of itself, without a look at the kernel.
	Version func(ctx context.Context, path string) (string, error)
	// Find returns the path of a program in one of the directories; fs.ErrNotExist without one.
	Find func(name string, dirs []string) (string, error)
	// Group makes a cgroup in the directory of one on v2, puts a process into it and kills it by cgroup.kill.
	Group func(ctx context.Context, dir string) error
	// PrivateGroups is Group below a cgroup2 mount of its own, for hosts that mount none. group is our own group's path.
	PrivateGroups func(ctx context.Context, group string) error
	// Overlay mounts one as a slot has it, with its upper layer below dir, writes to it and looks at the upper layer.
	Overlay func(dir string) error
	// Loop shows a file below dir as a read-only loop device and compares it.
	Loop func(dir string) error
	// Fuse mounts a file system and waits for the kernel's first request.
	Fuse func(dir string) error
	// KVM makes a virtual machine with a processor.
	KVM func() (KVM, error)
	// Write makes a file in a directory and removes it.
	Write func(dir string) error
	// Space is what a file system has left.
	Space func(dir string) (Space, error)
	// Runs reads every ledger below a state directory.
	Runs func(state string) ([]Run, error)
}

// KVM is what /dev/kvm answered.
type KVM struct {
	// API version; 12 is the only one there ever was.
	API int
	// VM and VCPU: one could be made.
	VM, VCPU bool
	// Err is the first refusal.
	Err error
}

// Space is what a file system has left for this process.
type Space struct {
	Bytes uint64
	// Files is how many more files it can hold; Unlimited where the file system has no such bound.
	Files     uint64
	Unlimited bool
}

// Run is a run directory below the state directory.
type Run struct {
	Dir string
	// Running: an engine or a sweep holds it.
	Running bool
	// Claimed are the paths of everything that it ever owned.
	Claimed []string
	// Owned is what its ledger says is not gone.
	Owned []record.Owned
	// Err says why the ledger cannot be read.
	Err error
}

// read is a file of the host without the space around it. path is absolute.
func (h *Host) read(name string) (string, error) {
	data, err := fs.ReadFile(h.FS, strings.TrimPrefix(path.Clean(name), "/"))
	return strings.TrimSpace(string(data)), err
}

// exists says whether there is something at an absolute path.
func (h *Host) exists(name string) (bool, error) {
	_, err := fs.Stat(h.FS, strings.TrimPrefix(path.Clean(name), "/"))
	if absent(err) {
		return false, nil
	}
	return err == nil, err
}

func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// status is a field of /proc/self/status.
func (h *Host) status(field string) (string, error) {
	text, err := h.read("/proc/self/status")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("/proc/self/status has no %s", field)
}

// uid is the effective one.
func (h *Host) uid() (int, error) {
	value, err := h.status("Uid")
	if err != nil {
		return 0, err
	}
	ids := strings.Fields(value)
	if len(ids) < 2 {
		return 0, fmt.Errorf("/proc/self/status has Uid %q", value)
	}
	return strconv.Atoi(ids[1])
}

// variable of the environment.
func (h *Host) variable(name string) string {
	for _, e := range h.Env {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}

// mounts of this process.
func (h *Host) mounts() ([]*mountinfo.Info, error) {
	text, err := h.read("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return mountinfo.GetMountsFromReader(strings.NewReader(text+"\n"), nil)
}

// mountOf is the mount that a path lies on.
func (h *Host) mountOf(name string) (*mountinfo.Info, error) {
	list, err := h.mounts()
	if err != nil {
		return nil, err
	}
	var best *mountinfo.Info
	for _, m := range list {
		if within(m.Mountpoint, name) && (best == nil || len(m.Mountpoint) >= len(best.Mountpoint)) {
			best = m // a later mount on the same point covers the earlier one
		}
	}
	if best == nil {
		return nil, fmt.Errorf("no mount holds %s", name)
	}
	return best, nil
}

// within says whether a path is a directory or lies below it.
func within(dir, name string) bool {
	return dir == "/" || name == dir || strings.HasPrefix(name, dir+"/")
}

// nearest is the state directory, or the nearest directory above it that exists.
func (h *Host) nearest() (string, error) {
	for dir := path.Clean(h.State); ; dir = path.Dir(dir) {
		there, err := h.exists(dir)
		if err != nil {
			return "", err
		}
		if there || dir == "/" {
			return dir, nil
		}
	}
}

// flags are the words of an option list.
func flags(options string) map[string]bool {
	set := map[string]bool{}
	for _, word := range strings.Split(options, ",") {
		set[word] = true
	}
	return set
}

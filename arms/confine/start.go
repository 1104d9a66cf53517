package confine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Start starts a slot's first process, confined. It is called on an OS thread of
// its own, in the slot's mount namespace, whose root is the slot's; cmd makes the
// slot's pid namespace. hostProc is the host's /proc, opened before.
//
// The slot's /proc can be mounted by a process of its pid namespace only, and that
// needs a capability which the slot must not have. So the process is stopped at the
// end of its execve, before the first instruction of the image's program, with
// that capability beside the kept ones: it is made to mount /proc, to be without
// protection keys and to give the capability up, as ptrace(2) allows. Should this process die meanwhile, so does it.
//
// On an error the process may be there, stopped; it ends with the thread.
func Start(cmd *exec.Cmd, hostProc *os.File) error {
	if err := narrow(); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	cmd.SysProcAttr.Ptrace = true
	if err := cmd.Start(); err != nil {
		return err
	}
	p, err := hold(cmd.Process.Pid, hostProc)
	if err != nil {
		return fmt.Errorf("hold first process: %w", err)
	}
	if err := p.mountProc(); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := cover(); err != nil {
		return err
	}
	if err := p.refuseKeys(); err != nil {
		return err
	}
	if err := p.capset(KeptMask()); err != nil {
		return fmt.Errorf("give up CAP_SYS_ADMIN: %w", err)
	}
	return p.release()
}

// mounting is what mounting takes.
const mounting = 1 << unix.CAP_SYS_ADMIN

// narrow takes from what the calling thread starts every capability that is not
// kept. One remains for the time until release: an inheritable one outlives the
// execve of a root user outside of the bounding set (capabilities(7)).
func narrow() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("ambient: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	data[0].Inheritable, data[1].Inheritable = mounting, 0
	// Before the bounding set: what is not in that cannot become inheritable.
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("inheritable: %w", err)
	}
	kept := KeptMask()
	for c := uint(0); ; c++ {
		have, err := prctlGet(unix.PR_CAPBSET_READ, c)
		if errors.Is(err, unix.EINVAL) {
			return nil // the kernel knows no more
		}
		if err != nil {
			return err
		}
		if have == 1 && kept&(1<<c) == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
				return fmt.Errorf("bounding set, capability %d: %w", c, err)
			}
		}
	}
}

func prctlGet(option int, arg uint) (int, error) {
	return unix.PrctlRetInt(option, uintptr(arg), 0, 0, 0)
}

// cover makes the places of ReadOnly read-only, by a bind of each over itself.
func cover() error {
	for _, p := range ReadOnly {
		err := unix.Mount(p.At, p.At, "", unix.MS_BIND, "")
		if errors.Is(err, unix.ENOENT) {
			continue // this kernel has no such thing
		}
		if err == nil {
			err = unix.Mount("", p.At, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		}
		if err != nil {
			return fmt.Errorf("make %s read-only: %w", p.At, err)
		}
	}
	return nil
}

// mountProc has the process mount its own /proc.
func (p *process) mountProc() error {
	// struct: "proc\0" at 0, "/proc\0" at 8.
	text := []byte("proc\x00\x00\x00\x00/proc\x00\x00\x00")
	return p.call(unix.SYS_MOUNT, text, func(at uintptr) [5]uintptr {
		return [5]uintptr{at, at + 8, at, unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, 0}
	})
}

// capset has the process keep these capabilities and none that are inherited.
func (p *process) capset(keep uint64) error {
	var arg struct {
		header unix.CapUserHeader
		data   [2]unix.CapUserData
	}
	arg.header.Version = unix.LINUX_CAPABILITY_VERSION_3
	for i := range arg.data {
		half := uint32(keep >> (32 * i))
		arg.data[i] = unix.CapUserData{Effective: half, Permitted: half}
	}
	text := unsafe.Slice((*byte)(unsafe.Pointer(&arg)), unsafe.Sizeof(arg))
	return p.call(unix.SYS_CAPSET, text, func(at uintptr) [5]uintptr {
		return [5]uintptr{at, at + unsafe.Sizeof(arg.header)}
	})
}

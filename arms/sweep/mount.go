package sweep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine/record"
)

// mountsAt lists what is mounted at a path of our mount namespace, the uppermost last.
func mountsAt(path string) ([]*mountinfo.Info, error) {
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != path, false })
}

// mount unmounts. It never does so lazily: what is in use is not gone.
func (s *sweeper) mount(ctx context.Context, o record.Owned) Thing {
	path := o.Claim.Path
	at, err := mountsAt(path)
	if err != nil {
		return failed(err, "")
	}
	if len(at) == 0 {
		return Thing{Outcome: Absent}
	}
	ours, err := showsRoot(o, at[len(at)-1])
	switch {
	case err != nil:
		return failed(err, "")
	case !ours && len(at) > 1:
		return Thing{Outcome: Failed, Reason: "something that is not the run's is mounted over it", Hint: "unmount that first: umount " + path}
	case !ours:
		return Thing{Outcome: Foreign, Reason: "another mount is at its place"}
	case s.DryRun:
		return Thing{Outcome: Planned}
	}
	err = poll(ctx, func() (bool, error) {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) { // a dying process may hold it
			return false, nil
		}
		if err != nil {
			return false, &os.PathError{Op: "umount", Path: path, Err: err}
		}
		return true, nil
	})
	if err != nil {
		return failed(fmt.Errorf("it is in use: %w", err), "fuser -m "+path+" names who uses it; something may be mounted below it")
	}
	after, err := mountsAt(path)
	if err != nil {
		return failed(err, "")
	}
	if len(after) != len(at)-1 {
		return Thing{Outcome: Failed, Reason: fmt.Sprintf("after the unmount %d mounts are at its place", len(after))}
	}
	return Thing{Outcome: Taken}
}

// showsRoot says whether the uppermost mount is the one that the ledger means.
// Without an identity its path, which bears the claim, decides.
func showsRoot(o record.Owned, top *mountinfo.Info) (bool, error) {
	if o.Kind == "export" { // its identity is that of its server
		return strings.HasPrefix(top.FSType, "fuse"), nil
	}
	id, known, err := bound(o)
	if err != nil || !known {
		return err == nil, err
	}
	var st unix.Stat_t
	err = unix.Lstat(o.Claim.Path, &st)
	switch {
	case err == nil:
		return id.dev == uint64(st.Dev) && id.ino == st.Ino, nil
	case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.EIO): // its server or its disk is gone
		return id.dev == unix.Mkdev(uint32(top.Major), uint32(top.Minor)), nil
	}
	return false, &os.PathError{Op: "lstat", Path: o.Claim.Path, Err: err}
}

// export takes away what a storage daemon showed; endProcesses has ended the daemon.
func (s *sweeper) export(ctx context.Context, o record.Owned) Thing {
	if end := s.ended[o.ID]; end.err != nil {
		return failed(end.err, "")
	}
	if device, ok := strings.CutPrefix(o.Claim.Path, "/dev/"); ok && strings.HasPrefix(device, "nbd") {
		return s.nbd(ctx, o, device)
	}
	t := s.mount(ctx, o)
	if t.Outcome == Absent && s.ended[o.ID].count > 0 {
		t.Outcome = Taken
	}
	return t
}

// nbd waits until the kernel has let go of a device whose server is dead. The
// kernel names the server's pid: another one is another owner's.
func (s *sweeper) nbd(ctx context.Context, o record.Owned, device string) Thing {
	server := func() (int64, error) {
		text, err := os.ReadFile("/sys/block/" + device + "/pid")
		if errors.Is(err, os.ErrNotExist) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	}
	pid, err := server()
	switch {
	case err != nil:
		return failed(err, "")
	case pid == 0 && s.ended[o.ID].count > 0:
		return Thing{Outcome: Taken}
	case pid == 0:
		return Thing{Outcome: Absent}
	case o.Identity == nil:
		return Thing{Outcome: Unknown, Reason: fmt.Sprintf("process %d serves the device, and the ledger does not say whether that is the run's", pid), Hint: "qemu-nbd --disconnect " + o.Claim.Path + " if nobody needs it"}
	case pid != o.Identity.Pid:
		return Thing{Outcome: Foreign, Reason: "another server has the device"}
	case s.DryRun:
		return Thing{Outcome: Planned}
	}
	err = poll(ctx, func() (bool, error) {
		now, err := server()
		return now != pid, err
	})
	if err != nil {
		return failed(err, "something has the device open: fuser "+o.Claim.Path)
	}
	return Thing{Outcome: Taken}
}

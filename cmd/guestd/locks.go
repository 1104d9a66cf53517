package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// heldLock is a lock with the descriptor that it was first seen on.
type heldLock struct {
	line   observe.FileLock
	path   string
	mapped bool
	pid    int
	fd     int
}

// readLocks lists the file locks of the guest's processes, sorted, with the
// meaning that package arms/locks gives them: a POSIX lock is its process's, all
// others are an open file description's, for which the lowest pid stands. Of a
// tree that runs it is true for no instant.
func readLocks() ([]bench.Lock, error) {
	list, err := pids()
	if err != nil {
		return nil, err
	}
	var found []heldLock
	for _, pid := range list {
		own, err := locksOf(pid, list)
		if ended(err) && pid != 1 {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read locks of process %d: %w", pid, err)
		}
		for _, l := range own {
			if found, err = mergeLock(found, l); err != nil {
				return nil, err
			}
		}
	}
	out := []bench.Lock{}
	slices.SortFunc(found, func(a, b heldLock) int {
		return cmp.Or(cmp.Compare(a.pid, b.pid), cmp.Compare(a.path, b.path), cmp.Compare(a.line.Type, b.line.Type),
			cmp.Compare(a.line.Start, b.line.Start), cmp.Compare(a.line.End, b.line.End), cmp.Compare(a.line.Mode, b.line.Mode))
	})
	for _, l := range found {
		out = append(out, bench.Lock{
			Path: l.path, Pid: int64(l.pid), Type: l.line.Type, Mode: l.line.Mode, Mapped: l.mapped,
			Start: number(l.line.Start), End: number(l.line.End),
		})
	}
	return out, nil
}

func locksOf(pid int, all []int) ([]heldLock, error) {
	base := "/proc/" + strconv.Itoa(pid)
	names, err := readNames(base + "/fd")
	if err != nil {
		return nil, err
	}
	var own []heldLock
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		info, err := observe.ReadFDInfo(os.DirFS("/proc"), pid, fd)
		if ended(err) {
			continue // closed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if len(info.Locks) == 0 {
			continue
		}
		path, err := os.Readlink(base + "/fd/" + name)
		if ended(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, l := range info.Locks {
			if l.Waiting {
				continue
			}
			// A POSIX lock that bears another pid is that of a process which shares its
			// descriptors with this one; that process is listed itself while it lives.
			if l.Type == observe.LockPOSIX && l.Pid != pid && slices.Contains(all, l.Pid) {
				continue
			}
			own = append(own, heldLock{line: l, path: path, pid: pid, fd: fd})
		}
	}
	if len(own) == 0 {
		return nil, nil
	}
	maps, err := os.ReadFile(base + "/maps")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(maps)) {
		// Range, permissions, offset, device, inode, path (proc_pid_maps(5)).
		f := strings.Fields(line)
		if len(f) < 6 || f[4] == "0" {
			continue
		}
		for i := range own {
			own[i].mapped = own[i].mapped || f[4] == strconv.FormatUint(own[i].line.Ino, 10) && f[3] == device(own[i].line.Dev) ||
				strings.HasSuffix(strings.TrimSuffix(line, "\n"), " "+own[i].path)
		}
	}
	return own, nil
}

func device(dev uint64) string { return fmt.Sprintf("%02x:%02x", unix.Major(dev), unix.Minor(dev)) }

func readNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// mergeLock adds a lock, or sees that it is one of those that were found.
func mergeLock(found []heldLock, h heldLock) ([]heldLock, error) {
	for i := range found {
		f := &found[i]
		a, b := f.line, h.line
		a.ID, b.ID = 0, 0
		if a != b {
			continue
		}
		same := f.pid == h.pid
		if h.line.Type != observe.LockPOSIX {
			var err error
			if same, err = sameDescription(*f, h); err != nil {
				return nil, err
			}
		}
		if same {
			f.mapped = f.mapped || h.mapped
			return found, nil
		}
	}
	return append(found, h), nil
}

// sameDescription asks whether two descriptors are of one open file description (kcmp(2), KCMP_FILE).
func sameDescription(a, b heldLock) (bool, error) {
	const file = 0
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a.pid), uintptr(b.pid), file, uintptr(a.fd), uintptr(b.fd), 0)
	switch errno {
	case 0:
		return r == 0, nil
	case unix.EBADF, unix.ESRCH:
		return false, nil // closed meanwhile
	}
	return false, fmt.Errorf("compare descriptors of processes %d and %d: %w", a.pid, b.pid, errno)
}

package observe

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrFormat is wrapped by every parser's error: the kernel's text is not as
// documented, so nothing was learnt from it.
var ErrFormat = errors.New("kernel text not understood")

// maxLine bounds a line of kernel text; the longest that are printed hold a path.
const maxLine = 1 << 20

// The lock types that the kernel prints for locks that processes take.
const (
	LockPOSIX = "POSIX"
	LockOFD   = "OFDLCK"
	LockFlock = "FLOCK"
	LockLease = "LEASE"
)

// FileLock is one lock as /proc/locks and the `lock:` lines of
// /proc/PID/fdinfo/N print it (lock_get_status in fs/locks.c).
type FileLock struct {
	// ID numbers the lock within one reading. Those who wait for a lock carry its number.
	ID int64
	// Waiting is true for a request that is blocked by the lock of the same ID.
	Waiting bool
	// Type is one of the Lock constants, or what else the kernel prints (DELEG, ACCESS, LAYOUT).
	Type string
	// State is ADVISORY for locks, and ACTIVE, BREAKING or BREAKER for leases.
	State string
	// Mode is READ or WRITE; UNLCK for a lease that is being given up.
	Mode string
	// Pid is the thread group that took the lock, in the pid namespace of the
	// procfs mount; it may have ended since. -1 for an OFDLCK, and 0 for a
	// process that the namespace does not hold.
	Pid int
	// Dev (as unix.Mkdev) and Ino are those of the kernel's inode. On overlayfs
	// they may differ from what stat says; they equal those of /proc/PID/maps.
	Dev, Ino uint64
	// Start and End are the first and the last byte; End is -1 for the end of the file.
	Start, End int64
}

// ParseLocks reads the text of /proc/locks.
func ParseLocks(r io.Reader) ([]FileLock, error) {
	var locks []FileLock
	err := eachLine(r, func(line string) error {
		if strings.TrimSpace(line) == "" {
			return nil
		}
		l, err := parseLock(line)
		if err != nil {
			return fmt.Errorf("parse locks: %w", err)
		}
		locks = append(locks, l)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return locks, nil
}

// ReadLocks reads the lock table of a procfs.
func ReadLocks(proc fs.FS) ([]FileLock, error) {
	f, err := proc.Open("locks")
	if err != nil {
		return nil, fmt.Errorf("read locks: %w", err)
	}
	defer f.Close()
	return ParseLocks(f)
}

// parseLock reads one line:
//
//	1: POSIX  ADVISORY  WRITE 812 00:2d:41 1073741826 1073742335
//	1: -> POSIX  ADVISORY  READ 813 00:2d:41 0 EOF
func parseLock(line string) (FileLock, error) {
	bad := func(what string) (FileLock, error) {
		return FileLock{}, fmt.Errorf("%w: lock line %q: %s", ErrFormat, line, what)
	}
	f := strings.Fields(line)
	if len(f) < 2 || !strings.HasSuffix(f[0], ":") {
		return bad("no number")
	}
	var l FileLock
	var err error
	if l.ID, err = strconv.ParseInt(f[0][:len(f[0])-1], 10, 64); err != nil {
		return bad("number")
	}
	f = f[1:]
	if f[0] == "->" {
		l.Waiting = true
		f = f[1:]
	}
	if len(f) != 7 {
		return bad("not seven fields")
	}
	l.Type, l.State, l.Mode = f[0], f[1], f[2]
	switch l.Mode {
	case "READ", "WRITE", "UNLCK":
	default:
		return bad("mode")
	}
	if l.Pid, err = strconv.Atoi(f[3]); err != nil || l.Pid < -1 {
		return bad("pid")
	}
	if f[4] != "<none>:0" {
		dev := strings.Split(f[4], ":")
		if len(dev) != 3 {
			return bad("device and inode")
		}
		major, err1 := strconv.ParseUint(dev[0], 16, 32)
		minor, err2 := strconv.ParseUint(dev[1], 16, 32)
		ino, err3 := strconv.ParseUint(dev[2], 10, 64)
		if err1 != nil || err2 != nil || err3 != nil {
			return bad("device and inode")
		}
		l.Dev, l.Ino = unix.Mkdev(uint32(major), uint32(minor)), ino
	}
	if l.Start, err = strconv.ParseInt(f[5], 10, 64); err != nil || l.Start < 0 {
		return bad("start")
	}
	if f[6] == "EOF" {
		l.End = -1
	} else if l.End, err = strconv.ParseInt(f[6], 10, 64); err != nil || l.End < l.Start {
		return bad("end")
	}
	return l, nil
}

// FDInfo is /proc/PID/fdinfo/N.
type FDInfo struct {
	Pos int64
	// Flags as open(2) has them; includes O_CLOEXEC.
	Flags int
	// MntID is the mount's number in mountinfo; kernel-internal mounts (pipes, sockets, memfds) are in no mountinfo.
	MntID int
	// Ino is 0 on kernels before 5.14, which do not print it.
	Ino uint64
	// Locks that were taken through this open file description, POSIX locks only
	// if they are the process's own (__show_fd_locks in fs/locks.c). One lock
	// shows on every duplicate of the descriptor.
	Locks []FileLock
	// Fields are the other lines, such as "eventfd-id", "tty-index" and "Pid" (of a pidfd), by their key; the first line of a key wins.
	Fields map[string]string
}

// ParseFDInfo reads the text of /proc/PID/fdinfo/N.
func ParseFDInfo(r io.Reader) (FDInfo, error) {
	var info FDInfo
	var seen int
	err := eachLine(r, func(line string) error {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil // continuation text of some file type
		}
		value = strings.TrimSpace(value)
		var err error
		switch key {
		case "pos":
			info.Pos, err = strconv.ParseInt(value, 10, 64)
			seen++
		case "flags":
			var flags uint64
			flags, err = strconv.ParseUint(value, 8, 32)
			info.Flags = int(flags)
			seen++
		case "mnt_id":
			info.MntID, err = strconv.Atoi(value)
			seen++
		case "ino":
			info.Ino, err = strconv.ParseUint(value, 10, 64)
		case "lock":
			var l FileLock
			l, err = parseLock(value)
			info.Locks = append(info.Locks, l)
		default:
			if info.Fields == nil {
				info.Fields = map[string]string{}
			}
			if _, ok := info.Fields[key]; !ok {
				info.Fields[key] = value
			}
		}
		if err != nil {
			return fmt.Errorf("parse fdinfo: %w: line %q", errors.Join(ErrFormat, err), line)
		}
		return nil
	})
	if err != nil {
		return FDInfo{}, err
	}
	if seen < 3 {
		return FDInfo{}, fmt.Errorf("parse fdinfo: %w: pos, flags or mnt_id is missing", ErrFormat)
	}
	return info, nil
}

// ReadFDInfo reads the fdinfo of a descriptor from a procfs.
func ReadFDInfo(proc fs.FS, pid, fd int) (FDInfo, error) {
	f, err := proc.Open(fmt.Sprintf("%d/fdinfo/%d", pid, fd))
	if err != nil {
		return FDInfo{}, fmt.Errorf("read fdinfo: %w", err)
	}
	defer f.Close()
	return ParseFDInfo(f)
}

// eachLine calls fn for each line of r, without its line feed.
func eachLine(r io.Reader, fn func(string) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	for s.Scan() {
		if err := fn(s.Text()); err != nil {
			return err
		}
	}
	return s.Err()
}

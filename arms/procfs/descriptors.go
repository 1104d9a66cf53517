package procfs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/observe"
)

// Descriptor is one open file descriptor of a process.
type Descriptor struct {
	// Pid is the host's number of the process, Inner the slot's.
	Pid, Inner, FD int
	// Link is what the descriptor's link says: a path of the slot, with
	// " (deleted)" behind it if it was unlinked, or "kind:[inode]".
	Link string
	Info observe.FDInfo
}

// Descriptors lists the open descriptors of a process by number, with their
// locks. Those closed meanwhile are left out; engine.ErrDead if the process is gone.
// Threads that unshared their descriptors from the process are not looked at: CRIU refuses them.
func Descriptors(t Task) ([]Descriptor, error) {
	if t.Zombie() {
		return nil, nil
	}
	if t.Status.State == 'Z' {
		return nil, fmt.Errorf("list descriptors of pid %d: %w: its first thread has exited and others live on", t.Pid, engine.ErrUnknown)
	}
	dir := filepath.Join(root, strconv.Itoa(t.Pid))
	fds, err := numbers(filepath.Join(dir, "fd"))
	if err != nil {
		return nil, fmt.Errorf("list descriptors: %w", gone(t.Pid, err))
	}
	out := make([]Descriptor, 0, len(fds))
	for _, fd := range fds {
		n := strconv.Itoa(fd)
		text, err := os.ReadFile(dir + "/fdinfo/" + n)
		if vanished(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read descriptor %d of pid %d: %w", fd, t.Pid, err)
		}
		info, err := observe.ParseFDInfo(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("read descriptor %d of pid %d: %w", fd, t.Pid, err)
		}
		link, err := os.Readlink(dir + "/fd/" + n)
		if vanished(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read descriptor %d of pid %d: %w", fd, t.Pid, err)
		}
		out = append(out, Descriptor{Pid: t.Pid, Inner: t.Inner, FD: fd, Link: link, Info: info})
	}
	return out, nil
}

// Stat is what statx says of the file behind a magic link of procfs.
type Stat struct {
	Dev, Ino, Rdev uint64
	Mode           uint32
	// Mount is the mount's number in mountinfo.
	Mount uint64
}

// Stat reads the open file itself, from the attributes that the kernel has at
// hand: a FUSE server inside a stopped slot would never answer.
func (d Descriptor) Stat() (Stat, error) {
	return statLink(filepath.Join(root, strconv.Itoa(d.Pid), "fd", strconv.Itoa(d.FD)))
}

func statLink(path string) (Stat, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_INO|unix.STATX_MNT_ID, &st)
	if err != nil {
		return Stat{}, fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return Stat{}, fmt.Errorf("stat %s: the kernel gives no mount id (before 5.8)", path)
	}
	return Stat{
		Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino, Rdev: unix.Mkdev(st.Rdev_major, st.Rdev_minor),
		Mode: uint32(st.Mode), Mount: st.Mnt_id,
	}, nil
}

// SameFile says whether two descriptors are one open file description (kcmp(2), KCMP_FILE).
func SameFile(pid1, fd1, pid2, fd2 int) (bool, error) {
	const kcmpFile = 0
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid1), uintptr(pid2), kcmpFile, uintptr(fd1), uintptr(fd2), 0)
	if errno != 0 {
		return false, fmt.Errorf("compare descriptor %d of pid %d with %d of pid %d: %w", fd1, pid1, fd2, pid2, errno)
	}
	return r == 0, nil
}

package procfs

import (
	"bytes"
	"errors"
	"fmt"
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
	return DescriptorsOf(t, func(string) bool { return true })
}

// DescriptorsOf is Descriptors of those alone whose link is meant.
func DescriptorsOf(t Task, meant func(link string) bool) ([]Descriptor, error) {
	if t.Zombie() {
		return nil, nil
	}
	if t.Status.State == 'Z' {
		return nil, fmt.Errorf("list descriptors of pid %d: %w: its first thread has exited and others live on", t.Pid, engine.ErrUnknown)
	}
	fail := func(err error) ([]Descriptor, error) {
		return nil, fmt.Errorf("list descriptors: %w", gone(t.Pid, err))
	}
	dir := filepath.Join(root, strconv.Itoa(t.Pid))
	fds, err := numbers(filepath.Join(dir, "fd"))
	if err != nil {
		return fail(err)
	}
	// A slot has a thousand descriptors, and each reset looks at them twice: the folders are held, and nothing is
	// done for one but to read its link and its file.
	links, err := unix.Open(filepath.Join(dir, "fd"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(links)
	infos, err := unix.Open(filepath.Join(dir, "fdinfo"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(infos)
	out, buf := make([]Descriptor, 0, len(fds)), make([]byte, 1<<12)
	for _, fd := range fds {
		n := strconv.Itoa(fd)
		size, err := unix.Readlinkat(links, n, buf)
		link := string(buf[:max(size, 0)])
		var info observe.FDInfo
		if err == nil && meant(link) {
			info, err = readInfo(infos, n, &buf)
		} else if err == nil {
			continue
		}
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

func readInfo(dir int, name string, buf *[]byte) (observe.FDInfo, error) {
	text, err := readAt(dir, name, buf)
	if err != nil {
		return observe.FDInfo{}, err
	}
	return observe.ParseFDInfo(bytes.NewReader(text))
}

// readAt is all of a file below an open folder; it lies in buf, which grows to what that takes.
func readAt(dir int, name string, buf *[]byte) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	text := 0
	for {
		if text == len(*buf) {
			*buf = append(*buf, make([]byte, len(*buf))...)
		}
		n, err := unix.Read(fd, (*buf)[text:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		case n == 0:
			return (*buf)[:text], nil
		}
		text += n
	}
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

package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// CopyUp makes the kernel copy files of a mounted overlay into its upper
// directory, by opening each for writing without writing. That has to be done
// before a restore with every file that a task holds open for writing or maps
// shared: else one task keeps the lower inode while another one writes to a copy.
//
// merged is the overlay's root, upper its upper directory. paths are absolute
// paths of the slot; each is resolved with merged as the root, and nothing in it
// leads outside: not "..", not a symbolic link, not a mount on top. Two names of
// one inode stay one inode. A file counts only once it was seen in upper. Open
// fifos, sockets and devices do not refer to a layer's inode; they are left alone.
// A missing path or another kind of file is ErrRefused. Idempotent.
func CopyUp(merged, upper string, paths []string) error {
	root, err := unix.Open(merged, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &engine.Error{Op: "copy up", Err: fmt.Errorf("open %s: %w", merged, err)}
	}
	defer unix.Close(root)
	top, err := unix.Open(upper, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &engine.Error{Op: "copy up", Err: fmt.Errorf("open %s: %w", upper, err)}
	}
	defer unix.Close(top)
	for _, p := range paths {
		if err := copyUp(root, top, p); err != nil {
			return &engine.Error{Op: "copy up", Err: fmt.Errorf("%s: %w", p, err)}
		}
	}
	return nil
}

func copyUp(root, top int, path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%w: not an absolute path", engine.ErrRefused)
	}
	fd, err := openIn(root, path)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK:
		return nil
	default:
		return fmt.Errorf("%w: not a file that can be held open for writing", engine.ErrRefused)
	}
	real, err := resolved(root, fd)
	if err != nil {
		return err
	}
	w, err := unix.Open(selfFD(fd), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open for writing: %w", err)
	}
	if err := unix.Close(w); err != nil {
		return err
	}
	return inUpper(top, real, st.Size)
}

// openIn opens a slot path with root as its root. The kernel refuses to leave
// it; on a race with a rename it says EAGAIN and is asked again.
func openIn(root int, path string) (int, error) {
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for range 128 {
		fd, err := unix.Openat2(root, path, how)
		switch {
		case err == nil:
			return fd, nil
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
			return -1, fmt.Errorf("%w: %w", engine.ErrRefused, err)
		default:
			return -1, err
		}
	}
	return -1, fmt.Errorf("%w: %w", engine.ErrUnknown, unix.EAGAIN)
}

// resolved is the path of fd below root, links followed.
func resolved(root, fd int) (string, error) {
	base, err := os.Readlink(selfFD(root))
	if err != nil {
		return "", err
	}
	full, err := os.Readlink(selfFD(fd))
	if err != nil {
		return "", err
	}
	if base == "/" {
		return full, nil
	}
	rel, ok := strings.CutPrefix(full, base+"/")
	if !ok {
		return "", fmt.Errorf("%w: resolves to %s, outside of %s", engine.ErrRefused, full, base)
	}
	return "/" + rel, nil
}

// inUpper is the read-back: the upper directory holds the file, whole.
func inUpper(top int, path string, size int64) error {
	fd, err := unix.Openat2(top, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return fmt.Errorf("%w: not in the upper directory after it was opened for writing: %w", engine.ErrUnknown, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != size {
		return fmt.Errorf("%w: the upper directory holds mode %o and %d bytes instead of a file of %d", engine.ErrUnknown, st.Mode, st.Size, size)
	}
	return nil
}

func selfFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

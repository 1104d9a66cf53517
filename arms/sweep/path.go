package sweep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
)

// inside: below the directory that the run's own part of a path lies in no
// symbolic link is followed and no mount entered.
const inside = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// path takes a file or a directory away, with everything that is in it.
func (s *sweeper) path(ctx context.Context, o record.Owned) Thing {
	parent, name, err := s.claim.openParent(o.Claim.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Thing{Outcome: Absent}
	case err != nil:
		return failed(err, "a mount or a symbolic link lies on the way that is not the run's")
	}
	defer parent.Close()
	covered, err := isMountRoot(parent, name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return Thing{Outcome: Absent}
	case err != nil:
		return failed(err, "")
	case covered && s.DryRun:
		return Thing{Outcome: Planned, Reason: "after what is mounted on it"}
	case covered: // what is below it cannot be seen
		return Thing{Outcome: Failed, Reason: "something is mounted on it", Hint: hintFor(unix.EBUSY)}
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(parent.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return failed(err, "")
	}
	if other, err := s.another(o, &st); err != nil {
		return failed(err, "")
	} else if other != "" {
		return Thing{Outcome: Foreign, Reason: other}
	}
	if s.DryRun {
		return Thing{Outcome: Planned}
	}
	if o.Kind == "directory" {
		err = removeDirectory(ctx, parent, name)
	} else {
		err = unix.Unlinkat(int(parent.Fd()), name, 0)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed(err, hintFor(err))
	}
	if err := unix.Fstatat(int(parent.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); !errors.Is(err, unix.ENOENT) {
		return failed(fmt.Errorf("it is still there: %v", err), "")
	}
	return Thing{Outcome: Taken}
}

// isMountRoot says whether something is mounted on a name.
func isMountRoot(parent *os.File, name string) (bool, error) {
	var stx unix.Statx_t
	err := unix.Statx(int(parent.Fd()), name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, 0, &stx)
	if errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.EIO) { // a mount whose server is gone
		return true, nil
	}
	if err == nil && stx.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		err = fmt.Errorf("%w: the kernel does not say what is a mount (before Linux 5.8)", engine.ErrUnknown)
	}
	return stx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, err
}

func hintFor(err error) string {
	switch {
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EBUSY):
		return "something that is not the run's is mounted on it or below it: unmount that first"
	case errors.Is(err, unix.EPERM):
		return "a file may be immutable: lsattr shows it, chattr -i undoes it"
	}
	return ""
}

// another says why what is there is not what the ledger means; empty if it is.
func (s *sweeper) another(o record.Owned, st *unix.Stat_t) (string, error) {
	want, kind := uint32(unix.S_IFREG), "file"
	if o.Kind == "directory" {
		want, kind = unix.S_IFDIR, "directory"
	}
	if st.Mode&unix.S_IFMT != want {
		return "what is there is no " + kind, nil
	}
	id, known, err := bound(o)
	if err != nil || !known {
		return "", err // its name is the run's random claim, or lies below it
	}
	// Device numbers may be others after a reboot; the claim in the path stands for them then.
	if id.ino != st.Ino || o.Boot == s.boot && id.dev != uint64(st.Dev) {
		return "another " + kind + " has its name", nil
	}
	return "", nil
}

// openParent opens the directory that holds the last component of a path of the run's.
func (c claim) openParent(path string) (parent *os.File, name string, err error) {
	above, own, ok := c.split(path)
	if !ok {
		return nil, "", fmt.Errorf("%w: %s is not the run's", engine.ErrRefused, path)
	}
	fd, err := unix.Open(above, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", &os.PathError{Op: "open", Path: above, Err: err}
	}
	top := os.NewFile(uintptr(fd), above)
	dir := filepath.Dir(own)
	if dir == "." {
		return top, own, nil
	}
	defer top.Close()
	fd, err = unix.Openat2(fd, dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: inside})
	if err != nil {
		return nil, "", &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Dir(path)), filepath.Base(path), nil
}

// removeDirectory removes a directory and what is in it. It goes by descriptors:
// a name that becomes a symbolic link or a mount point meanwhile is not followed.
func removeDirectory(ctx context.Context, parent *os.File, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	path := filepath.Join(parent.Name(), name)
	fd, err := unix.Openat2(int(parent.Fd()), name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: inside})
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			err = removeDirectory(ctx, dir, e.Name())
		} else if err = unix.Unlinkat(fd, e.Name(), 0); err != nil {
			err = &os.PathError{Op: "unlink", Path: filepath.Join(path, e.Name()), Err: err}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR); err != nil {
		return &os.PathError{Op: "rmdir", Path: path, Err: err}
	}
	return nil
}

package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"github.com/pkg/xattr"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// openSealed opens a file of a checkpoint. A link is not followed, and a FIFO does not hold it up.
func openSealed(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func identify(path string) (bench.SealedFile, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return bench.SealedFile{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return bench.SealedFile{}, errors.New("is not a regular file")
	}
	n := func(v int64) bench.Int64 { return bench.Int64(strconv.FormatInt(v, 10)) }
	return bench.SealedFile{
		Size: n(st.Size), Dev: bench.Int64(strconv.FormatUint(uint64(st.Dev), 10)), Ino: bench.Int64(strconv.FormatUint(st.Ino, 10)),
		Mtime: n(st.Mtim.Nano()), Ctime: n(st.Ctim.Nano()),
	}, nil
}

// shape is what there is to an entry besides content and times.
func shape(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "", &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	text := fmt.Sprintf("%06o %d:%d", st.Mode, st.Uid, st.Gid)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		to, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf(" to %q", to)
	case unix.S_IFCHR, unix.S_IFBLK:
		text += fmt.Sprintf(" device %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	names, err := xattr.LList(path)
	if err != nil {
		return "", err
	}
	slices.Sort(names)
	for _, name := range names {
		value, err := xattr.LGet(path, name)
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf(" %s=%q", name, value)
	}
	return text, nil
}

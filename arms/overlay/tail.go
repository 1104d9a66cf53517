package overlay

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// Tail returns the last max bytes of a regular file of a slot's layer. The layer
// is the guest's: no link on the way is followed, no mount is crossed, and nothing
// but a regular file is opened for reading (a FIFO would wait for a writer).
// ErrRefused for what is none, fs.ErrNotExist where there is nothing.
func Tail(layer, path string, max int64) ([]byte, error) {
	const op = "read file of layer"
	top, err := unix.Open(layer, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &engine.Error{Op: op, Err: &os.PathError{Op: "open", Path: layer, Err: err}}
	}
	defer unix.Close(top)
	// O_PATH first: opening a device has effects of its own.
	fd, err := unix.Openat2(top, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	switch err {
	case nil:
	case unix.ELOOP, unix.EXDEV, unix.ENOTDIR:
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: %s: %w", engine.ErrRefused, path, err)}
	default:
		return nil, &engine.Error{Op: op, Err: &os.PathError{Op: "open", Path: path, Err: err}}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: %s is not a regular file", engine.ErrRefused, path)}
	}
	f, err := os.Open(selfFD(fd)) // the file that was looked at, whatever has its name now
	if err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, st.Size-min(st.Size, max), max))
	if err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	return b, nil
}

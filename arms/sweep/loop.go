package sweep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
)

// loopDevice is a loop device that shows a file.
type loopDevice struct {
	path string
	info unix.LoopInfo64
}

// claimed is the name that whoever made the device left with it.
func (d loopDevice) claimed() string { return unix.ByteSliceToString(d.info.File_name[:]) }

// loop waits until the kernel has cleared the run's loop device. The engine's
// devices clear themselves with their last user; the mount on it was such, and
// comes before it in a sweep.
func (s *sweeper) loop(ctx context.Context, o record.Owned) Thing {
	ours, other, err := s.findLoop(o)
	switch {
	case err != nil:
		return failed(err, "")
	case ours == nil && other:
		return Thing{Outcome: Foreign, Reason: "the device is another owner's by now"}
	case ours == nil:
		return Thing{Outcome: Absent}
	case s.DryRun:
		return Thing{Outcome: Planned, Reason: ours.path}
	}
	err = poll(ctx, func() (bool, error) {
		if err := clearLoop(ours); err != nil {
			return false, err
		}
		ours, _, err = s.findLoop(o)
		return ours == nil, err
	})
	if err != nil && ours != nil {
		return failed(fmt.Errorf("%s is in use: %w", ours.path, err), "a mount namespace of somebody else may hold its mount: grep -l "+filepath.Base(ours.path)+" /proc/*/mountinfo")
	}
	if err != nil {
		return failed(err, "")
	}
	return Thing{Outcome: Taken}
}

// clearLoop detaches a device that bears the run's claim. One that is still in use
// the kernel detaches once it is not (loop_clr_fd).
func clearLoop(d *loopDevice) error {
	f, err := os.OpenFile(d.path, os.O_RDONLY, 0)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var info *unix.LoopInfo64
	// Looked at again through the descriptor that is used.
	if info, err = unix.IoctlLoopGetStatus64(int(f.Fd())); err == nil && unix.ByteSliceToString(info.File_name[:]) == d.claimed() {
		_, err = unix.IoctlRetInt(int(f.Fd()), unix.LOOP_CLR_FD)
	}
	if errors.Is(err, unix.ENXIO) {
		return nil
	}
	return err
}

// findLoop looks for the device that bears the run's claim. other says that the
// device of the ledger's identity shows something of another owner's.
func (s *sweeper) findLoop(o record.Owned) (ours *loopDevice, other bool, err error) {
	devices, err := loopDevices(o.Claim.Backing)
	if err != nil {
		return nil, false, err
	}
	for _, d := range devices {
		if d.claimed() == o.Claim.Path {
			return &d, false, nil
		}
		other = other || o.Identity != nil && d.path == o.Identity.Loop
	}
	return nil, other, nil
}

// loopDevices lists the loop devices that show a file of this path.
func loopDevices(backing string) ([]loopDevice, error) {
	if _, err := os.Stat("/sys/block"); err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrUnknown, err)
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var devices []loopDevice
	for _, f := range files {
		text, err := os.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, err
		}
		// The kernel appends this where the file was removed since.
		if shown := strings.TrimSuffix(string(text), "\n"); shown != backing && shown != backing+" (deleted)" {
			continue
		}
		path := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(f)))
		d, err := readLoop(path)
		if err != nil {
			return nil, err
		}
		if d != nil {
			devices = append(devices, *d)
		}
	}
	return devices, nil
}

// readLoop returns nil for a device that shows nothing any more.
func readLoop(path string) (*loopDevice, error) {
	f, err := os.OpenFile(path, os.O_RDONLY, 0)
	if errors.Is(err, unix.ENXIO) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrUnknown, err)
	}
	defer f.Close()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if errors.Is(err, unix.ENXIO) {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "read loop device", Path: path, Err: err}
	}
	return &loopDevice{path: path, info: *info}, nil
}

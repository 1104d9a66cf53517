package sweep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
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
		if err := s.clear(ours); err != nil {
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

// clear detaches a device that bears the run's claim. One that is still in use
// the kernel detaches once it is not (loop_clr_fd).
func (s *sweeper) clear(d *loopDevice) error {
	if d.claimed() != "drums-"+s.claim.id {
		return nil // found by its number and its file: what it was made for, nobody says
	}
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

// findLoop looks for the run's loop device. other says that the device of the
// ledger's identity shows something of another owner's.
func (s *sweeper) findLoop(o record.Owned) (ours *loopDevice, other bool, err error) {
	want, known, err := bound(o)
	if err != nil {
		return nil, false, err
	}
	devices, err := loopDevices(o.Claim.Backing)
	if err != nil {
		return nil, false, err
	}
	for _, d := range devices {
		if o.Claim.Path != "" {
			if d.claimed() == o.Claim.Path {
				return &d, false, nil
			}
			other = other || known && d.path == o.Identity.Loop
			continue
		}
		// A ledger without the device's name: its number and its file, and nobody else's mount on it.
		if !known || d.path != o.Identity.Loop {
			continue
		}
		if d.info.Inode != want.ino || !sameDevice(d.info.Device, want.dev) {
			other = true
			continue
		}
		if other, err = s.mountedElsewhere(d.path); err != nil || other {
			return nil, other, err
		}
		return &d, false, nil
	}
	if o.Claim.Path == "" && !known && len(devices) > 0 {
		return nil, false, fmt.Errorf("%w: %s is shown by %s, and the ledger does not say whether that is the run's", engine.ErrUnknown, o.Claim.Backing, devices[0].path)
	}
	return nil, other, nil
}

// mountedElsewhere says whether something is mounted from a device outside of the run's scratch directory.
func (s *sweeper) mountedElsewhere(device string) (bool, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Source != device, false })
	if err != nil {
		return false, err
	}
	for _, m := range mounts {
		if _, _, ok := s.claim.split(m.Mountpoint); !ok {
			return true, nil
		}
	}
	return false, nil
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

// sameDevice compares lo_device, which is huge_encode_dev's, or old_encode_dev's
// on older kernels, with st_dev, whose encoding differs for large minors.
func sameDevice(loop, stat uint64) bool {
	major, minor := uint64(unix.Major(stat)), uint64(unix.Minor(stat))
	huge := minor&0xff | major<<8 | (minor&^0xff)<<12
	return loop == stat || loop == huge || loop == major<<8|minor&0xff
}

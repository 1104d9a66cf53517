package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// attachLoop shows the bytes from offset on (size of them, 0 for all) of backing
// as a read-only block device. The kernel detaches it when its last user is
// gone: the descriptor in the device returned, then the mount. The kernel keeps
// the run's claim as the device's name, by which sweep knows it: other runs show
// the same file.
func (m *Mounted) attachLoop(ctx context.Context, backing *os.File, offset, size int64) (device, error) {
	const op = "attach loop device"
	var loop *os.File
	stat, err := fstat(backing) // a file, or the block device of an nbd
	if err != nil {
		return device{}, &engine.Error{Op: op, Err: err}
	}
	identity := identify(stat)
	err = m.own("loop", bench.Claim{Path: m.claim, Backing: backing.Name()}, func() (bench.Identity, error) {
		control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
		if err != nil {
			return bench.Identity{}, refuse(op, "load the loop module, and give a container the device", "no loop devices here: %v", err)
		}
		defer control.Close()
		err = poll(ctx, op, func() (bool, error) {
			loop, err = configureFree(control, backing, m.claim, offset, size)
			return loop != nil, err
		})
		if err != nil {
			return bench.Identity{}, err
		}
		status, err := unix.IoctlLoopGetStatus64(int(loop.Fd()))
		if err != nil {
			return bench.Identity{}, &engine.Error{Op: op, Err: err}
		}
		if status.Flags&unix.LO_FLAGS_READ_ONLY == 0 || status.Flags&unix.LO_FLAGS_AUTOCLEAR == 0 ||
			status.Inode != identity.Ino || status.Offset != uint64(offset) || status.Sizelimit != uint64(size) ||
			unix.ByteSliceToString(status.File_name[:]) != m.claim {
			return bench.Identity{}, &engine.Error{Op: op, Err: fmt.Errorf("%s is not as requested: %+v", loop.Name(), *status)}
		}
		bound := identity.ledger()
		bound.Loop = loop.Name()
		return bound, nil
	}, func(ctx context.Context) error {
		if loop == nil {
			return nil
		}
		loop.Close()
		return loopCleared(ctx, loop.Name(), identity)
	})
	if err != nil {
		return device{}, err
	}
	return device{path: loop.Name(), close: loop.Close}, nil
}

// configureFree asks for a free loop device and takes it; nil if somebody else was faster.
func configureFree(control, backing *os.File, name string, offset, size int64) (*os.File, error) {
	const op = "attach loop device"
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	path, err := loopNode(number)
	if err != nil {
		return nil, err
	}
	loop, err := os.OpenFile(path, os.O_RDONLY, 0)
	if errors.Is(err, unix.ENXIO) {
		return nil, nil
	}
	if err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	config := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{
		Offset: uint64(offset), Sizelimit: uint64(size),
		Flags: unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR,
	}}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], name)
	if err := unix.IoctlLoopConfigure(int(loop.Fd()), &config); err != nil {
		loop.Close()
		if errors.Is(err, unix.EBUSY) {
			return nil, nil
		}
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("LOOP_CONFIGURE of %s: %w", path, err)}
	}
	return loop, nil
}

// loopNode is the path of a loop device's node. A container's /dev may lack
// nodes for devices that the kernel made after it was started.
func loopNode(number int) (string, error) {
	path := fmt.Sprintf("/dev/loop%d", number)
	if _, err := os.Lstat(path); !isMissing(err) {
		return path, nil
	}
	var major, minor uint32
	text, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(path), "dev"))
	if err == nil {
		_, err = fmt.Sscanf(string(text), "%d:%d", &major, &minor)
	}
	if err == nil {
		err = unix.Mknod(path, unix.S_IFBLK|0o660, int(unix.Mkdev(major, minor)))
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return "", &engine.Error{Op: "make node of loop device", Err: &os.PathError{Op: "mknod", Path: path, Err: err}}
	}
	return path, nil
}

// loopCleared waits until the loop device does not show our backing file any
// more. Another file on it is another owner's, and ours is gone.
func loopCleared(ctx context.Context, path string, backing Identity) error {
	const op = "detach loop device"
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, fmt.Errorf("%s still shows its file; somebody has it open or mounted", path))
	defer cancel()
	return poll(ctx, op, func() (bool, error) {
		// sysfs first: an open of the device would itself keep it from being cleared.
		text, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(path), "loop/backing_file"))
		if isMissing(err) || errors.Is(err, unix.ENODEV) {
			return true, nil
		}
		if err != nil {
			return false, &engine.Error{Op: op, Err: err}
		}
		if strings.TrimSpace(string(text)) == "" {
			return true, nil
		}
		ours, err := loopShows(path, backing)
		return !ours, err
	})
}

// loopShows says whether the loop device shows the file with this identity.
func loopShows(path string, backing Identity) (bool, error) {
	loop, err := os.OpenFile(path, os.O_RDONLY, 0)
	if errors.Is(err, unix.ENXIO) || isMissing(err) {
		return false, nil
	}
	if err != nil {
		return false, &engine.Error{Op: "read loop device", Err: err}
	}
	defer loop.Close()
	status, err := unix.IoctlLoopGetStatus64(int(loop.Fd()))
	if errors.Is(err, unix.ENXIO) {
		return false, nil
	}
	if err != nil {
		return false, &engine.Error{Op: "read loop device", Err: err}
	}
	return status.Inode == backing.Ino && sameDevice(status.Device, backing.Dev), nil
}

// sameDevice compares lo_device, which is huge_encode_dev's, or old_encode_dev's
// on older kernels, with st_dev, whose encoding differs for large minors.
func sameDevice(loop, stat uint64) bool {
	major, minor := uint64(unix.Major(stat)), uint64(unix.Minor(stat))
	huge := minor&0xff | major<<8 | (minor&^0xff)<<12
	return loop == stat || loop == huge || loop == major<<8|minor&0xff
}

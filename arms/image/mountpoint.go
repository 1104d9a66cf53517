package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// mount mounts dev at dir read-only, without replaying a journal, and reads back
// that this is what the kernel did.
func (m *Mounted) mount(ctx context.Context, dev device, dir string) error {
	const op = "mount image"
	if err := m.ownDirectory(dir); err != nil {
		return err
	}
	err := m.own("mount", bench.Claim{Path: dir, Backing: dev.path}, func() (bench.Identity, error) {
		if err := ctx.Err(); err != nil {
			return bench.Identity{}, &engine.Error{Op: op, Err: context.Cause(ctx)}
		}
		err := unix.Mount(dev.path, dir, "ext4", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, "noload")
		if errors.Is(err, unix.EINVAL) {
			return bench.Identity{}, refuse(op, "images need an ext4 root file system; look at the partition number",
				"the kernel found no ext4 file system that it can mount")
		}
		if err != nil {
			return bench.Identity{}, &engine.Error{Op: op, Err: err}
		}
		if err := checkReadOnly(dir, dev.path); err != nil {
			return bench.Identity{}, err
		}
		return pathIdentity(dir)
	}, func(ctx context.Context) error { return unmounted(ctx, dir) })
	m.dir = dir
	return err
}

// pathIdentity is device and inode of what path shows now.
func pathIdentity(path string) (bench.Identity, error) {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return bench.Identity{}, &engine.Error{Op: "read identity", Err: &os.PathError{Op: "lstat", Path: path, Err: err}}
	}
	return identify(&stat).ledger(), nil
}

// mountAt returns what is mounted at path, the uppermost; nil for nothing.
func mountAt(path string) (*mountinfo.Info, error) {
	all, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	if err != nil {
		return nil, &engine.Error{Op: "read mounts", Err: err}
	}
	if len(all) == 0 {
		return nil, nil
	}
	return all[len(all)-1], nil
}

func checkReadOnly(dir, source string) error {
	const op = "read mount back"
	info, err := mountAt(dir)
	if err != nil {
		return err
	}
	if info == nil {
		return &engine.Error{Op: op, Err: fmt.Errorf("nothing is mounted at %s", dir)}
	}
	has := func(options, option string) bool { return slices.Contains(strings.Split(options, ","), option) }
	if info.FSType != "ext4" || info.Source != source || !has(info.Options, "ro") || !has(info.VFSOptions, "ro") {
		return &engine.Error{Op: op, Err: fmt.Errorf("%s is %s of %s with %s and %s, wanted ext4 of %s read-only", dir, info.FSType, info.Source, info.Options, info.VFSOptions, source)}
	}
	return nil
}

// patience is how long a mount that is in use is tried again.
var patience = 5 * time.Second

// unmounted unmounts path and reads back that nothing is mounted there. A mount
// that is in use is tried again for a while: a dying process may hold it.
func unmounted(ctx context.Context, path string) error {
	const op = "unmount image"
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s is in use: %w", path, unix.EBUSY))
	defer cancel()
	err := poll(ctx, op, func() (bool, error) {
		info, err := mountAt(path)
		if err != nil || info == nil {
			return info == nil && err == nil, err
		}
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EBUSY) {
			return false, &engine.Error{Op: op, Err: &os.PathError{Op: "umount", Path: path, Err: err}}
		}
		return false, nil
	})
	var e *engine.Error
	if errors.Is(err, unix.EBUSY) && errors.As(err, &e) {
		e.Hint = "release the slots that use the image first; fuser -m " + path + " names who holds it"
	}
	return err
}

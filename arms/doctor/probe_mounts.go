package doctor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/arms/thread"
)

// inPrivateMounts runs f where mounts are seen by nobody else. They go with the
// thread, so that nothing is left even of a process that is killed.
func inPrivateMounts(f func() error) error { return thread.Apart(0, f) }

// detached unmounts a probe's mount, however it ended.
func detached(point string, err error) error {
	if e := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); e != nil {
		return errors.Join(err, fmt.Errorf("unmount %s: %w", point, e))
	}
	return err
}

// probeOverlay mounts an overlay with the options of a slot's, changes a file
// and removes one, and looks for both in the upper layer.
func probeOverlay(dir string) error {
	return inTemporary(dir, func(dir string) error {
		at := func(name string) string { return filepath.Join(dir, name) }
		for _, name := range []string{"lower", "upper", "work", "merged"} {
			if err := os.Mkdir(at(name), 0o755); err != nil {
				return err
			}
		}
		for _, name := range []string{"changed", "removed"} {
			if err := os.WriteFile(at("lower/"+name), []byte("lower"), 0o600); err != nil {
				return err
			}
		}
		return inPrivateMounts(func() error {
			o := overlay.Options{Lower: []string{at("lower")}, Upper: at("upper"), Work: at("work"), Target: at("merged"), NFSExport: true}
			if err := overlay.Mount(o); err != nil {
				return err
			}
			return detached(at("merged"), useOverlay(at))
		})
	})
}

func useOverlay(at func(string) string) error {
	if err := errors.Join(os.WriteFile(at("merged/changed"), []byte("upper"), 0o600), os.Remove(at("merged/removed"))); err != nil {
		return err
	}
	for name, want := range map[string]string{"upper/changed": "upper", "lower/changed": "lower"} {
		if have, err := os.ReadFile(at(name)); err != nil || string(have) != want {
			return fmt.Errorf("a changed file reads %q in %s: %w", have, filepath.Dir(name), errors.Join(err, errNotSeen))
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(at("upper/removed"), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
		return fmt.Errorf("a removed file is no whiteout in the upper layer: %w", errors.Join(err, errNotSeen))
	}
	return nil
}

// errNotSeen: the kernel said yes, and the effect is not there.
var errNotSeen = errors.New("the effect was not seen")

// probeFuse mounts a file system that nobody serves, and waits for the kernel's
// first request, FUSE_INIT. Nothing may look at the mount point meanwhile: it would wait.
func probeFuse(dir string) error {
	return inTemporary(dir, func(dir string) error {
		return inPrivateMounts(func() error {
			fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
			if err != nil {
				return &os.PathError{Op: "open", Path: "/dev/fuse", Err: err}
			}
			defer unix.Close(fd)
			data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
			if err := unix.Mount("drums-doctor", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
				return fmt.Errorf("mount fuse: %w", err)
			}
			return detached(dir, firstRequest(fd))
		})
	})
}

func firstRequest(fd int) error {
	const opcodeInit = 26 // uapi/linux/fuse.h
	deadline := time.Now().Add(5 * time.Second)
	buf := make([]byte, 64<<10)
	for {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, int(max(0, time.Until(deadline)).Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the kernel: %w", err)
		}
		n, err := unix.Read(fd, buf)
		switch {
		case err == nil && n >= 8 && binary.NativeEndian.Uint32(buf[4:]) == opcodeInit:
			return nil
		case err == nil:
			return fmt.Errorf("the kernel's first request is not FUSE_INIT: %w", errNotSeen)
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("read from /dev/fuse: %w", err)
		case time.Now().After(deadline):
			return fmt.Errorf("no request from the kernel: %w", errNotSeen)
		}
	}
}

// probePrivateGroups mounts cgroup2 where nobody else sees it and tries our own group there.
func probePrivateGroups(ctx context.Context, group string) error {
	return inTemporary("", func(dir string) error {
		return inPrivateMounts(func() error {
			if err := unix.Mount("cgroup2", dir, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
				return fmt.Errorf("mount cgroup2: %w", err)
			}
			return detached(dir, probeGroup(ctx, filepath.Join(dir, group)))
		})
	})
}

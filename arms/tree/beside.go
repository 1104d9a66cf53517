package tree

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/thread"
)

// Apart runs fn on an OS thread with a mount namespace of its own, and whatever
// else flags say, which ends with it. What fn starts inherits the thread's
// namespaces, root and v1 cgroups: it is prepared before it exists, and no copy
// of this program has to run in its place.
func Apart(flags int, fn func() error) error {
	return thread.Apart(flags, func() error {
		// Descriptors that we inherited ourselves must not reach a slot or criu; Go's own never do.
		if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
			return fmt.Errorf("close inherited descriptors: %w", err)
		}
		return fn()
	})
}

// KdatDir keeps what criu learnt of the kernel.
func KdatDir(state string) string { return filepath.Join(state, "cache", "criu") }

// BesideCRIU runs fn where criu finds what it needs: a mount namespace with a
// private /run that holds what it learnt of the kernel before, since criu caches
// that only on a tmpfs, and with a private /tmp, in which it leaves things
// behind. keep are paths that stay in sight there.
func BesideCRIU(tool criu.Tool, state string, keep []string, fn func() error) error {
	kdat, err := tool.Kdat(KdatDir(state))
	if err != nil {
		return err
	}
	keep = append(keep, state, tool.Path)
	return Apart(0, func() error {
		if err := private("/run", keep, func() error { return criu.MountRun("/run") }); err != nil {
			return err
		}
		if err := kdat.Prefill("/run"); err != nil {
			return err
		}
		// Where criu makes a folder for the roots that it restores (/tmp/.criu.mntns.XXXXXX,
		// criu/mount.c), which it leaves behind when it is killed.
		if err := private("/tmp", keep, func() error {
			return unix.Mount("tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
		}); err != nil {
			return err
		}
		return fn()
	})
}

// private has mount lay an empty folder over one of the host's in the calling
// thread's mount namespace. What lies below the host's and has to be found, mounts
// included, is bound back in: the topmost folder of each path in keep.
func private(over string, keep []string, mount func() error) error {
	trees := map[string]int{}
	defer func() {
		for _, fd := range trees {
			unix.Close(fd)
		}
	}()
	for _, path := range keep {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return fmt.Errorf("make private %s: %w", over, err)
		}
		rest, below := strings.CutPrefix(real, over+"/")
		if !below {
			continue
		}
		top, _, _ := strings.Cut(rest, "/")
		if _, have := trees[top]; have {
			continue
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, filepath.Join(over, top), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return &os.PathError{Op: "open tree", Path: filepath.Join(over, top), Err: err}
		}
		trees[top] = fd
	}
	if err := mount(); err != nil {
		return fmt.Errorf("mount private %s: %w", over, err)
	}
	for top, fd := range trees {
		at := filepath.Join(over, top)
		if err := os.Mkdir(at, 0o700); err != nil {
			return err
		}
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return &os.PathError{Op: "bind", Path: at, Err: err}
		}
	}
	return nil
}

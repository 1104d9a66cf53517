package drums

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// tmp is where criu makes a folder for the roots that it restores
// (/tmp/.criu.mntns.XXXXXX, criu/mount.c), which it leaves behind when it is killed.
const tmp = "/tmp"

// privateTmp gives the calling thread's mount namespace a /tmp of its own. What
// lies below the host's and has to be found, mounts included, is bound back in:
// the topmost folder of each path in keep.
func privateTmp(keep ...string) error {
	trees := map[string]int{}
	defer func() {
		for _, fd := range trees {
			unix.Close(fd)
		}
	}()
	for _, path := range keep {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return fmt.Errorf("make private %s: %w", tmp, err)
		}
		rest, below := strings.CutPrefix(real, tmp+"/")
		if !below {
			continue
		}
		top, _, _ := strings.Cut(rest, "/")
		if _, have := trees[top]; have {
			continue
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, filepath.Join(tmp, top), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return &os.PathError{Op: "open tree", Path: filepath.Join(tmp, top), Err: err}
		}
		trees[top] = fd
	}
	if err := unix.Mount("tmpfs", tmp, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return fmt.Errorf("mount private %s: %w", tmp, err)
	}
	for top, fd := range trees {
		at := filepath.Join(tmp, top)
		if err := os.Mkdir(at, 0o700); err != nil {
			return err
		}
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return &os.PathError{Op: "bind", Path: at, Err: err}
		}
	}
	return nil
}

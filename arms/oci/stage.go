package oci

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// shown are the v1 controllers whose hierarchies runc sees. devices is in it
// because runc refuses to work without.
var shown = map[string]bool{"cpu": true, "cpuacct": true, "memory": true, "pids": true, "devices": true}

// hideCgroups takes hierarchies out of the calling thread's mount namespace: all
// of v1 that are not shown and, beside a v1, v2.
//
// runc makes a group in each hierarchy that it sees, and of those that it would
// make nobody knows: where it works, a slot has groups of ours already.
// On a hybrid host runc joins v2 by the container's path below the hierarchy's
// root, which would take the slot out of the ownership cgroup that it is born in.
// And where it sees a v1 freezer it has criu freeze the tree there: a task that
// is left frozen by a criu that was killed does not die of SIGKILL.
//
// above are the groups of v2 below which runc may change what it likes.
func hideCgroups(above ...string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return fmt.Errorf("list cgroup mounts: %w", err)
	}
	v1 := false
	for _, m := range mounts {
		v1 = v1 || m.FSType == "cgroup" && isShown(m)
	}
	if !v1 {
		return keepControllers(mounts, above)
	}
	for _, m := range mounts {
		if m.FSType == "cgroup" && isShown(m) {
			continue
		}
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return &os.PathError{Op: "hide", Path: m.Mountpoint, Err: err}
		}
	}
	return nil
}

// keepControllers hides, on a unified host, what hands controllers on in groups that
// are not the arm's and in those above them: runc switches on all that it knows at
// each level down to the container. That is not its business there, and in our own
// current group it would keep us from ever moving back into it.
func keepControllers(mounts []*mountinfo.Info, above []string) error {
	hidden := map[string]bool{}
	for _, m := range mounts {
		for _, dir := range above {
			for ; dir == m.Mountpoint || strings.HasPrefix(dir, m.Mountpoint+"/"); dir = filepath.Dir(dir) {
				if hidden[dir] {
					break
				}
				hidden[dir] = true
				file := filepath.Join(dir, "cgroup.subtree_control")
				if err := unix.Mount("/dev/null", file, "", unix.MS_BIND, ""); err != nil {
					return &os.PathError{Op: "hide", Path: file, Err: err}
				}
			}
		}
	}
	return nil
}

func isShown(m *mountinfo.Info) bool {
	for _, option := range strings.Split(m.VFSOptions, ",") {
		if shown[option] {
			return true
		}
	}
	return false
}

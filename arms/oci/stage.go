package oci

import (
	"fmt"
	"os"
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
func hideCgroups() error {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return fmt.Errorf("list cgroup mounts: %w", err)
	}
	v1 := false
	for _, m := range mounts {
		v1 = v1 || m.FSType == "cgroup" && isShown(m)
	}
	if !v1 { // a unified host
		return nil
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

func isShown(m *mountinfo.Info) bool {
	for _, option := range strings.Split(m.VFSOptions, ",") {
		if shown[option] {
			return true
		}
	}
	return false
}

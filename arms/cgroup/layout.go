package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/moby/sys/mountinfo"

	"github.com/drumsbench/drumsbench/arms/systemd"
	"github.com/drumsbench/drumsbench/engine"
)

// The controllers that limits need. cpuacct exists on v1 only and is read, never set.
const (
	controllerCPU     = "cpu"
	controllerCPUAcct = "cpuacct"
	controllerMemory  = "memory"
	controllerPids    = "pids"
)

// hierarchy is one mounted cgroup hierarchy and our own place in it.
type hierarchy struct {
	// mount is the mount point.
	mount string
	// rel is our own group below the mount point; "/" at its root.
	rel string
	// path is our own group as /proc/self/cgroup names it, to compare tasks with.
	path string
}

func (h hierarchy) dir() string { return filepath.Join(h.mount, h.rel) }

// layout is where this process stands in every hierarchy that the package uses.
type layout struct {
	// unified says that limits live on v2.
	unified bool
	// v2 is nil on a host that mounts no cgroup2.
	v2 *hierarchy
	// v2path is our own v2 group, which the kernel names even where nothing is mounted.
	v2path string
	// home says that v2 is the operator's group for us and not the one that we are in.
	home bool
	// systemd says that it runs the host, and so keeps what it did not delegate.
	systemd bool
	// pretended says that the hierarchy is a test's, not the kernel's.
	pretended bool
	// v1 by controller; co-mounted controllers share a mount point.
	v1 map[string]hierarchy
}

// Mode names the host's cgroup set-up: "legacy", "hybrid", "unified" or "unavailable".
func Mode() string {
	switch cgroups.Mode() {
	case cgroups.Legacy:
		return "legacy"
	case cgroups.Hybrid:
		return "hybrid"
	case cgroups.Unified:
		return "unified"
	}
	return "unavailable"
}

// discover reads where we are. It reads /proc each time, since a supervisor may move us.
func discover() (layout, error) {
	own, v2path, err := cgroups.ParseCgroupFileUnified("/proc/self/cgroup")
	if err != nil {
		return layout{}, &engine.Error{Op: "read own cgroups", Err: err}
	}
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return layout{}, &engine.Error{Op: "read cgroup mounts", Err: err}
	}
	at := newLayout(cgroups.Mode() == cgroups.Unified, own, v2path, mounts)
	at.systemd = systemd.Here()
	return at.at(os.Getenv(Variable))
}

// Variable names the directory of a v2 group in which an operator wants our groups, in
// place of the one that each command happens to be in. A service manager takes away
// the group of a command that has ended (systemd does once it is empty), and with it
// the groups of a slot by hand whose processes a dump has ended.
const Variable = "DRUMSBENCH_CGROUP"

// at is the layout with our groups in the group at dir; the same for an empty dir.
// ErrRefused where it is no v2 group, or holds processes, beside which it can hand on no controllers.
func (l layout) at(dir string) (layout, error) {
	if dir == "" {
		return l, nil
	}
	refused := func(format string, args ...any) (layout, error) {
		return layout{}, &engine.Error{Op: "find the group for our groups", Err: fmt.Errorf("%w: %s=%s %s", engine.ErrRefused, Variable, dir, fmt.Sprintf(format, args...)),
			Hint: "docs/operating.md has the unit of a service whose group stays; or unset " + Variable}
	}
	if l.v2 == nil {
		return refused("cannot be reached: no cgroup2 is mounted")
	}
	if !filepath.IsAbs(dir) {
		return refused("is no absolute path")
	}
	h, err := l.v2.holding(filepath.Clean(dir))
	if err != nil {
		return refused("is no group: %v", err)
	}
	pids, err := directPids(h.dir())
	if err != nil {
		return refused("is no group: %v", err)
	}
	if len(pids) > 0 {
		return refused("holds processes itself: %v", pids)
	}
	l.v2, l.home = h, true
	return l, nil
}

// newLayout joins what the kernel says of us with what is mounted. The first
// mount from which our own group can be reached wins.
func newLayout(unified bool, own map[string]string, v2path string, mounts []*mountinfo.Info) layout {
	l := layout{unified: unified, v2path: v2path, v1: map[string]hierarchy{}}
	for _, m := range mounts {
		if m.FSType == "cgroup2" {
			if l.v2 != nil {
				continue
			}
			if rel, err := below(m.Root, v2path); err == nil {
				l.v2 = &hierarchy{mount: m.Mountpoint, rel: rel, path: v2path}
			}
			continue
		}
		for _, name := range strings.Split(m.VFSOptions, ",") {
			path, ours := own[name]
			if _, seen := l.v1[name]; !ours || seen {
				continue
			}
			if rel, err := below(m.Root, path); err == nil {
				l.v1[name] = hierarchy{mount: m.Mountpoint, rel: rel, path: path}
			}
		}
	}
	return l
}

// below returns path as seen from a mount whose root is the group root.
func below(root, path string) (string, error) {
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return "", err
	}
	if rel == ".." || strings.HasPrefix(rel, "../") {
		return "", fmt.Errorf("group %s is outside of the mounted %s", path, root)
	}
	return filepath.Join("/", rel), nil
}

// write writes value to an existing kernel file with one write(2).
func write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func read(dir, file string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(data)), err
}

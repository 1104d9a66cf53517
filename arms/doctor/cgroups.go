package doctor

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/moby/sys/mountinfo"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// limited are the controllers that bound a slot.
var limited = []string{"cpu", "memory", "pids"}

// hierarchies are the mounted ones and our own place in them.
type hierarchies struct {
	// unified says that limits live on v2: it is what /sys/fs/cgroup shows.
	unified bool
	// v2 is our own group's directory; empty where no cgroup2 mount shows it.
	v2 string
	// group is our own v2 group as the kernel names it.
	group string
	// v1 by controller.
	v1 map[string]place
}

// place is our own group in a hierarchy.
type place struct {
	dir   string
	mount *mountinfo.Info
}

// hierarchies reads where we are. The first mount that shows our own group wins, as in arms/cgroup.
func (h *Host) hierarchies() (hierarchies, error) {
	text, err := h.read("/proc/self/cgroup")
	if err != nil {
		return hierarchies{}, err
	}
	own, group, err := cgroups.ParseCgroupFromReaderUnified(strings.NewReader(text + "\n"))
	if err != nil {
		return hierarchies{}, err
	}
	mounts, err := h.mounts()
	if err != nil {
		return hierarchies{}, err
	}
	found := hierarchies{group: group, v1: map[string]place{}}
	for _, m := range mounts {
		switch m.FSType {
		case "cgroup2":
			found.unified = found.unified || m.Mountpoint == "/sys/fs/cgroup"
			if found.v2 == "" && within(m.Root, group) {
				found.v2 = path.Join(m.Mountpoint, strings.TrimPrefix(group, m.Root))
			}
		case "cgroup":
			for name := range flags(m.VFSOptions) {
				at, ours := own[name]
				if _, seen := found.v1[name]; ours && !seen && within(m.Root, at) {
					found.v1[name] = place{path.Join(m.Mountpoint, strings.TrimPrefix(at, m.Root)), m}
				}
			}
		}
	}
	if home := h.variable(cgroup.Variable); home != "" {
		if _, err := h.read(path.Join(home, "cgroup.controllers")); err != nil {
			return hierarchies{}, fmt.Errorf("%s: %w", cgroup.Variable, err)
		}
		found.v2 = home
	}
	return found, nil
}

func (g hierarchies) mode() string {
	switch {
	case g.unified:
		return "unified"
	case g.v2 != "" && len(g.v1) > 0:
		return "hybrid"
	case len(g.v1) > 0:
		return "legacy"
	case g.v2 != "":
		return "unified elsewhere than at /sys/fs/cgroup"
	}
	return "none"
}

// controllers looks for what bounds a slot, in whichever hierarchy limits live.
func controllers(_ context.Context, h *Host) []bench.HostFinding {
	g, err := h.hierarchies()
	switch {
	case err != nil:
		return unread(Unknown, "cgroups", err)
	case g.mode() == "none":
		return one(Lack, "cgroups", "no cgroup hierarchy is mounted", "mount -t cgroup2 cgroup2 /sys/fs/cgroup")
	case g.unified:
		return h.controllersV2(g)
	}
	var found []bench.HostFinding
	for _, name := range limited {
		p, there := g.v1[name]
		if !there {
			found = append(found, one(Lack, "cgroup-"+name, "no mounted v1 hierarchy shows our own group under the "+name+" controller: a slot cannot be bounded",
				"mount -t cgroup -o "+name+" cgroup /sys/fs/cgroup/"+name+", or boot with the unified hierarchy (systemd.unified_cgroup_hierarchy=1)")...)
			continue
		}
		if flags(p.mount.Options)["ro"] {
			found = append(found, one(Lack, "cgroup-"+name, p.mount.Mountpoint+" is mounted read-only", "mount -o remount,rw "+p.mount.Mountpoint)...)
		}
		beside := path.Join(path.Dir(p.mount.Mountpoint), name)
		switch there, err := h.exists(beside); {
		case err != nil:
			found = append(found, unread(Unknown, "cgroup-"+name, err)...)
		case !there:
			found = append(found, one(Lack, "cgroup-"+name, p.mount.Mountpoint+" is not reachable as "+beside, "ln -s "+path.Base(p.mount.Mountpoint)+" "+beside)...)
		}
	}
	if memory, there := g.v1["memory"]; there {
		switch there, err := h.exists(path.Join(memory.dir, "memory.memsw.limit_in_bytes")); {
		case err != nil:
			found = append(found, unread(Unknown, "cgroup-memory", err)...)
		case !there:
			found = append(found, one(Lack, "cgroup-memory", "the kernel accounts no swap: memory.memsw.limit_in_bytes is missing, and a bound that cannot be read back blocks a run", "boot with swapaccount=1")...)
		}
	}
	if found == nil {
		found = fine("cgroups", "%s: limits on v1, with %s", g.mode(), strings.Join(limited, ", "))
	}
	return found
}

func (h *Host) controllersV2(g hierarchies) []bench.HostFinding {
	if g.v2 == "" {
		return one(Lack, "cgroups", "no cgroup2 mount shows our own group "+g.group, "run this in a cgroup namespace of its own, or mount the whole hierarchy")
	}
	text, err := h.read(path.Join(g.v2, "cgroup.controllers"))
	if err != nil {
		return unread(Unknown, "cgroups", err)
	}
	var found []bench.HostFinding
	for _, name := range limited {
		if !slices.Contains(strings.Fields(text), name) {
			found = append(found, one(Lack, "cgroup-"+name, fmt.Sprintf("%s is not given %s by the group above it: a slot cannot be bounded", g.v2, name),
				"run this in a delegated group: systemd-run --scope -p Delegate=yes drumsbench …")...)
		}
	}
	if found == nil {
		foreign, err := h.foreign(g.v2)
		switch {
		case err != nil:
			return unread(Unknown, "cgroups", err)
		case foreign != "":
			return one(Lack, "cgroups", fmt.Sprintf("%s also holds process %s, which is not this one's: a group with processes hands no controllers on, and only our own can step aside", g.v2, foreign),
				"run this in a group of its own: systemd-run --scope -p Delegate=yes drumsbench …; or give "+cgroup.Variable+" a group for it (docs/operating.md)")
		}
		found = fine("cgroups", "unified, with %s", strings.Join(limited, ", "))
	}
	return found
}

// foreign is a process in the group that is neither this one nor its child; empty
// where there is none. The root group may hold any and hands on all the same.
func (h *Host) foreign(group string) (string, error) {
	if _, err := h.read(path.Join(group, "cgroup.type")); absent(err) {
		return "", nil // the root has none
	}
	own, _, err := h.stat("self")
	if err != nil {
		return "", err
	}
	held, err := h.read(path.Join(group, "cgroup.procs"))
	if err != nil {
		return "", err
	}
	for _, pid := range strings.Fields(held) {
		if pid == own {
			continue
		}
		switch _, parent, err := h.stat(pid); {
		case absent(err): // ended meanwhile, or of another pid namespace, of which 0 is
			if pid == "0" {
				return pid, nil
			}
		case err != nil:
			return "", err
		case parent != own:
			return pid, nil
		}
	}
	return "", nil
}

// stat is the pid of a process and its parent's (proc_pid_stat(5)).
func (h *Host) stat(process string) (pid, parent string, err error) {
	text, err := h.read(path.Join("/proc", process, "stat"))
	if err != nil {
		return "", "", err
	}
	pid, _, _ = strings.Cut(text, " ")
	rest := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // the name may hold anything
	if len(rest) < 2 {
		return "", "", fmt.Errorf("/proc/%s/stat reads %q", process, text)
	}
	return pid, rest[1], nil
}

// ownership tries the cgroup that every process of a run is born in.
func ownership(ctx context.Context, h *Host) []bench.HostFinding {
	const remedy = "use a kernel of 5.14 or newer with a cgroup2 mount that this process may write to"
	g, err := h.hierarchies()
	if err != nil {
		return unread(Unknown, "cgroup2", err)
	}
	if g.v2 == "" {
		if err := h.PrivateGroups(ctx, g.group); err != nil {
			return one(Lack, "cgroup2", "no cgroup2 mount shows our own group, and a private one does not work: "+err.Error(), remedy)
		}
		return one(Warn, "cgroup2", "no cgroup2 mount shows our own group: each run mounts a private one", "mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified")
	}
	if err := h.Group(ctx, g.v2); err != nil {
		return one(Lack, "cgroup2", "a group below "+g.v2+" does not do what a run needs: "+err.Error(), remedy)
	}
	return fine("cgroup2", "groups below %s; processes are born in one and end by cgroup.kill", g.v2)
}

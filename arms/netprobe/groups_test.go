package netprobe

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/moby/sys/mountinfo"
	prom "github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/armtest"
	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
)

// bearing lists the control groups of every mounted hierarchy whose path has a
// text in it: group by mount point.
func bearing(t *testing.T, text string) map[string]string {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	must(t, err)
	found := map[string]string{}
	for _, m := range mounts {
		must(t, filepath.WalkDir(m.Mountpoint, func(path string, d fs.DirEntry, err error) error {
			// Groups of others come and go.
			if err == nil && d.IsDir() && strings.Contains(path, text) {
				found[path] = m.Mountpoint
			}
			return nil
		}))
	}
	return found
}

// unowned lists the control groups of a run, in whatever hierarchy, that its
// ledger does not own by their identity. The leaf that tasks are in goes with the
// group above it.
func unowned(t *testing.T, ws *engine.Workspace) (list []string) {
	t.Helper()
	open, _, err := record.ReadLedger(filepath.Join(ws.Run, record.LedgerFile))
	must(t, err)
	for path := range bearing(t, ws.ID) {
		if filepath.Base(path) == cgroup.Leaf {
			path = filepath.Dir(path)
		}
		id, err := tree.FileIdentity(path)
		must(t, err)
		if !slices.ContainsFunc(open, func(o record.Owned) bool {
			return o.Kind == "cgroup" && o.Claim.Path == path && o.Identity != nil && *o.Identity == id
		}) {
			list = append(list, path)
		}
	}
	return list
}

// runc makes no control group: while a container lives, and while it is away, each
// group of the run in every hierarchy was made by us and is in the ledger with its
// identity; and of the host's groups the images keep none (on v2, where criu dumps from outside, the container's own alone).
func TestControlGroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("the network probe needs root")
	}
	ws, done := armtest.Workspace(t, t.TempDir(), stateDir())
	seen := map[string]int{}
	r, err := Probe(t.Context(), ws, Options{Layers: []string{OCI}, stage: func(layer, stage, _ string) error {
		if list := unowned(t, ws); len(list) > 0 {
			t.Errorf("%s, %s: control groups that the ledger does not own: %q", layer, stage, list)
		}
		for _, mount := range bearing(t, "drums-"+ws.ID+"-"+layer) {
			seen[stage]++
			for _, hidden := range []string{"freezer", "cpuset", "blkio", "systemd"} {
				if filepath.Base(mount) == hidden {
					t.Errorf("%s, %s: a group in %s", layer, stage, mount)
				}
			}
		}
		if stage != stageDumped {
			return nil
		}
		groups, err := criu.OpenImages(filepath.Join(ws.Work, layer, "images")).ControlGroups()
		for _, g := range groups {
			if cgroups.Mode() != cgroups.Unified || !slices.Equal(g.Controllers, []string{"pids"}) || !strings.Contains(g.Path, ws.ID) {
				t.Errorf("%s: the images keep %+v", layer, g)
			}
		}
		if err != nil || len(groups) > 1 {
			t.Errorf("%s: the images keep %+v, %v", layer, groups, err)
		}
		return nil
	}})
	must(t, err)
	if r.Verdict != Preserved {
		t.Errorf("verdict %s", r.Verdict)
	}
	if mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup")); err != nil || len(mounts) > 0 && seen[stageReady] == 0 {
		t.Errorf("no group of a container was seen: %v, %v", seen, err)
	}
	if seen[stageDumped] > 0 {
		t.Errorf("%d groups of containers that were dumped", seen[stageDumped])
	}
	must(t, ws.Release(t.Context()))
	if left := bearing(t, ws.ID); len(left) > 0 {
		t.Errorf("control groups are left: %v", left)
	}
	must(t, done())
}

// A group that somebody makes in the run's name is not taken for the run's.
func TestUnownedGroup(t *testing.T) {
	ws, done := armtest.Workspace(t, t.TempDir(), stateDir())
	self, err := prom.Self()
	must(t, err)
	own, err := self.Cgroups()
	must(t, err)
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	must(t, err)
	for _, m := range mounts {
		i := slices.IndexFunc(own, func(g prom.Cgroup) bool {
			if m.FSType == "cgroup2" {
				return g.HierarchyID == 0
			}
			return g.HierarchyID != 0 && slices.Contains(strings.Split(m.VFSOptions, ","), g.Controllers[0])
		})
		if i < 0 || m.Root != "/" {
			continue // a hierarchy, or a part of one, that we are not in
		}
		planted := filepath.Join(m.Mountpoint, own[i].Path, fmt.Sprintf("drums-%s-planted", ws.ID))
		must(t, os.Mkdir(planted, 0o755))
		have := unowned(t, ws)
		must(t, unix.Rmdir(planted))
		if !slices.Equal(have, []string{planted}) {
			t.Errorf("planted %s, found %q", planted, have)
		}
	}
	must(t, ws.Release(t.Context()))
	must(t, done())
}

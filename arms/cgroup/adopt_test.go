package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// known is a node as the ledger has it.
func known(n *node) Known {
	return Known{ID: n.id, Path: n.path, Identity: bench.Identity{
		Dev: bench.Int64(strconv.FormatUint(n.dev, 10)), Ino: bench.Int64(strconv.FormatUint(n.ino, 10)),
	}}
}

// What one owner made, another takes over: it sees the same limits and processes,
// makes new limits with another name, and can take everything away.
func TestAdopt(t *testing.T) {
	ws, ledger := workspace(t)
	first, err := OpenOwner(ws)
	if err != nil {
		t.Fatal(err)
	}
	g, err := first.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	tools, err := first.Group("tools")
	if err != nil {
		t.Fatal(err)
	}
	limits, err := NewLimits(ws, first, "slot-a", small)
	if err != nil {
		t.Fatal(err)
	}
	cmd := start(t, g, "exec sleep 100")
	if err := limits.Add(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	want, ok := limits.Read([]int{cmd.Process.Pid}).Get()
	if !ok {
		t.Fatal(limits.Read(nil).Reason())
	}

	o, err := AdoptOwner(ws, known(first.node), map[string]int{"slot-a": 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(o.Kill(within(t, 10*time.Second)), o.Remove(within(t, 10*time.Second))); err != nil {
			t.Error(err)
		}
	})
	h, err := o.AdoptGroup("slot-a", known(g.node))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.AdoptGroup("tools", known(tools.node)); err != nil {
		t.Fatal(err)
	}
	var all []Known
	for _, n := range limits.nodes {
		all = append(all, known(n))
	}
	l, err := o.AdoptLimits(all)
	if err != nil {
		t.Fatal(err)
	}
	have, ok := l.Read([]int{cmd.Process.Pid}).Get()
	if !ok || have.VCPUs != want.VCPUs || have.Memory != want.Memory || have.Swap != want.Swap || have.Pids != want.Pids || len(have.Outside) > 0 {
		t.Errorf("adopted limits %+v (%s), want %+v", have, l.Read(nil).Reason(), want)
	}
	for c, path := range want.Groups {
		if have.Groups[c] != path {
			t.Errorf("controller %q: group %q, want %q", c, have.Groups[c], path)
		}
	}
	if !slices.Equal(l.Dirs(), limits.Dirs()) {
		t.Errorf("dirs %q, want %q", l.Dirs(), limits.Dirs())
	}
	if outside, _ := l.Read([]int{os.Getpid()}).Get(); !slices.Equal(outside.Outside, []int{os.Getpid()}) {
		t.Errorf("the test itself is under them: %+v", outside)
	}
	if pids, err := h.Pids(); err != nil || !slices.Contains(pids, cmd.Process.Pid) {
		t.Errorf("the group holds %v, %v", pids, err)
	}

	// A reset: the tree ends, the old limits go, new ones are made.
	if err := errors.Join(h.Kill(within(t, 5*time.Second)), l.Remove(within(t, 5*time.Second))); err != nil {
		t.Fatal(err)
	}
	next, err := NewLimits(ws, o, "slot-a", small)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(next.Paths()[0], "-slot-a-2") {
		t.Errorf("new limits %q", next.Dirs())
	}
	if err := next.Remove(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	for id, claim := range ledger.open {
		if strings.Contains(claim.Note, "limits") {
			t.Errorf("%d is owned still: %+v", id, claim)
		}
	}
}

// A group that only has the name is nobody's to take over.
func TestAdoptRefusesAnotherGroup(t *testing.T) {
	ws, _ := workspace(t)
	first := owner(t, ws)
	g, err := first.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	limits, err := NewLimits(ws, first, "slot-a", small)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := limits.Remove(within(t, 5*time.Second)); err != nil {
			t.Error(err)
		}
	})
	other := known(first.node)
	other.Identity.Ino += "1"
	if _, err := AdoptOwner(ws, other, nil); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("owner: %v", err)
	}
	gone := known(first.node)
	gone.Path += "-x"
	if _, err := AdoptOwner(ws, gone, nil); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("owner that is not there: %v", err)
	}
	nobody := known(first.node)
	nobody.Identity = bench.Identity{}
	if _, err := AdoptOwner(ws, nobody, nil); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("owner without an identity: %v", err)
	}
	o, err := AdoptOwner(ws, known(first.node), nil)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := known(g.node)
	elsewhere.Path = first.Path()
	if _, err := o.AdoptGroup("slot-a", elsewhere); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("group at another path: %v", err)
	}
	other = known(g.node)
	other.Identity.Dev += "1"
	if _, err := o.AdoptGroup("slot-a", other); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("group of another device: %v", err)
	}
	if _, err := o.AdoptLimits(nil); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("no limits: %v", err)
	}
	one := known(limits.nodes[0])
	one.Identity.Ino += "1"
	if _, err := o.AdoptLimits([]Known{one}); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("limits of another inode: %v", err)
	}
}

// On a unified host the groups lie below the group that the first process was
// in, wherever the second one is.
func TestAdoptUnified(t *testing.T) {
	k, at := newUnifiedTree(t)
	ws, first := k.owner(t, at)
	l, err := NewLimits(ws, first, "slot-a", small)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(k.root, "other.slice")
	if err := k.mkdir(elsewhere, 0o755); err != nil {
		t.Fatal(err)
	}
	at.v2path = "/other.slice"
	at.v2 = &hierarchy{mount: k.root, rel: "/other.slice", path: "/other.slice"}
	o, err := adoptOwner(ws, at, k.mkdir, known(first.node), map[string]int{"slot-a": 1})
	if err != nil {
		t.Fatal(err)
	}
	o.setControl = k.setControl
	if _, err := o.AdoptGroup("slot-a", known(first.groups[0].node)); err != nil {
		t.Fatal(err)
	}
	adopted, err := o.AdoptLimits([]Known{known(l.nodes[0])})
	if err != nil {
		t.Fatal(err)
	}
	want, _ := l.Read(nil).Get()
	have, ok := adopted.Read(nil).Get()
	if !ok || have.Groups[""] != want.Groups[""] || have.Memory != want.Memory || adopted.FD() < 0 {
		t.Errorf("have %+v, want %+v", have, want)
	}
	next, err := NewLimits(ws, o, "slot-a", small)
	if err != nil {
		t.Fatal(err)
	}
	if dir := filepath.Dir(next.Dirs()[0]); !strings.HasPrefix(dir, filepath.Join(k.root, "user.slice")) || !strings.HasSuffix(dir, "-2") {
		t.Errorf("new limits at %s", dir)
	}
	if _, err := o.AdoptLimits([]Known{known(l.nodes[0]), known(l.nodes[0])}); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("two groups on one hierarchy: %v", err)
	}
}

// The limits of a dumped slot went with the group above them, which was killed.
// Who takes the slot over has limits that hold nobody, are known of nobody, and can
// be taken away; the next ones are made beside, under a name of their own.
func TestAdoptUnifiedVacant(t *testing.T) {
	k, at := newUnifiedTree(t)
	ws, first := k.owner(t, at)
	l, err := NewLimits(ws, first, "slot-a", small)
	if err != nil {
		t.Fatal(err)
	}
	path := l.nodes[0].path
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	o, err := adoptOwner(ws, at, k.mkdir, known(first.node), map[string]int{"slot-a": 1})
	if err != nil {
		t.Fatal(err)
	}
	o.setControl = k.setControl
	if _, err := o.AdoptGroup("slot-a", known(first.groups[0].node)); err != nil {
		t.Fatal(err)
	}
	if _, err := o.AdoptLimits([]Known{known(l.nodes[0])}); err == nil {
		t.Error("a group that is gone was taken over")
	}
	rest, err := o.AdoptLimits(nil)
	if !errors.Is(err, engine.ErrRefused) || rest == nil {
		t.Fatalf("what is left of them: %v, %v; want limits without a group, and that this is said", rest, err)
	}
	if have, ok := rest.Read(nil).Get(); ok {
		t.Errorf("limits without a group are known: %+v", have)
	}
	if rest.FD() >= 0 || len(rest.Dirs()) > 0 || len(rest.Paths()) > 0 {
		t.Errorf("they are somewhere: %d %q %q", rest.FD(), rest.Dirs(), rest.Paths())
	}
	for range 2 {
		if err := rest.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
	next, err := NewLimits(ws, o, "slot-a", small)
	if err != nil {
		t.Fatal(err)
	}
	if have := next.nodes[0].path; filepath.Dir(have) != filepath.Dir(path) || have == path {
		t.Errorf("the next limits are at %s, the first were at %s", have, path)
	}
	if r := next.Read(nil); r.Reason() != "" {
		t.Errorf("the next limits: %s", r.Reason())
	}
}

func TestHierarchyRoot(t *testing.T) {
	for _, h := range []hierarchy{
		{mount: "/sys/fs/cgroup", rel: "/", path: "/"},
		{mount: "/sys/fs/cgroup", rel: "/a/b", path: "/a/b"},
		{mount: "/sys/fs/cgroup", rel: "/b", path: "/a/b"}, // a mount of group a
		{mount: "/sys/fs/cgroup", rel: "/", path: "/a"},
	} {
		got, err := h.holding(h.dir())
		if err != nil || *got != h {
			t.Errorf("%+v: %+v, %v", h, got, err)
		}
	}
	if _, err := (hierarchy{mount: "/sys/fs/cgroup", rel: "/", path: "/"}).holding("/elsewhere"); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("a group outside of the mount: %v", err)
	}
}

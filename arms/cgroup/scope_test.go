package cgroup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func TestSlice(t *testing.T) {
	for group, want := range map[string][2]string{
		"/":                             {"system.slice", "/system.slice"},
		"/init.scope":                   {"system.slice", "/system.slice"},
		"/system.slice/run-1.scope/sub": {"system.slice", "/system.slice"},
		"/user.slice/user-0.slice/session-3.scope": {"user-0.slice", "/user.slice/user-0.slice"},
		// A user's systemd has slices of its own, which the system's does not know.
		"/user.slice/user-7.slice/user@7.service/app.slice/x.scope": {"user-7.slice", "/user.slice/user-7.slice"},
	} {
		if unit, path := slice(group); unit != want[0] || path != want[1] {
			t.Errorf("%s: %s at %s, want %v", group, unit, path, want)
		}
	}
}

// unitsOf plays the systemd that keeps scopes on a tree.
type unitsOf struct {
	asked []string
	// fails instead of stopping.
	fails error
	dir   string
}

func (u *unitsOf) Stop(_ context.Context, unit string) error {
	u.asked = append(u.asked, unit)
	if u.fails != nil {
		return u.fails
	}
	return os.RemoveAll(filepath.Join(u.dir, unit))
}

// start makes a scope as systemd would for runc.
func (k *unifiedTree) start(t *testing.T, l *Limits, files map[string]string) {
	t.Helper()
	if err := os.Mkdir(l.Scope().Path(), 0o755); err != nil {
		t.Fatal(err)
	}
	k.fill(l.Scope().Path(), "cpu memory pids")
	k.put(l.Scope().Path(), "cgroup.events", "populated 0\nfrozen 0")
	for file, text := range files {
		k.put(l.Scope().Path(), file, text)
	}
}

var asAsked = map[string]string{"cpu.max": "300000 100000", "memory.max": "1073741824", "memory.swap.max": "0", "pids.max": "64"}

func TestScope(t *testing.T) {
	resources := bench.Resources{Vcpus: 3, Memory: "1GiB", Swap: "0", Pids: 64}
	begin := func(t *testing.T) (*unifiedTree, *Owner, *Limits, *book, *unitsOf) {
		k, at := newUnifiedTree(t)
		at.pretended = true
		ws, o := k.owner(t, at)
		u := &unitsOf{dir: filepath.Join(k.root, "user.slice")}
		o.units = u
		l, err := NewScope(ws, o, "slot-a", resources)
		if err != nil {
			t.Fatal(err)
		}
		b := ws.Ledger.(*book)
		if last := b.lines[len(b.lines)-1]; last.Kind != "scope" || last.Op != "intent" || last.Claim.Path != filepath.Join(u.dir, "drums-"+ws.ID+"-slot-a-1.scope") {
			t.Errorf("the ledger says %+v before the scope is made", last)
		}
		if want := "user.slice:drums:" + ws.ID + "-slot-a-1"; l.CgroupsPath() != want {
			t.Errorf("runc is told %q, want %q", l.CgroupsPath(), want)
		}
		if !l.Unified() || l.FD() != -1 {
			t.Error("runc would be started in it")
		}
		return k, o, l, b, u
	}
	owned := func(b *book, l *Limits) bool {
		for _, c := range b.open {
			if c.Path == l.Scope().Path() {
				return true
			}
		}
		return false
	}

	t.Run("made and taken away", func(t *testing.T) {
		k, o, l, b, u := begin(t)
		k.start(t, l, asAsked)
		if err := l.Made(); err != nil {
			t.Fatal(err)
		}
		if last := b.lines[len(b.lines)-1]; last.Op != "bind" || last.Identity.Ino == "" {
			t.Errorf("the ledger says %+v of a scope that is there", last)
		}
		have, ok := l.Read(nil).Get()
		if !ok || have.VCPUs != 3 || have.Memory != 1<<30 || have.Swap != 0 || have.Pids != 64 || !strings.HasPrefix(have.Groups[""], "/user.slice/drums-") {
			t.Errorf("read back %+v, %s", have, l.Read(nil).Reason())
		}
		adopted, err := o.AdoptLimits([]Known{known(l.nodes[0])})
		if err != nil || adopted.Scope() == nil || adopted.CgroupsPath() != l.CgroupsPath() {
			t.Errorf("adopted %+v, %v", adopted, err)
		}
		k.put(l.Scope().Path(), "cgroup.procs", "1234")
		if err := l.Remove(within(t, time.Second)); !errors.Is(err, engine.ErrRefused) || len(u.asked) > 0 {
			t.Errorf("a scope with processes in it: %v; systemd was asked for %v", err, u.asked)
		}
		k.put(l.Scope().Path(), "cgroup.procs", "")
		if err := l.Scope().Kill(within(t, time.Second)); err != nil {
			t.Error(err)
		}
		u.fails = errors.New("systemd is gone")
		if err := l.Remove(within(t, time.Second)); err == nil || !owned(b, l) {
			t.Errorf("it counts as gone without a proof: %v", err)
		}
		u.fails = nil
		if err := l.Remove(within(t, time.Second)); err != nil || owned(b, l) {
			t.Errorf("%v, owned is %t", err, owned(b, l))
		}
		if want := filepath.Base(l.Scope().Path()); !slices.Equal(u.asked, []string{want, want}) {
			t.Errorf("systemd was asked for %v", u.asked)
		}
		if pids, err := l.Scope().Pids(); err != nil || len(pids) > 0 {
			t.Errorf("a scope that is gone holds %v, %v", pids, err)
		}
	})
	t.Run("other bounds than asked for", func(t *testing.T) {
		k, _, l, _, _ := begin(t)
		files := map[string]string{"memory.max": "max"}
		for f, text := range asAsked {
			if f != "memory.max" {
				files[f] = text
			}
		}
		k.start(t, l, files)
		err := l.Made()
		if !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), "memory -1 instead of 1073741824") {
			t.Errorf("%v", err)
		}
	})
	t.Run("a tighter slice", func(t *testing.T) {
		k, _, l, _, _ := begin(t)
		k.start(t, l, asAsked)
		k.put(filepath.Join(k.root, "user.slice"), "memory.max", "1048576")
		if err := l.Made(); !errors.Is(err, engine.ErrRefused) {
			t.Errorf("%v", err)
		}
	})
	t.Run("never made", func(t *testing.T) {
		_, _, l, b, u := begin(t)
		if err := l.Made(); !errors.Is(err, engine.ErrUnknown) {
			t.Errorf("%v", err)
		}
		if err := errors.Join(l.Scope().Kill(within(t, time.Second)), l.Remove(within(t, time.Second))); err != nil || owned(b, l) {
			t.Errorf("%v, owned is %t", err, owned(b, l))
		}
		if len(u.asked) != 1 {
			t.Error("systemd was not asked about a unit without a group")
		}
	})
	t.Run("on its way", func(t *testing.T) {
		k, _, l, b, _ := begin(t)
		k.start(t, l, asAsked)
		if err := l.Made(); err != nil {
			t.Fatal(err)
		}
		// The kernel has removed its files, and its folder soon.
		path := l.Scope().Path()
		if err := errors.Join(os.Remove(filepath.Join(path, "cgroup.events")), os.Remove(filepath.Join(path, "cgroup.procs"))); err != nil {
			t.Fatal(err)
		}
		if pids, err := l.Scope().Pids(); err != nil || len(pids) > 0 {
			t.Errorf("it holds %v, %v", pids, err)
		}
		if err := l.Scope().Kill(within(t, 50*time.Millisecond)); err == nil {
			t.Error("a group that stays without its files counts as killed")
		}
		removed := make(chan error, 1)
		time.AfterFunc(20*time.Millisecond, func() { removed <- os.RemoveAll(path) })
		if err := errors.Join(l.Scope().Kill(within(t, 10*time.Second)), <-removed, l.Remove(within(t, 10*time.Second))); err != nil || owned(b, l) {
			t.Errorf("%v, owned is %t", err, owned(b, l))
		}
	})
	t.Run("another group of its name", func(t *testing.T) {
		k, _, l, _, _ := begin(t)
		k.start(t, l, asAsked)
		if err := l.Made(); err != nil {
			t.Fatal(err)
		}
		l.nodes[0].ino++
		if _, known := l.Read(nil).Get(); known {
			t.Error("bounds of somebody else's group were read")
		}
		if err := l.Scope().Kill(within(t, time.Second)); err != nil {
			t.Error(err)
		}
	})
	t.Run("a host with v1", func(t *testing.T) {
		ws, _ := workspace(t)
		_, err := NewScope(ws, &Owner{at: layout{v2: &hierarchy{mount: "/x", rel: "/", path: "/"}}, limits: map[string]int{}}, "slot-a", resources)
		if !errors.Is(err, engine.ErrRefused) {
			t.Error(err)
		}
	})
}

// What systemd has not given away is not ours to nest in.
func TestDelegated(t *testing.T) {
	_, at := newUnifiedTree(t)
	if err := at.delegated(); err != nil {
		t.Errorf("a host without systemd: %v", err)
	}
	at.systemd = true
	if err := at.delegated(); !errors.Is(err, engine.ErrRefused) || !strings.Contains(engine.Failure(err).Hint, "Delegate=yes") {
		t.Errorf("a group of systemd's: %v", err)
	}
	if err := setDelegate(at.v2.dir(), "0"); err != nil {
		t.Fatal(err)
	}
	if err := at.delegated(); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("a group that is marked as not given away: %v", err)
	}
	if err := setDelegate(at.v2.dir(), "1"); err != nil {
		t.Fatal(err)
	}
	inner := filepath.Join(at.v2.dir(), "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, rel := range []string{"/user.slice", "/user.slice/inner"} {
		at.v2.rel = rel
		if err := at.delegated(); err != nil {
			t.Errorf("%s: %v", rel, err)
		}
	}
}

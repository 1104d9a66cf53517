package drums

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/drums/pages"
	"github.com/drumsbench/drumsbench/arms/tree/treetest"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// lives keeps the tenancies of a run's restores.
type lives struct {
	*Arm
	all []*tenancy
}

func (l *lives) Restore(ctx context.Context, ws *engine.Workspace, r engine.Root, cp engine.Checkpoint, p engine.Place, params bench.RestoreParams) (engine.Stopped, error) {
	got, err := l.Arm.Restore(ctx, ws, r, cp, p, params)
	if s, ok := got.(*stopped); ok {
		l.all = append(l.all, s.now)
	}
	return got, err
}

// A run whose slots get their memory while they run passes every gate: the first restore records what the others get pushed.
func TestWorkingSet(t *testing.T) {
	m := manifest(t, "rollouts=1")
	m.Arms.Drums.Pages = workingSet
	arm := &lives{Arm: newArm(t, m)}
	res, _, rec := execute(t, arm, m, "restore")
	if res.Verdict != engine.RunPassed {
		t.Fatalf("%s: %s", res.Verdict, rec.Reason)
	}
	if len(arm.all) != 3 {
		t.Fatalf("%d restores", len(arm.all))
	}
	for i, now := range arm.all {
		s := now.filled
		if s == nil || s.Lazy == 0 || s.PushNS < 0 || s.Missing == 0 || (s.Set == 0) != (i == 0) || (s.Pushed == 0) != (i == 0) || (s.Recorded > 0) != (i == 0) {
			t.Errorf("restore %d: %+v", i, s)
		} else {
			t.Logf("restore %d: %+v", i, *s)
		}
	}
}

// filling is a slot that can be dumped and restored, its memory coming back while it runs.
type filling struct {
	treetest.Made
	t   *testing.T
	m   bench.Manifest
	arm *Arm
	now *slot
}

func newFilling(t *testing.T) *filling {
	t.Helper()
	m := manifest(t)
	m.Arms.Drums.Pages = workingSet
	s := harness.Make(t, m)
	return &filling{Made: s, t: t, m: m, arm: s.Arm.(*Arm), now: s.Slot.(*slot)}
}

func (f *filling) release() { f.Release(f.t, f.now, f.arm) }

func (f *filling) dump() engine.Checkpoint {
	f.t.Helper()
	live := f.Ready(f.t, f.now)
	p := bench.DumpParams{Port: f.m.Guest.Server.Port, Policy: *f.m.Checkpoint, Exclude: []string{}, Canary: f.m.Canary, Workload: bench.SHA256(strings.Repeat("0", 64))}
	cp, _, err := f.now.Dump(f.t.Context(), p, engine.GuestReference{Live: live.Live})
	if err != nil {
		f.t.Fatal(err)
	}
	return cp
}

func (f *filling) restore(cp engine.Checkpoint) {
	f.t.Helper()
	p := bench.RestoreParams{Slot: "slot-0", Resources: f.m.Resources, Policy: *f.m.Checkpoint, Exclude: []string{}}
	got, err := f.arm.Restore(f.t.Context(), f.now.ws, f.now.root, cp, f.now, p)
	if err != nil {
		f.t.Fatal(err)
	}
	resumed, err := got.Resume(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	f.now = resumed.(*slot)
	if live := f.Ready(f.t, f.now); live.Live.Token != cp.Handle.Reference.Live.Token {
		f.t.Error("another memory came back")
	}
	if err := f.now.BecameReady(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

// A slot whose memory is not all there is dumped with all of it, and what was dumped so comes back.
func TestDumpOfAFillingSlot(t *testing.T) {
	f := newFilling(t)
	defer f.release()
	for range 2 {
		cp := f.dump()
		if f.now.now.pages != nil {
			t.Error("pages of a slot that was dumped are filled still")
		}
		f.restore(cp)
		if watched := unwatched(f.now.now.Pid); !errors.Is(watched, engine.ErrRefused) {
			t.Errorf("no page of a restored slot is missing: %v", watched)
		}
	}
	// One that outlives its engine gets the rest first.
	if _, err := f.now.Handle(); err != nil || f.now.now.pages != nil {
		t.Errorf("%v, pages %v", err, f.now.now.pages)
	}
	if err := unwatched(f.now.now.Pid); err != nil {
		t.Error(err)
	}
	f.Ready(t, f.now)
}

// A slot whose server of pages dies is dead, says why, cannot be dumped, and can be reset.
func TestTheServerOfPagesDies(t *testing.T) {
	f := newFilling(t)
	defer f.release()
	cp := f.dump()
	f.restore(cp)
	if err := unix.Kill(f.arm.filler.server.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); f.now.Alive() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the slot lives without its pages")
		}
	}
	if err := f.now.Alive(); !errors.Is(err, pages.ErrLost) || !errors.Is(err, engine.ErrDead) {
		t.Errorf("%v", err)
	}
	if _, _, err := f.now.Dump(t.Context(), bench.DumpParams{}, engine.GuestReference{}); !errors.Is(err, pages.ErrLost) || !errors.Is(err, engine.ErrRefused) {
		t.Errorf("dump: %v", err)
	}
	f.restore(cp)
}

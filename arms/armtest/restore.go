package armtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps/gate"
)

// A reset: the stopped tree is what was dumped, nothing of it runs before
// Resume, and then it goes on where it was.
func testRestoreInPlace(t *testing.T, h Harness) {
	cp := h.checkpoint(t)
	r := begin(t, h)
	defer r.finish()
	first := r.resume(r.restore(cp, nil, "slot-0"))
	r.judgeResumed(first, cp)
	r.write(first, r.path("kept"), "changed after the dump")
	r.write(first, r.path("new"), "made after the dump")

	stopped := r.restore(cp, first, "slot-0")
	if stopped.Name() != "slot-0" {
		t.Errorf("the restored slot's name is %q", stopped.Name())
	}
	r.judgeStopped(stopped, cp)
	o := stopped.Observe(r.ctx(), engine.AspectLocks, engine.AspectMounts, engine.AspectLimits, engine.AspectProcesses, engine.AspectState)
	for name, view := range map[string]bench.View{
		"locks": o.Locks.View(), "mounts": o.Mounts.View(), "limits": o.Limits.View(), "processes": o.Processes.View(), "state": o.State.View(),
	} {
		// An arm without a host view has the guest's, and says so.
		if view != engine.ViewStopped && !(view == engine.ViewGuest && r.differsBy(engine.GuestViewDifference)) {
			t.Errorf("the view of %s is %q, want %q", name, view, engine.ViewStopped)
		}
	}
	// The slot of before is the same place; whoever still has it must not reach a guest that runs.
	ctx, cancel := context.WithTimeout(r.ctx(), 300*time.Millisecond)
	defer cancel()
	if p, err := r.client(first).Probe(ctx); err == nil {
		t.Errorf("the guest answers before it was resumed: %+v", p.Live)
	}
	r.judgeStopped(stopped, cp)
	slot := r.resume(stopped)
	r.judgeResumed(slot, cp)
	r.has(slot, r.path("new"), "")
	if _, err := stopped.Resume(r.ctx()); err == nil {
		// Resume is not idempotent; an arm may say so or do nothing, but the slot goes on.
		r.answers(slot)
	}
	if _, _, err := slot.Dump(r.ctx(), r.dumpParams(), r.reference(slot)); err != nil && !errors.Is(err, engine.ErrRefused) {
		t.Errorf("dump of a restored slot: %v, want a checkpoint or a refusal", describe(err))
	}
}

// differsBy says whether the arm declares a difference.
func (r *run) differsBy(name string) bool {
	return slices.ContainsFunc(r.arm.Describe().Differences, func(d bench.Difference) bool { return d.Name == name })
}

func testResets(t *testing.T, h Harness) {
	cp := h.checkpoint(t)
	r := begin(t, h)
	defer r.finish()
	var place engine.Place
	var work []string
	for i := range h.Resets {
		stopped := r.restore(cp, place, "slot-0")
		r.judgeStopped(stopped, cp)
		slot := r.resume(stopped)
		r.judgeResumed(slot, cp)
		r.has(slot, r.path("dirt"), "")
		r.write(slot, r.path("dirt"), fmt.Sprint(i))
		place = slot
		// Nothing piles up: as many things lie in the scratch directory as after the first reset.
		if now := names(t, r.ws.Work); i == 0 {
			work = now
		} else if len(now) != len(work) {
			t.Errorf("after reset %d the scratch directory holds %q, after the first %q", i, now, work)
		}
		if t.Failed() {
			t.Fatalf("reset %d of %d", i, h.Resets)
		}
	}
	if _, err := checkpoint.Verify(r.ctx(), cp); err != nil {
		t.Errorf("the checkpoint after %d resets: %v", h.Resets, describe(err))
	}
}

// testChain dumps what was restored, three times over: each checkpoint has what
// was done since the one before, needs no other, and leaves the others alone.
func testChain(t *testing.T, h Harness) {
	first := h.checkpoint(t)
	r := begin(t, h)
	defer r.finish()
	cp, place := first, engine.Place(nil)
	for i := range 3 {
		stopped := r.restore(cp, place, "slot-0")
		r.judgeStopped(stopped, cp)
		slot := r.resume(stopped)
		r.judgeResumed(slot, cp)
		r.write(slot, r.path(fmt.Sprint("only-", i)), "x")
		if i > 0 {
			from, to := r.path(fmt.Sprint("only-", i-1)), r.path(fmt.Sprint("was-", i-1))
			r.has(slot, from, "x")
			if out, err := r.client(slot).Execute(r.ctx(), []string{"mv", from, to}, time.Minute); err != nil || out.Exit != 0 {
				t.Fatalf("mv: %+v, %v", out, err)
			}
		}
		if i > 1 {
			r.has(slot, r.path(fmt.Sprint("only-", i-2)), "")
			r.has(slot, r.path(fmt.Sprint("was-", i-2)), "x")
		}
		cp, place = r.dump(slot)
		if cp.Dir == first.Dir {
			t.Fatal("the second checkpoint lies where the first does")
		}
		r.passes(gate.Checkpoint, "handle", gate.JudgeCheckpoint(cp.Handle))
	}
	// The first is as it was, whatever was built on it.
	if hashed, err := checkpoint.Verify(r.ctx(), first); err != nil || hashed != 0 {
		t.Errorf("the first checkpoint: %v, %d files were hashed again", describe(err), hashed)
	}
	slot := r.resume(r.restore(first, place, "slot-0"))
	r.judgeResumed(slot, first)
	r.has(slot, r.path("only-0"), "")
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// Siblings start from one checkpoint at the same time and know nothing of each other.
func testSiblings(t *testing.T, h Harness, n int) {
	cp := h.checkpoint(t)
	r := begin(t, h)
	defer r.finish()
	var place engine.Place
	together := func(f func(k int) error) {
		t.Helper()
		errs := make([]error, n)
		var wg sync.WaitGroup
		for k := range n {
			wg.Go(func() { errs[k] = f(k) })
		}
		wg.Wait()
		for k, err := range errs {
			if err != nil {
				t.Errorf("slot-%d: %v", k, describe(err))
			}
		}
	}
	for range 2 { // the first round makes the siblings, the second resets them
		ctx := r.ctx()
		stopped, slots := make([]engine.Stopped, n), make([]engine.Slot, n)
		var mu sync.Mutex
		old := map[int]engine.Place{}
		for k, p := range r.places {
			old[k] = p
		}
		old[0] = place
		together(func(k int) (err error) {
			mu.Lock()
			p := old[k]
			mu.Unlock()
			stopped[k], err = r.arm.Restore(ctx, r.ws, r.root, cp, p, r.restoreParams(fmt.Sprintf("slot-%d", k)))
			return err
		})
		if t.Failed() {
			for k, s := range stopped {
				if s != nil && old[k] == nil {
					r.keep(s)
				}
			}
			return
		}
		for k, s := range stopped {
			if old[k] == nil {
				r.keep(s)
			}
			r.judgeStopped(s, cp)
		}
		together(func(k int) (err error) {
			slots[k], err = stopped[k].Resume(ctx)
			return err
		})
		if t.Failed() {
			return
		}
		for k, s := range slots {
			r.judgeResumed(s, cp)
			r.has(s, r.path("mine"), "")
			r.write(s, r.path("mine"), fmt.Sprint("slot ", k))
			r.write(s, r.path("kept"), fmt.Sprint("changed in slot ", k))
		}
		for k, s := range slots {
			r.has(s, r.path("mine"), fmt.Sprint("slot ", k))
			r.has(s, r.path("kept"), fmt.Sprint("changed in slot ", k))
		}
		// One that ends takes no other with it.
		if err := slots[n-1].Vacate(r.ctx()); err != nil {
			t.Errorf("vacate: %v", describe(err))
		}
		r.dead(slots[n-1])
		for _, s := range slots[:n-1] {
			r.answers(s)
		}
		place = slots[0]
	}
}

// Case 12: a checkpoint whose files do not hold is refused, the file named,
// before anything is ended.
func testDamaged(t *testing.T, h Harness) {
	cp := h.checkpoint(t)
	r := begin(t, h)
	defer r.finish()
	slot := r.resume(r.restore(cp, nil, "slot-0"))
	token := r.ready(slot).Live.Token
	if len(cp.Handle.Files) == 0 {
		t.Fatal("the checkpoint seals no file")
	}
	victim := filepath.Join(cp.Dir, cp.Handle.Files[len(cp.Handle.Files)-1].Path)
	content, err := os.ReadFile(victim)
	if err != nil {
		t.Fatal(err)
	}
	aside := filepath.Join(r.dir, "aside")
	extra := filepath.Join(cp.Dir, "extra")
	for _, c := range []struct {
		name         string
		damage, heal func() error
		file         string
	}{
		{"a byte is appended", func() error { return appendByte(victim) }, func() error { return os.Truncate(victim, int64(len(content))) }, victim},
		{"a file is missing", func() error { return os.Rename(victim, aside) }, func() error { return os.Rename(aside, victim) }, victim},
		{"a file was added", func() error { return os.WriteFile(extra, []byte("x"), 0o600) }, func() error { return os.Remove(extra) }, extra},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.damage(); err != nil {
				t.Fatal(err)
			}
			s, err := r.arm.Restore(r.ctx(), r.ws, r.root, cp, slot, r.restoreParams("slot-0"))
			if !errors.Is(err, engine.ErrRefused) {
				t.Errorf("restore: %v, want a refusal", describe(err))
			}
			if err != nil && !strings.Contains(err.Error(), filepath.Base(c.file)) {
				t.Errorf("the refusal does not name %s: %v", c.file, describe(err))
			}
			if err == nil {
				slot = r.resume(s)
			}
			if r.answers(slot).Live.Token != token {
				t.Error("the old slot was ended")
			}
			if err := c.heal(); err != nil {
				t.Fatal(err)
			}
		})
	}
	// Healed, it is the same content with another stat identity: hashed again, and good.
	stopped := r.restore(cp, slot, "slot-0")
	r.judgeStopped(stopped, cp)
}

func appendByte(path string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte{0})
	return errors.Join(err, f.Close())
}

// A checkpoint of another arm, image or host is refused, and the old slot runs on.
func testForeign(t *testing.T, h Harness) {
	cp := h.checkpoint(t)
	r := begin(t, h)
	defer r.finish()
	slot := r.resume(r.restore(cp, nil, "slot-0"))
	token := r.ready(slot).Live.Token
	for name, change := range map[string]func(*bench.Checkpoint){
		"arm":   func(c *bench.Checkpoint) { c.Arm = "another" },
		"image": func(c *bench.Checkpoint) { c.Image = bench.SHA256(strings.Repeat("0", 64)) },
		"facts": func(c *bench.Checkpoint) { c.Facts = nil },
		"host": func(c *bench.Checkpoint) {
			c.Facts = append([]bench.Fact{}, c.Facts...)
			for i := range c.Facts {
				c.Facts[i].Value += "-other"
			}
		},
	} {
		other := cp
		change(&other.Handle)
		s, err := r.arm.Restore(r.ctx(), r.ws, r.root, other, slot, r.restoreParams("slot-0"))
		if !errors.Is(err, engine.ErrRefused) {
			t.Errorf("restore of a checkpoint of another %s: %v, want a refusal", name, describe(err))
		}
		if err == nil {
			slot = r.resume(s)
		}
	}
	if r.answers(slot).Live.Token != token {
		t.Error("the old slot was ended")
	}
}

// A checkpoint serves a later run: another arm, another workspace.
func testLaterRun(t *testing.T, h Harness) {
	cp := h.checkpoint(t) // of a run that is over
	later := begin(t, h)
	defer later.finish()
	opened, err := checkpoint.Open(cp.Dir)
	if err != nil {
		t.Fatalf("open: %v", describe(err))
	}
	stopped := later.restore(opened, nil, "slot-7")
	later.judgeStopped(stopped, opened)
	slot := later.resume(stopped)
	later.judgeResumed(slot, opened)
	if _, err := checkpoint.Verify(later.ctx(), opened); err != nil {
		t.Errorf("the checkpoint after its use: %v", describe(err))
	}
}

// Vacate and Release are idempotent, at each stage of a slot's life.
func testRelease(t *testing.T, h Harness) {
	r := begin(t, h)
	defer r.finish()
	twice := func(what string, f func(context.Context) error) {
		t.Helper()
		for range 2 {
			// As the executor calls it: the run was cancelled, its end is not.
			parent, cancel := context.WithCancel(r.ctx())
			cancel()
			if err := f(context.WithoutCancel(parent)); err != nil {
				t.Errorf("%s: %v", what, describe(err))
			}
		}
	}
	s := r.prepared("slot-0")
	twice("vacate a running slot", s.Vacate)
	r.dead(s)
	s, err := r.arm.Provision(r.ctx(), r.ws, r.root, s, r.provisionParams("slot-0"))
	if err != nil {
		t.Fatalf("provision in a vacated place: %v", describe(err))
	}
	r.ready(s)
	r.write(s, string(h.Manifest.Canary.File), canaryText)
	r.write(s, r.path("kept"), "as at the dump")
	cp, place := r.dump(s)
	twice("vacate a dumped place", place.Vacate)
	stopped := r.restore(cp, place, "slot-0")
	twice("vacate a stopped slot", stopped.Vacate)
	if _, err := stopped.Resume(r.ctx()); err == nil {
		t.Error("a vacated slot was resumed")
	}
	twice("release a vacated place", stopped.Release)
	stopped = r.restore(cp, nil, "slot-1")
	twice("release a stopped slot", stopped.Release)
	slot := r.resume(r.restore(cp, nil, "slot-2"))
	twice("release a running slot", slot.Release)
	r.dead(slot)
	twice("vacate a released slot", slot.Vacate)
}

package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// spot is a place that remembers whether it was released.
type spot struct {
	name     string
	released *[]string
}

func (s *spot) Name() string                 { return s.name }
func (s *spot) Vacate(context.Context) error { return nil }
func (s *spot) Release(context.Context) error {
	*s.released = append(*s.released, s.name)
	return nil
}

// ground is a root that remembers whether it was released.
type ground struct{ released *[]string }

func (g *ground) Facts() []bench.Fact          { return nil }
func (g *ground) Verify(context.Context) error { return nil }
func (g *ground) Release(context.Context) error {
	*g.released = append(*g.released, "root")
	return nil
}

// twoSlots is a plan of two slots on one root, in each of which a step can fail,
// and which are released one by one, then the root.
func twoSlots(s *script, fail map[string]error, released *[]string) {
	spec := func(id, slot string, release bool) StepSpec {
		return StepSpec{ID: id, Slot: slot, Deadline: time.Second, Release: release}
	}
	root := bind(s, spec("mount", "", false), func(_ context.Context, x *Exec) (Root, error) {
		g := &ground{released}
		x.OnRelease(g.Release)
		return g, nil
	})
	sealed := bind(s, spec("seal", "", false), func(context.Context, *Exec) (Checkpoint, error) { return Checkpoint{Dir: "/checkpoint"}, nil })
	var ends []Input
	var places []Promise[Place]
	for _, slot := range []string{"slot-0", "slot-1"} {
		made := bind(s, spec("make "+slot, slot, false), func(_ context.Context, x *Exec) (Place, error) {
			if err := fail["make "+slot]; err != nil {
				return nil, err
			}
			p := &spot{slot, released}
			x.OnRelease(p.Release)
			return p, nil
		}, Read(root), After(sealed))
		used := bind(s, spec("use "+slot, slot, false), func(context.Context, *Exec) (Judged, error) { return Judged{}, fail["use "+slot] }, Read(made))
		ends, places = append(ends, After(used)), append(places, made)
	}
	for k, slot := range []string{"slot-0", "slot-1"} {
		bind(s, spec("release "+slot, slot, true), func(ctx context.Context, x *Exec) (Released, error) {
			if p := In[Place](x, 0); p != nil {
				return Released{}, p.Release(ctx)
			}
			return Released{}, nil
		}, append([]Input{Move(places[k])}, ends...)...)
	}
	bind(s, spec("release root", "", true), func(ctx context.Context, x *Exec) (Released, error) {
		return Released{}, In[Root](x, 0).Release(ctx)
	}, append([]Input{Read(root)}, ends...)...)
}

func TestKeep(t *testing.T) {
	bad := errors.New("no")
	for name, c := range map[string]struct {
		fail     map[string]error
		keep     func(bench.RunVerdict) bool
		kept     string
		verdict  bench.RunVerdict // that Keep is told
		notRun   []string
		released []string // each at least once
	}{
		"nobody asks": {fail: map[string]error{"use slot-0": bad}, released: []string{"root", "slot-0", "slot-1"}},
		"asked, and not kept": {fail: map[string]error{"use slot-0": bad}, keep: func(bench.RunVerdict) bool { return false },
			verdict: RunFailed, released: []string{"root", "slot-0", "slot-1"}},
		"the slot that failed": {fail: map[string]error{"use slot-1": bad}, keep: func(bench.RunVerdict) bool { return true },
			verdict: RunFailed, kept: "slot-1", notRun: []string{"release root", "release slot-1"}, released: []string{"slot-0"}},
		"nothing failed": {keep: func(bench.RunVerdict) bool { return true },
			verdict: RunPassed, kept: "slot-0", notRun: []string{"release root", "release slot-0"}, released: []string{"slot-1"}},
		"unknown blocks": {fail: map[string]error{"use slot-0": ErrUnknown}, keep: func(bench.RunVerdict) bool { return true },
			verdict: RunBlocked, kept: "slot-0", notRun: []string{"release root", "release slot-0"}, released: []string{"slot-1"}},
		"the slot that failed was never made": {fail: map[string]error{"make slot-0": bad}, keep: func(bench.RunVerdict) bool { return true },
			verdict: RunFailed, kept: "slot-1", notRun: []string{"release root", "release slot-1", "use slot-0"}},
		"no slot was made": {fail: map[string]error{"make slot-0": bad, "make slot-1": bad}, keep: func(bench.RunVerdict) bool { return true },
			notRun: []string{"use slot-0", "use slot-1"}, released: []string{"root"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			var released []string
			twoSlots(s, c.fail, &released)
			e := s.executor()
			e.Parallel = 1
			asked := 0
			var told bench.RunVerdict
			if c.keep != nil {
				e.Keep = func(v bench.RunVerdict) bool {
					asked++
					told = v
					return c.keep(v)
				}
			}
			r, err := e.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if told != c.verdict || asked > 1 {
				t.Errorf("asked %d times, told %q, want %q", asked, told, c.verdict)
			}
			if (r.Kept != nil) != (c.kept != "") {
				t.Fatalf("kept %+v", r.Kept)
			}
			if k := r.Kept; k != nil && (k.Slot != c.kept || k.Place.Name() != c.kept || k.Root == nil || k.Checkpoint.Dir != "/checkpoint") {
				t.Errorf("kept %+v, want %s", k, c.kept)
			}
			var notRun []string
			for id, v := range verdicts(r) {
				if v == NotRun {
					notRun = append(notRun, id)
				}
			}
			slices.Sort(notRun)
			if !slices.Equal(notRun, c.notRun) {
				t.Errorf("not run: %q, want %q", notRun, c.notRun)
			}
			slices.Sort(released)
			if got := slices.Compact(released); !slices.Equal(got, c.released) {
				t.Errorf("released %q, want %q", got, c.released)
			}
		})
	}
}

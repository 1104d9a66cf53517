package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// chainPlan is a set-up that gives a place, and rollouts, each of which needs the one before; two of a window.
func chainPlan(t *testing.T, ran *[]string) (*Plan, Bindings) {
	t.Helper()
	b := NewBuilder()
	minute := time.Minute
	spec := func(id, kind, window string, rollout int64) StepSpec {
		s := StepSpec{ID: id, Kind: kind, Deadline: minute, Window: window}
		if rollout >= 0 {
			s.Rollout = &rollout
		}
		return s
	}
	mount := Add[Canary](b, spec("mount", "mount", "", -1))
	dump := Add[Score](b, spec("base/dump", "dump", "", -1), Read(mount))
	// Needs nothing but the dump: it must not run before the dump's value is there.
	Add[Measured](b, spec("base/gate", "gate", "", -1), Read(dump))
	var last []Input
	for i, name := range []string{"r0", "r1", "r2", "r3"} {
		window := []string{"a", "b", "c", "c"}[i]
		restore := Add[Judged](b, spec(name+"/restore", "restore", window, int64(i)), append([]Input{Read(mount), Read(dump)}, last...)...)
		act := Add[Acted](b, spec(name+"/act", "act", "", int64(i)), After(restore))
		if i < 2 {
			last = []Input{After(act)}
		}
	}
	p, err := b.Build("0000000000000000000000000000000000000000000000000000000000000000", "restore")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex // steps run beside each other
	note := func(x *Exec) {
		mu.Lock()
		defer mu.Unlock()
		*ran = append(*ran, x.Step().Id)
	}
	return p, Bindings{}.Add(
		Bind("mount", func(_ context.Context, x *Exec, _ struct{}) (Canary, error) { note(x); return "image", nil }),
		Bind("dump", func(_ context.Context, x *Exec, _ struct{}) (Score, error) { note(x); return Score{Value: 1}, nil }),
		Bind("restore", func(_ context.Context, x *Exec, _ struct{}) (Judged, error) {
			note(x)
			if In[Canary](x, 0) != "image" || In[Score](x, 1).Value != 7 {
				return Judged{}, errors.New("it was given something else")
			}
			return Judged{}, nil
		}),
		Bind("gate", func(_ context.Context, x *Exec, _ struct{}) (Measured, error) {
			note(x)
			if In[Score](x, 0).Value != 7 {
				return Measured{}, errors.New("it was given something else")
			}
			return Measured{}, nil
		}),
		Bind("act", func(_ context.Context, x *Exec, _ struct{}) (Acted, error) { note(x); return Acted{}, nil }))
}

func passed(ids ...string) map[string]bench.Receipt {
	m := map[string]bench.Receipt{}
	for _, id := range ids {
		m[id] = bench.Receipt{Event: "step", Step: id, Verdict: Pass}
	}
	return m
}

func TestKeepForResume(t *testing.T) {
	var ran []string
	p, _ := chainPlan(t, &ran)
	dumps := func(s bench.Step) bool { return s.Kind == "dump" }
	for name, c := range map[string]struct {
		ended      []string
		kept, void []string
	}{
		"before the dump":  {[]string{"mount"}, nil, []string{"mount"}},
		"a rollout ended":  {[]string{"mount", "base/dump", "r0/restore", "r0/act", "r1/restore"}, []string{"base/dump", "r0/act", "r0/restore"}, []string{"mount", "r1/restore"}},
		"half of a window": {[]string{"mount", "base/dump", "r0/restore", "r0/act", "r1/restore", "r1/act", "r2/restore", "r3/restore", "r2/act"}, []string{"base/dump", "r0/act", "r0/restore", "r1/act", "r1/restore"}, []string{"mount", "r2/act", "r2/restore", "r3/restore"}},
	} {
		kept, void, needed, err := p.Keep(passed(c.ended...), dumps)
		var stays []string
		for id := range kept {
			stays = append(stays, id)
		}
		slices.Sort(stays)
		slices.Sort(void)
		if err != nil || !slices.Equal(stays, c.kept) || !slices.Equal(void, c.void) || len(kept) > 0 && !slices.Equal(needed, []string{"base/dump"}) {
			t.Errorf("%s: kept %q, void %q, needed %q, %v", name, stays, void, needed, err)
		}
	}
	interrupted := passed("mount", "base/dump", "r0/restore", "r0/act")
	interrupted["r0/act"] = bench.Receipt{Event: "step", Step: "r0/act", Verdict: VerdictUnknown, Error: &bench.Failure{Cause: CauseInterrupted}}
	if kept, _, _, err := p.Keep(interrupted, dumps); err != nil || len(kept) != 1 {
		t.Errorf("a rollout with an interrupted step stays: %v, %v", kept, err)
	}
	if _, _, _, err := p.Keep(passed("mount", "base/dump"), func(bench.Step) bool { return false }); !errors.Is(err, ErrRefused) {
		t.Errorf("a value that cannot be had again: %v", err)
	}
}

// recorded keeps receipts.
type recorded []bench.Receipt

func (r *recorded) Append(x bench.Receipt) error { *r = append(*r, x); return nil }

func TestResumedRun(t *testing.T) {
	var ran []string
	p, bindings := chainPlan(t, &ran)
	kept := passed("base/dump", "r0/restore", "r0/act")
	since := time.Now().Add(-time.Hour)
	var sink recorded
	res, err := (&Executor{Plan: p, Bindings: bindings, Workspace: &Workspace{}, Sink: &sink, Resume: &Resume{Kept: kept, Since: since,
		Receipt: bench.Receipt{Void: []string{"mount", "r1/restore"}},
		Late:    map[string]string{"base/dump": "mount"},
		Around: map[string]Around{"mount": func(_ context.Context, _ *Exec, own func() (any, error)) (any, map[string]any, error) {
			v, err := own()
			time.Sleep(20 * time.Millisecond)
			return v, map[string]any{"base/dump": Score{Value: 7}}, err
		}},
	}}).Run(t.Context())
	if err != nil || res.Verdict != RunPassed {
		t.Fatalf("%s: %s: %v", res.Verdict, res.Reason, err)
	}
	slices.Sort(ran)
	if want := []string{"base/gate", "mount", "r1/act", "r1/restore", "r2/act", "r2/restore", "r3/act", "r3/restore"}; !slices.Equal(ran, want) {
		t.Errorf("it ran %q", ran)
	}
	if first := sink[0]; first.Event != "resume" || len(first.Void) != 2 || len(sink) != 10 {
		t.Errorf("%d receipts, the first %+v", len(sink), first)
	}
	if start, _ := time.ParseDuration(string(sink[1].Start) + "ns"); start < time.Hour || start > 2*time.Hour {
		t.Errorf("a step of the resumed run begins %s after the run's start", start)
	}
	// Where the value cannot be had again nothing that needs it runs, and the run ends.
	for _, ctx := range []context.Context{t.Context(), ended()} {
		ran = nil
		res, err = (&Executor{Plan: p, Bindings: bindings, Workspace: &Workspace{}, Resume: &Resume{Kept: kept, Since: since,
			Late: map[string]string{"base/dump": "mount"},
			Around: map[string]Around{"mount": func(context.Context, *Exec, func() (any, error)) (any, map[string]any, error) {
				return nil, nil, ErrRefused
			}},
		}}).Run(ctx)
		if err != nil || res.Verdict == RunPassed || len(ran) > 0 || res.Outcomes[2].Verdict != NotRun {
			t.Errorf("%s, it ran %q: %v", res.Verdict, ran, err)
		}
	}
	// What was kept and bad keeps what needs it from running, as it did before.
	ran = nil
	kept["r0/act"] = bench.Receipt{Event: "step", Step: "r0/act", Verdict: Fail}
	res, err = (&Executor{Plan: p, Bindings: bindings, Workspace: &Workspace{}, Resume: &Resume{Kept: kept, Since: since}}).Run(t.Context())
	if err != nil || res.Verdict != RunFailed || slices.Contains(ran, "r1/restore") {
		t.Errorf("%s, it ran %q: %v", res.Verdict, ran, err)
	}
}

func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

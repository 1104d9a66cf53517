package engine

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// An engine that was stopped, or slept through a deadline, has measured nothing: the step that ran
// meanwhile is unknown and interrupted, whatever it came to, nothing more is begun, and what was made is released.
func TestPausedEngine(t *testing.T) {
	for _, sleeps := range []bool{false, true} {
		b := NewBuilder()
		zero := int64(0)
		first := Add[Judged](b, StepSpec{ID: "first", Kind: "first", Deadline: time.Minute, Rollout: &zero})
		second := Add[Judged](b, StepSpec{ID: "second", Kind: "second", Deadline: 50 * time.Millisecond, Rollout: &zero}, After(first))
		third := Add[Judged](b, StepSpec{ID: "third", Kind: "first", Deadline: time.Minute, Rollout: &zero}, After(second))
		Add[Released](b, StepSpec{ID: "release", Kind: "release", Deadline: time.Minute, Release: true}, After(third))
		p, err := b.Build("0000000000000000000000000000000000000000000000000000000000000000", "restore")
		if err != nil {
			t.Fatal(err)
		}
		var said atomic.Value
		said.Store("")
		released := false
		var sink recorded
		res, err := (&Executor{Plan: p, Workspace: &Workspace{}, Sink: &sink, Paused: func() string { return said.Load().(string) }, Bindings: Bindings{}.Add(
			Bind("first", func(context.Context, *Exec, struct{}) (Judged, error) { return Judged{}, nil }),
			Bind("second", func(ctx context.Context, _ *Exec, _ struct{}) (Judged, error) {
				said.Store("it slept")
				if sleeps {
					<-ctx.Done()
					return Judged{}, ctx.Err()
				}
				return Judged{}, nil
			}),
			Bind("release", func(context.Context, *Exec, struct{}) (Released, error) {
				released = true
				return Released{}, nil
			}),
		)}).Run(t.Context())
		if err != nil || res.Verdict != RunBlocked || res.Reason != "it slept" || !released {
			t.Errorf("%s: %s, released %v, %v", res.Verdict, res.Reason, released, err)
		}
		i := slices.IndexFunc(sink, func(r bench.Receipt) bool { return r.Step == "second" })
		if r := sink[i]; r.Verdict != VerdictUnknown || r.Error == nil || r.Error.Cause != CauseInterrupted {
			t.Errorf("the step that ran meanwhile: %+v", r)
		}
		if o := res.Outcomes[2]; o.Step != "third" || o.Verdict != NotRun {
			t.Errorf("after it: %+v", o)
		}
	}
}

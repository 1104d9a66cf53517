package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A release step does not take away what a step that is not among its needs still
// holds: one gate of a slot fails at once, another is still looking at it.
func TestReleaseWaitsForWhoeverStillRuns(t *testing.T) {
	b := NewBuilder()
	spec := func(id string, release bool) StepSpec {
		return StepSpec{ID: id, Kind: id, Params: bench.ReleaseParams{}, Deadline: 10 * time.Second, Release: release}
	}
	made := Add[Ready](b, spec("make", false))
	fails := Add[Judged](b, spec("fails", false), Read(made))
	Add[Judged](b, spec("slow", false), Read(made))
	use := Add[Acted](b, spec("use", false), Read(made), After(fails))
	Add[Released](b, spec("release", true), After(use))
	plan, err := b.Build(bench.SHA256("0000000000000000000000000000000000000000000000000000000000000000"), "cold")
	if err != nil {
		t.Fatal(err)
	}
	var looking atomic.Bool
	started := make(chan struct{})
	bindings := Bindings{}.Add(
		Bind("make", func(context.Context, *Exec, bench.ReleaseParams) (Ready, error) { return Ready{}, nil }),
		Bind("fails", func(context.Context, *Exec, bench.ReleaseParams) (Judged, error) {
			<-started
			return Judged{}, errors.New("as planned")
		}),
		Bind("slow", func(context.Context, *Exec, bench.ReleaseParams) (Judged, error) {
			looking.Store(true)
			close(started)
			time.Sleep(100 * time.Millisecond)
			looking.Store(false)
			return Judged{}, nil
		}),
		Bind("use", func(context.Context, *Exec, bench.ReleaseParams) (Acted, error) { return Acted{}, nil }),
		Bind("release", func(context.Context, *Exec, bench.ReleaseParams) (Released, error) {
			if looking.Load() {
				return Released{}, errors.New("released while a step was looking")
			}
			return Released{}, nil
		}),
	)
	res, err := (&Executor{Plan: plan, Bindings: bindings, Parallel: 4}).Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range res.Outcomes {
		if o.Step == "release" && o.Verdict != Pass {
			t.Errorf("release ended %s: %+v", o.Verdict, o.Error)
		}
	}
}

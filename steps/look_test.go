package steps

import (
	"slices"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A manifest that asks for a person's eyes makes the run wait, with the question and
// a picture for each rollout that it names; what follows runs on. Without a picture
// there is nothing to decide by, and the run is blocked.
func TestLook(t *testing.T) {
	looks := func(r ran) (list []string) {
		for _, s := range r.plan.Steps {
			if strings.HasSuffix(s.Id, "/gate-look") {
				list = append(list, s.Id)
			}
		}
		return list
	}
	m := workload()
	m.Guest.Display = &bench.Display{Width: 64, Height: 64, Depth: 24}
	m.Experiment.Warmup, m.Experiment.Rollouts = 1, 2
	if r := execute(t, m, "restore"); len(looks(r)) > 0 || r.result.Verdict != engine.RunPassed {
		t.Errorf("nobody asked, and %v: %s", looks(r), r.result.Reason)
	}
	m.Review = &bench.ReviewPolicy{Question: "Is the desk as it was?", Screens: "first"}
	for _, reset := range []string{"restore", "cold"} {
		r := execute(t, m, reset)
		if got := looks(r); !slices.Equal(got, []string{"r3/gate-look"}) || r.result.Verdict != engine.RunReview {
			t.Errorf("%s: %v, the run %s: %s", reset, got, r.result.Verdict, r.result.Reason)
		}
		o := r.outcome(t, "r3/gate-look")
		if o.Verdict != engine.Review || o.Findings[0].Text != m.Review.Question {
			t.Errorf("%+v", o)
		}
		if o := r.outcome(t, "r4/gate-canary"); o.Verdict != engine.Pass {
			t.Errorf("what follows is %+v", o)
		}
	}
	m.Review.Screens = "each"
	if r := execute(t, m, "restore"); !slices.Equal(looks(r), []string{"r3/gate-look", "r4/gate-look"}) {
		t.Errorf("each: %v", looks(r))
	}
	m.Arms.Fake.Faults = []string{"no-picture"}
	r := execute(t, m, "restore")
	if o := r.outcome(t, "r3/gate-look"); o.Verdict != engine.VerdictUnknown || r.result.Verdict != engine.RunBlocked {
		t.Errorf("%+v, the run %s", o, r.result.Verdict)
	}
}

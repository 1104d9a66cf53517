package main

import (
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Each branch has its line, each check its count; a run that did not pass has no score, and one that is not sound has nothing.
func TestShowBranches(t *testing.T) {
	zero, one := 0.0, 1.0
	r := shownRun{state: verified{State: runSound}, record: bench.Record{Run: "x/fake-restore", Verdict: engine.RunPassed,
		Rollouts: []bench.Rollout{
			{Index: 1, Control: "oracle", Class: "success", Before: &zero, After: &one},
			{Index: 2, Branch: "left", Class: "success", Before: &zero, After: &one, Warmup: true},
			{Index: 3, Branch: "left", Class: "success", Before: &zero, After: &one},
			{Index: 4, Branch: "right", Class: "failed_valid", Before: &zero, After: &zero},
		},
		Steps: []bench.StepOutcome{{Step: "r3/gate-carried", Verdict: engine.Pass}, {Step: "r4/gate-carried", Verdict: engine.Fail}, {Step: "s0/gate-audit", Verdict: engine.Pass}},
	}}
	show := func(r shownRun) string {
		var b strings.Builder
		writeBranches(&b, []shownRun{r})
		return b.String()
	}
	want := `
BRANCHES OF x/fake-restore  N  CLASS         SCORE
left                        1  success       0.0->1.0
right                       1  failed_valid  0.0->0.0
siblings: carried 1/2, audit 1/1
`
	if got := show(r); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	r.record.Verdict = engine.RunFailed
	if got := show(r); strings.Contains(got, "->") || !strings.Contains(got, "failed_valid  -") {
		t.Error(got)
	}
	r.state.State = "damaged"
	if got := show(r); got != "" {
		t.Error(got)
	}
}

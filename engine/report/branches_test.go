package report

import (
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A run whose task branches has a line for each branch and one for each check between them; others have no such section.
func TestBranches(t *testing.T) {
	r := load(t, recordtest.Run{Rollouts: 4})
	if s, err := branchesSection(r); s != nil || err != nil {
		t.Fatalf("%+v, %v", s, err)
	}
	for i, name := range []bench.Name{"left", "right", "left", "right"} {
		r.Record.Rollouts[i].Branch = name
	}
	s, err := branchesSection(r)
	if err != nil || len(s.Tables) != 1 || !strings.Contains(s.Text[0], "began cold") {
		t.Fatalf("%+v, %v", s, err)
	}
	zero := 0.0
	r.Record.Rollouts[1].After, r.Record.Rollouts[1].Class = &zero, "failed_valid"
	r.Manifest.Task.Branching = &bench.Branching{Branches: []bench.Branch{
		{Name: "left", Act: []bench.Command{{Exec: []string{"mv", "a", "b"}}, {Exec: []string{"python3", "-c", "a\nprogram"}}}, Score: 1}, {Name: "right"}}}
	for _, id := range []string{"r0/gate-carried", "r1/gate-carried", "s0/gate-hygiene", "s0/isolate"} {
		r.Record.Steps = append(r.Record.Steps, bench.StepOutcome{Step: id, Kind: "gate", Verdict: engine.Pass})
	}
	r.Record.Steps[len(r.Record.Steps)-3].Verdict = engine.NotRun
	if s, err = branchesSection(r); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, table := range s.Tables {
		for _, row := range table.Rows {
			lines = append(lines, cells(row))
		}
	}
	want := []string{
		"left | mv a b; python3 -c … | slot-0 | 2 | success | 0.0 | 1.0 | 1",
		"right | nobody acts | slot-0 | 2 | failed_valid 1, success 1 | 0.0 | 0.0 1.0 | 0",
		"carried | what the prefix left is in the branch | 1 of 2",
		"hygiene | identity is each slot's own | 1 of 1",
		"isolate | no canary of another seen, and the deliberate leak was | 1 of 1",
	}
	if got := strings.Join(lines, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("%s", got)
	}
	// A run that did not pass has classes and no score.
	r.Record.Verdict = engine.RunFailed
	if s, err = branchesSection(r); err != nil || !strings.Contains(cells(s.Tables[0].Rows[0]), "success | - | - | 1") {
		t.Errorf("%+v, %v", s, err)
	}
	files := write(t, Input{Runs: []*Run{r}})
	if !strings.Contains(files["data/report.md"], "Each branch, over all rounds") {
		t.Error("data/report.md has no table of the branches")
	}
	for _, name := range []string{"data/tables.csv", "data/report.json"} {
		if !strings.Contains(files[name], "failed_valid 1, success 1") {
			t.Errorf("%s has no line of the branches", name)
		}
	}
}

package report

import (
	"fmt"
	"slices"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/stats"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// attempts counts what became of the rollouts of a run that were begun. They are
// failure counts, and so the one thing that a run that did not pass says as well: a
// rate of failures over those runs alone that had none is always 0.
type attempts struct {
	// begun are rollouts whose reset was started, controls and warm-ups among them.
	begun int
	// class counts them by what became of them.
	class map[bench.RolloutClass]int
	// resets are those whose state was to be compared, matches those that were equal.
	resets, matches int
	failures        []resetFailure
}

// resetFailure is a step that failed or was not learnt before its rollout's slot
// was usable, or that ran out of time wherever it stands.
type resetFailure struct {
	step    bench.StepOutcome
	gate    string
	rollout *bench.Rollout
}

// stateGate compares the state of a slot after a reset with the checkpoint's.
const stateGate = "state"

// attempts of the run.
func (r *Run) attempts() attempts {
	out := attempts{class: map[bench.RolloutClass]int{}}
	plan := map[string]bench.Step{}
	for _, s := range r.Plan.Steps {
		plan[s.Id] = s
	}
	rollouts := map[int64]*bench.Rollout{}
	for i := range r.Record.Rollouts {
		rollouts[r.Record.Rollouts[i].Index] = &r.Record.Rollouts[i]
	}
	acted := map[int64]bool{}
	for _, s := range r.Record.Steps {
		p := plan[s.Step]
		ran := s.Verdict != engine.NotRun
		gate := ""
		if s.Kind == "gate" {
			gate = r.gateOf(p.Params)
		}
		before := true
		var o *bench.Rollout
		if p.Rollout != nil {
			o = rollouts[*p.Rollout]
			if (s.Kind == "restore" || s.Kind == "provision") && ran && o != nil {
				out.begun++
				out.class[o.Class]++
			}
			if gate == stateGate && ran && s.Verdict != engine.NotApplicable {
				out.resets++
				if s.Verdict == engine.Pass {
					out.matches++
				}
			}
			acted[*p.Rollout] = acted[*p.Rollout] || s.Kind == "act" && ran
			before = !acted[*p.Rollout] && s.Kind != "evaluate" && s.Kind != "act"
		} else {
			before = false // what no rollout belongs to is on the list of steps
		}
		late := s.Error != nil && s.Error.Cause == engine.CauseDeadline
		if late || before && ran && engine.Stops(s.Verdict, p.Optional) {
			out.failures = append(out.failures, resetFailure{s, gate, o})
		}
	}
	return out
}

// line of a failure: which rollout, what failed, how, and why.
func (f resetFailure) line() []Cell {
	what, class, rollout := f.step.Kind, text("–"), text("–")
	if f.gate != "" {
		what = "gate " + f.gate
	}
	if f.rollout != nil {
		class, rollout = badge(f.rollout.Class), Cell{Text: fmt.Sprint(f.rollout.Index)}
	}
	how := "failed"
	switch {
	case f.step.Error != nil && f.step.Error.Cause == engine.CauseDeadline:
		how = "time-out"
	case f.step.Verdict == engine.VerdictUnknown:
		how = "unknown"
	case f.step.Error != nil && f.step.Error.Cause != "":
		how = f.step.Error.Cause
	}
	why := judged{Findings: f.step.Findings, Error: f.step.Error}.Why()
	return []Cell{text(f.step.Step), text(what), rollout, text(how), class, text(why)}
}

// outOf is a count with the number that it is of, and their share with its interval.
func outOf(k, n int) (count, share Cell) {
	count = Cell{Text: fmt.Sprintf("%d of %d", k, n)}
	if n == 0 {
		return Cell{Text: "–"}, Cell{Text: "–"}
	}
	e := stats.Share(k, n)
	value, interval := estimate(&e, "share")
	return count, text(value + ", " + interval)
}

// badClasses are the classes that are no valid rollout, in the order of a record's harm.
var badClasses = []bench.RolloutClass{record.EnvFailure, record.VerifierUnavailable, record.Contamination, record.Invalid}

// attemptsSection counts failures over the attempts of each arm and reset, over all
// runs whose directory is sound: those that failed are what it is about.
func attemptsSection(runs []*Run) (*Section, error) {
	type key struct{ arm, reset string }
	sums := map[key]*attempts{}
	count := map[key]int{}
	var order []key
	left := 0
	each := Table{Name: "failed-resets", Caption: "Each failed reset and each time-out, on its own line",
		Head: heads("Step", "What", "Rollout#", "How", "Class of the rollout", "Why", "Record")}
	for _, r := range runs {
		if !r.Sound() {
			left++
			continue
		}
		k := key{r.Record.Arm, r.Record.Reset}
		if sums[k] == nil {
			sums[k] = &attempts{class: map[bench.RolloutClass]int{}}
			order = append(order, k)
		}
		a, sum := r.attempts(), sums[k]
		count[k]++
		sum.begun += a.begun
		sum.resets += a.resets
		sum.matches += a.matches
		for c, n := range a.class {
			sum.class[c] += n
		}
		for _, f := range a.failures {
			sum.failures = append(sum.failures, f)
			each.Rows = append(each.Rows, append(f.line(), text(r.Record.Run)))
		}
	}
	if len(order) == 0 {
		return nil, nil
	}
	rates := Table{Name: "failure-rates", Caption: "What became of the attempts, by arm and reset",
		Head: heads("Arm", "Reset", "Records#", "Attempts#", "Environment failures#", "share, 95% or more", "Checks lost#", "Contaminations#", "Invalid#", "State matches out of resets#", "share, 95% or more")}
	for _, k := range order {
		s := sums[k]
		env, share := outOf(s.class[record.EnvFailure], s.begun)
		match, matched := outOf(s.matches, s.resets)
		rates.Rows = append(rates.Rows, []Cell{text(k.arm), text(k.reset), whole(count[k]), whole(s.begun), env, share,
			whole(s.class[record.VerifierUnavailable]), whole(s.class[record.Contamination]), whole(s.class[record.Invalid]), match, matched})
	}
	out := &Section{ID: "failures", Title: "Failures and reset correctness", Tables: []Table{rates},
		Text: []string{"Counts of failures come from every sound record, those that failed too: an attempt is a rollout whose reset was begun, controls and warm-ups among them. Valid rollouts are successes and those that failed validly; environment failures, lost checks, contaminations and invalid ones are not."}}
	if len(each.Rows) > 0 {
		out.Tables = append(out.Tables, each)
	} else {
		out.Text = append(out.Text, "No reset failed and no step ran out of time.")
	}
	if left > 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("%d records are not in these counts: their directories are not sound.", left))
	}
	return out, nil
}

// resetsSection is the same of one run.
func resetsSection(r *Run) (*Section, error) {
	if !r.Sound() {
		return nil, nil
	}
	a := r.attempts()
	if a.begun == 0 {
		return nil, nil
	}
	t := Table{Name: "attempts", Caption: "Attempts, by what became of them", Head: heads("Class", "Attempts#")}
	for _, c := range slices.Concat([]bench.RolloutClass{record.Success, record.FailedValid}, badClasses) {
		t.Rows = append(t.Rows, []Cell{badge(c), text(fmt.Sprintf("%d of %d", a.class[c], a.begun))})
	}
	out := &Section{ID: "failures", Title: "Attempts and reset correctness", Tables: []Table{t}}
	if a.resets > 0 {
		out.Text = append(out.Text, fmt.Sprintf("The state was the checkpoint's after %d of %d resets.", a.matches, a.resets))
	} else {
		out.Text = append(out.Text, "No reset was to be compared with a checkpoint's state.")
	}
	if len(a.failures) == 0 {
		out.Text = append(out.Text, "No reset failed and no step ran out of time.")
		return out, nil
	}
	each := Table{Name: "failed-resets", Caption: "Each failed reset and each time-out, on its own line", Head: heads("Step", "What", "Rollout#", "How", "Class of the rollout", "Why")}
	for _, f := range a.failures {
		each.Rows = append(each.Rows, f.line())
	}
	out.Tables = append(out.Tables, each)
	return out, nil
}

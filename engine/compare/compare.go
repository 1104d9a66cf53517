package compare

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Kinds of comparisons.
const (
	Repeat  bench.ComparisonKind = "repeat"
	Arm     bench.ComparisonKind = "arm"
	Reset   bench.ComparisonKind = "reset"
	Setting bench.ComparisonKind = "setting"
	Slots   bench.ComparisonKind = "slots"
	Branch  bench.ComparisonKind = "branch"
)

// Verdicts of a comparison.
const (
	Allowed = "allowed"
	Refused = "refused"
)

// Options of Compare.
type Options struct {
	// Compile gives the plan that a run's manifest has to have for its reset.
	Compile Compiler
	// Program is the digest of the program that compiles.
	Program bench.SHA256
}

type comparer struct {
	facts   []bench.SamenessFact
	compile Compiler
	program bench.SHA256
}

// causeRuns is the cause of a refusal because a run did not pass.
const causeRuns = "runs"

// Compare puts runs of the same arm, reset, settings and slots on one side, and
// compares each pair of sides that differ in one of these. Where no pair does,
// each pair's refusal is given. Runs that are all alike are compared with each
// other: the first with the rest, a single one with itself. Sides are in the
// order of the runs. A run that is named twice counts once.
func Compare(runs []Run, o Options) (bench.Comparisons, error) {
	out := bench.Comparisons{ApiVersion: engine.APIVersion, Comparisons: []bench.Comparison{}}
	table, err := Sameness()
	if err != nil {
		return out, err
	}
	if len(runs) == 0 {
		return out, &engine.Error{Op: "compare runs", Err: fmt.Errorf("%w: no run is named", engine.ErrUsage)}
	}
	c := &comparer{facts: table.Facts, compile: o.Compile, program: o.Program}
	sides := group(distinct(runs))
	if len(sides) == 1 {
		a, b := sides[0][:1], sides[0][1:]
		if len(b) == 0 {
			b = a
		}
		out.Comparisons = append(out.Comparisons, c.pair(a, b))
		return out, nil
	}
	type pair struct{ a, b []Run }
	var one, more []pair
	for i, a := range sides {
		for _, b := range sides[i+1:] {
			if len(differ(a[0], b[0])) == 1 {
				one = append(one, pair{a, b})
			} else {
				more = append(more, pair{a, b})
			}
		}
	}
	if len(one) == 0 {
		one = more
	}
	for _, p := range one {
		out.Comparisons = append(out.Comparisons, c.pair(p.a, p.b))
	}
	return out, nil
}

// distinct leaves out a run that is named again, or a copy of it: no value counts twice.
func distinct(runs []Run) (list []Run) {
	seen := map[bench.SHA256]bool{}
	for _, r := range runs {
		chain := r.Record.Digests["events"]
		if chain == "" || !seen[chain] {
			list = append(list, r)
		}
		seen[chain] = true
	}
	return list
}

// group runs by what a comparison may be about.
func group(runs []Run) (sides [][]Run) {
	for _, r := range runs {
		i := slices.IndexFunc(sides, func(side []Run) bool { return len(differ(side[0], r)) == 0 })
		if i < 0 {
			sides = append(sides, []Run{r})
		} else {
			sides[i] = append(sides[i], r)
		}
	}
	return sides
}

// differ names what two runs differ in. Settings are of an arm: those of another
// arm are part of the difference of the arms.
func differ(a, b Run) (list []string) {
	list = []string{}
	x, y := a.Record, b.Record
	if x.Arm != y.Arm {
		list = append(list, "arm")
	} else if settingsText(x) != settingsText(y) {
		list = append(list, "settings")
	}
	if x.Reset != y.Reset {
		list = append(list, "reset")
	}
	if a.Manifest.Experiment.Slots != b.Manifest.Experiment.Slots {
		list = append(list, "slots")
	}
	if a.Manifest.Experiment.Reuse != b.Manifest.Experiment.Reuse {
		list = append(list, "reuse")
	}
	if partText(x) != partText(y) {
		list = append(list, "part")
	}
	return list
}

// partText is the part of an experiment that a run is; trials and windows of one kind are alike.
func partText(r bench.Record) string {
	switch p, err := record.PartOf(r); {
	case err != nil:
		return err.Error()
	case p == nil:
		return ""
	default:
		return fmt.Sprintf("%s of %d", p.Kind, p.Slots)
	}
}

var kinds = map[string]bench.ComparisonKind{"arm": Arm, "settings": Setting, "reset": Reset, "slots": Slots, "reuse": Branch}

// pair compares two sides.
func (c *comparer) pair(a, b []Run) bench.Comparison {
	out := bench.Comparison{
		ApiVersion: engine.APIVersion, Differ: differ(a[0], b[0]), Verdict: Allowed, Refusals: []bench.Refusal{},
		A: side(a), B: side(b), Facts: []bench.ComparedFact{},
	}
	switch len(out.Differ) {
	case 0:
		out.Kind = Repeat
	case 1:
		out.Kind = kinds[out.Differ[0]]
		if out.Kind == "" {
			out.Refusals = append(out.Refusals, bench.Refusal{Cause: "kind", Subject: out.Differ[0],
				Text: "the runs are different parts of an experiment", Learn: "drumsbench show --density says what levels and windows mean together"})
		}
	default:
		out.Refusals = append(out.Refusals, bench.Refusal{Cause: "kind", Subject: strings.Join(out.Differ, ", "),
			Text: "more than one thing differs: " + strings.Join(out.Differ, ", "), Learn: "name runs that differ in one of them"})
	}
	for _, r := range everyRun(a, b) {
		if r.Record.Verdict != engine.RunPassed {
			text := "the run " + string(r.Record.Verdict)
			if r.Record.Verdict == engine.RunReview {
				text = "the run waits for a review"
			} else if r.Record.Verdict == engine.RunBlocked {
				text = "the run was blocked"
			}
			if r.Record.Reason != "" {
				text += ": " + r.Record.Reason
			}
			out.Refusals = append(out.Refusals, bench.Refusal{Cause: causeRuns, Subject: r.Record.Run, Text: text,
				Learn: "only runs that passed have numbers: see drumsbench show " + r.Dir})
		}
	}
	for _, f := range c.facts {
		fact, refusal := c.judge(f, out.Kind, a, b)
		out.Facts = append(out.Facts, fact)
		if refusal != nil {
			out.Refusals = append(out.Refusals, *refusal)
		}
	}
	if len(out.Refusals) > 0 {
		out.Verdict = Refused
		return out
	}
	out.Metrics, out.Method = metrics(a, b), method
	return out
}

// everyRun of both sides, each once.
func everyRun(a, b []Run) (all []Run) {
	for _, r := range slices.Concat(a, b) {
		if !slices.ContainsFunc(all, func(o Run) bool { return o.Dir == r.Dir }) {
			all = append(all, r)
		}
	}
	return all
}

func side(runs []Run) bench.ComparedSide {
	first := runs[0].Record
	out := bench.ComparedSide{Arm: first.Arm, Reset: first.Reset, Slots: runs[0].Manifest.Experiment.Slots, Reuse: runs[0].Manifest.Experiment.Reuse,
		Settings: map[string]string{}, Runs: []bench.ComparedRun{}, Differences: []bench.Difference{}}
	for k, v := range first.Settings {
		out.Settings[k] = v
	}
	for _, r := range runs {
		out.Runs = append(out.Runs, bench.ComparedRun{Run: r.Record.Run, Verdict: r.Record.Verdict, Reason: r.Record.Reason,
			Started: r.Record.Started, Events: r.Record.Digests["events"]})
		for _, d := range r.Record.Differences {
			if !slices.Contains(out.Differences, d) {
				out.Differences = append(out.Differences, d)
			}
		}
	}
	slices.SortStableFunc(out.Differences, func(x, y bench.Difference) int { return cmp.Compare(x.Name, y.Name) })
	return out
}

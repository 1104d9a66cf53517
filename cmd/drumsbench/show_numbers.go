package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/stats"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// summary is what a run's lines in the tables are made of. Of a run that did not
// pass it has the gates and no number, of one that is not sound nothing.
type summary struct {
	gates, controls, rollouts, score, memory string
	// n counts the rollouts that numbers come of: valid, and neither controls nor warm-ups.
	n int
	// Clocks of the resets in ms.
	mechanism, answer, ready, usable, repair []float64
	// What the namespace's holder used of CPU time in its life, in ms, by rollout.
	holderCPU, holderLife []float64
}

func summarize(run shownRun) summary {
	if run.state.State != runSound {
		return summary{}
	}
	r := run.record
	passed, gates := 0, 0
	for _, s := range r.Steps {
		if s.Kind == "gate" {
			gates++
			if s.Verdict == engine.Pass {
				passed++
			}
		}
	}
	out := summary{gates: fmt.Sprintf("%d/%d", passed, gates)}
	if !run.counts() {
		return out // a run that did not pass yields no number
	}
	success, measured := 0, 0
	scores := map[string]int{}
	var controls []string
	var dirty, harness []float64
	for _, o := range r.Rollouts {
		if o.Control != "" {
			controls = append(controls, fmt.Sprintf("%s=%s", o.Control, scoreText(o.After)))
			continue
		}
		if o.Warmup {
			continue
		}
		measured++
		if o.Class == record.Success {
			success++
		}
		scores[scoreText(o.Before)+"->"+scoreText(o.After)]++
		if o.Class != record.Success && o.Class != record.FailedValid {
			continue
		}
		out.n++
		if c := o.Clocks; c != nil {
			appendScaled(&out.mechanism, c.Mechanism, ms)
			appendScaled(&out.answer, c.Answer, ms)
			appendScaled(&out.ready, c.Ready, ms)
			appendScaled(&out.usable, c.Usable, ms)
		}
		if v, ok := o.Spans["repair"]; ok {
			appendScaled(&out.repair, v, ms)
		}
		if m := o.Memory; m != nil {
			appendScaled(&dirty, m.PrivateDirty, mib)
			appendScaled(&harness, m.Harness, mib)
			appendScaled(&out.holderCPU, m.HarnessCPU, ms)
			appendScaled(&out.holderLife, m.HarnessLife, ms)
		}
	}
	out.controls = strings.Join(controls, " ")
	out.rollouts = fmt.Sprintf("%d/%d", success, measured)
	var parts []string
	for _, s := range slices.Sorted(maps.Keys(scores)) {
		parts = append(parts, fmt.Sprintf("%s x%d", s, scores[s]))
	}
	out.score = strings.Join(parts, ", ")
	// All or none: a median over some of the slots is of which ones?
	if out.n > 0 && len(dirty) == out.n && len(harness) == out.n {
		out.memory = estimated(stats.Median(dirty))
		if beside := stats.Median(harness); beside.Value != nil && *beside.Value > 0 {
			out.memory += "+" + estimated(beside)
		}
	}
	return out
}

// scoreText is a score as the checker gave it; one that is absent is not 0.
func scoreText(score *float64) string {
	if score == nil {
		return "none"
	}
	return fmt.Sprintf("%.1f", *score)
}

const ms, mib = float64(time.Millisecond), float64(1 << 20)

// appendScaled appends a whole number in a larger unit. What is absent is left
// out: a clock that the rollout did not come to.
func appendScaled(list *[]float64, v bench.Int64, unit float64) {
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		*list = append(*list, float64(n)/unit)
	}
}

// estimated is a number, or a dash where the sample is too small for it.
func estimated(e bench.Estimate) string {
	if e.Value == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f", *e.Value)
}

// times is "p50/p95" of a sample in ms, the latter where the sample suffices. A
// sample that is not of all n rollouts says so.
func times(sample []float64, n int) string {
	if len(sample) == 0 {
		return ""
	}
	text := estimated(stats.Median(sample)) + "/" + estimated(stats.Percentile(sample, 0.95))
	if len(sample) != n {
		text += fmt.Sprintf(" of %d", len(sample))
	}
	return text
}

// writeTimes writes the clocks of the runs that passed, and beneath them what a
// restore saves: each one beside the cold start of the same workload, where a
// comparison of the two is allowed.
func writeTimes(b *strings.Builder, runs []shownRun, sums []summary, beside func(a, b int) (string, error)) error {
	b.WriteString("memory is what one slot alone has written, median in MiB, before anybody acts; +x is of what runs beside it\n")
	if !slices.ContainsFunc(sums, func(s summary) bool { return s.n > 0 }) {
		return nil
	}
	b.WriteString("\n")
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RUN\tN\tRETURNED\tANSWER\tREADY\tUSABLE\tREPAIR")
	for i, s := range sums {
		if s.n > 0 {
			name := terminal.Line(runs[i].record.Run)
			if engine.Emulated(runs[i].record.Facts) {
				name += " (emulated)"
			}
			row(t, name, strconv.Itoa(s.n), times(s.mechanism, s.n), times(s.answer, s.n), times(s.ready, s.n), times(s.usable, s.n), times(s.repair, s.n))
		}
	}
	t.Flush()
	b.WriteString("p50/p95 of n resets in ms from their start, - where n is too small: the mechanism RETURNED, the guest's first ANSWER, the rule of readiness\nheld (READY), reseeded and gated (USABLE); REPAIR is the part of it that put locks back\n")
	for i, s := range sums {
		if cpu, life := len(s.holderCPU), len(s.holderLife); cpu > 0 && cpu == life { // the last has lived longest
			fmt.Fprintf(b, "%s: the holder of the slot's namespace has used %.1f ms of CPU time in %.1f s\n",
				terminal.Line(runs[i].record.Run), s.holderCPU[cpu-1], s.holderLife[life-1]/1e3)
		}
	}
	for _, p := range pairs(recordsOf(runs), sums) {
		restore, cold := sums[p[0]], sums[p[1]]
		why, err := beside(p[0], p[1])
		if err != nil {
			return err
		}
		name := terminal.Line(runs[p[0]].record.Run)
		if why != "" {
			fmt.Fprintf(b, "%s is not put beside its cold start: %s\n", name, terminal.Line(why))
			continue
		}
		fmt.Fprintf(b, "%s: cold ready p50/p95 %s (n %d) beside restore usable p50/p95 %s (n %d)\n", name,
			times(cold.ready, len(cold.ready)), len(cold.ready), times(restore.usable, len(restore.usable)), len(restore.usable))
	}
	return nil
}

// pairs are the indices of a restore and of the cold start of one experiment:
// the same folder, arm, workload and settings, and one of each.
func pairs(records []bench.Record, sums []summary) (list [][2]int) {
	type key struct {
		folder, arm, settings string
		workload              bench.SHA256
	}
	by := map[key]map[string][]int{}
	var order []key
	for i, r := range records {
		if sums[i].n == 0 || len(sums[i].ready) == 0 || len(sums[i].usable) == 0 {
			continue
		}
		k := key{filepath.Dir(r.Run), r.Arm, fmt.Sprint(r.Settings), r.Digests["workload"]}
		if by[k] == nil {
			by[k] = map[string][]int{}
			order = append(order, k)
		}
		by[k][r.Reset] = append(by[k][r.Reset], i)
	}
	for _, k := range order {
		if restore, cold := by[k]["restore"], by[k]["cold"]; len(restore) == 1 && len(cold) == 1 {
			list = append(list, [2]int{restore[0], cold[0]})
		}
	}
	return list
}

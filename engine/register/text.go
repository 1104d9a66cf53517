package register

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/markdown"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Line is a bar's result in words: what was asked and what came of it.
type Line struct {
	Name, Asked, Verdict, N, Value, Interval, Why string
}

// LineOf puts a result into words.
func LineOf(r bench.BarResult) Line {
	l := Line{Name: string(r.Bar.Name), Asked: Asked(r.Bar), Verdict: string(r.Verdict), N: fmt.Sprint(r.N), Why: r.Reason}
	var values, intervals []string
	for _, e := range []*bench.Estimate{r.P50, r.P95} {
		if e == nil {
			continue
		}
		value, interval := "-", "-"
		if e.Value != nil {
			value = amount(*e.Value, r.Unit)
			if r.Emulated {
				value += " (emulated)"
			}
		}
		if e.Interval != nil {
			interval = amount(e.Interval.Low, r.Unit) + " to " + amount(e.Interval.High, r.Unit)
		}
		values, intervals = append(values, value), append(intervals, interval)
	}
	l.Value, l.Interval = strings.Join(values, "; "), strings.Join(intervals, "; ")
	if len(values) == 0 {
		l.Value, l.Interval = "-", "-"
	}
	return l
}

// Asked is a bar in words: "usable of drums restore: p50 at most 250ms, n at least 20".
func Asked(b bench.Bar) string {
	text := fmt.Sprintf("%s of %s %s", b.Metric, b.Of.Arm, b.Of.Reset)
	if b.Over != nil {
		text += fmt.Sprintf(" over %s %s", b.Over.Arm, b.Over.Reset)
	}
	var parts []string
	for _, q := range []struct {
		name  string
		bound *bench.Bound
	}{{"p50", b.P50}, {"p95", b.P95}} {
		if q.bound == nil {
			continue
		}
		name := q.name
		if b.Metric == compare.Score {
			name = "share"
		}
		if q.bound.Min != "" {
			name += " at least " + string(q.bound.Min)
		}
		if q.bound.Min != "" && q.bound.Max != "" {
			name += " and"
		}
		if q.bound.Max != "" {
			name += " at most " + string(q.bound.Max)
		}
		parts = append(parts, name)
	}
	return text + ": " + strings.Join(append(parts, fmt.Sprintf("n at least %d", b.N)), ", ")
}

func amount(v float64, unit string) string {
	switch {
	case unit == "ns" && math.Abs(v) >= 10e9:
		return figures(v/1e9) + " s"
	case unit == "ns":
		return figures(v/1e6) + " ms"
	case unit == "bytes":
		return figures(v/(1<<20)) + " MiB"
	}
	return figures(v)
}

// figures keeps four of them, and every digit before the point.
func figures(v float64) string {
	if math.Abs(v) >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// title of a judgement among those of its experiment, counted from 0.
func title(i int, j bench.Judgement, e bench.JudgedExperiment) string {
	name := "registration"
	if i > 0 {
		name = fmt.Sprintf("amendment %d", i)
	}
	return fmt.Sprintf("%s %.12s of %s%s", name, j.Registration, j.Registered, After(j, e))
}

// After says whether a registration was made after a run had begun.
func After(j bench.Judgement, e bench.JudgedExperiment) string {
	for _, r := range e.Runs {
		if !earlier(j.Registered, r.Started) {
			return ", made after the first run"
		}
	}
	return ""
}

// Text is the judgements for people.
func Text(all bench.Judgements) string {
	var b strings.Builder
	for i, e := range all.Experiments {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "experiment  %s: %s\n", terminal.Line(string(e.Manifest)), e.State)
		for _, r := range e.Runs {
			fmt.Fprintf(&b, "  run  %s: %s %s, %s\n", terminal.Line(r.Run), terminal.Line(r.Arm), r.Reset, r.Verdict)
		}
		for k, j := range e.Judgements {
			fmt.Fprintf(&b, "\n%s: %s\n", title(k, j, e), shown(e, j.Verdict))
			t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "BAR\tASKED\tVERDICT\tN\tVALUE\t95% INTERVAL")
			for _, r := range j.Bars {
				l := LineOf(r)
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", l.Name, terminal.Line(l.Asked), shown(e, r.Verdict), l.N, l.Value, l.Interval)
			}
			t.Flush()
		}
		if len(e.Reasons) > 0 {
			fmt.Fprintf(&b, "\nnot verified:\n")
			for _, r := range e.Reasons {
				fmt.Fprintf(&b, "  %s\n", terminal.Line(r))
			}
		}
		for _, n := range e.Notes {
			fmt.Fprintf(&b, "\nnote: %s\n", terminal.Line(n))
		}
	}
	return b.String()
}

// shown is a verdict; of an experiment without a run there is none yet.
func shown(e bench.JudgedExperiment, v bench.BarVerdict) string {
	if e.State == Planned {
		return "not run"
	}
	return string(v)
}

// Markdown is the judgements for a page.
func Markdown(all bench.Judgements) string {
	var b strings.Builder
	for i, e := range all.Experiments {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "# Experiment %s: %s\n\n", markdown.Escape(string(e.Manifest)), e.State)
		for _, r := range e.Runs {
			fmt.Fprintf(&b, "- run %s: %s %s, %s; last line of its chain %s\n", markdown.Escape(r.Run), markdown.Escape(r.Arm), r.Reset, r.Verdict, r.Events)
		}
		for k, j := range e.Judgements {
			fmt.Fprintf(&b, "\n## %s: %s\n\n| bar | asked | verdict | n | value | 95%% interval | why |\n| --- | --- | --- | ---: | ---: | --- | --- |\n", markdown.Escape(title(k, j, e)), markdown.Escape(shown(e, j.Verdict)))
			for _, r := range j.Bars {
				l := LineOf(r)
				fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", markdown.Escape(l.Name), markdown.Escape(l.Asked), markdown.Escape(shown(e, r.Verdict)), l.N, l.Value, l.Interval, markdown.Escape(l.Why))
			}
		}
		if len(e.Reasons) > 0 {
			b.WriteString("\nNot verified:\n\n")
			for _, r := range e.Reasons {
				fmt.Fprintf(&b, "- %s\n", markdown.Escape(r))
			}
		}
		for _, n := range e.Notes {
			fmt.Fprintf(&b, "\nNote: %s\n", markdown.Escape(n))
		}
	}
	return b.String() + "\n" + markdown.Escape(all.Method) + "\n"
}

// Standing says what an experiment makes of one of its runs: failed where a bar
// that names the run's side was missed, in whatever registration; verified only
// where the whole experiment is, so that nobody shows the good half of one;
// preliminary otherwise.
func Standing(e bench.JudgedExperiment, r bench.Record) (state string, missed []bench.BarResult) {
	mine := func(s bench.BarSide) bool { return string(s.Arm) == r.Arm && string(s.Reset) == r.Reset }
	for _, j := range e.Judgements {
		for _, b := range j.Bars {
			if b.Verdict == Fail && (mine(b.Bar.Of) || b.Bar.Over != nil && mine(*b.Bar.Over)) {
				missed = append(missed, b)
			}
		}
	}
	switch {
	case len(missed) > 0:
		return Failed, missed
	case e.State == Verified:
		return Verified, nil
	}
	return Preliminary, nil
}

package compare

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Text is the comparisons for people. Brief leaves out the facts that are the
// same, the parts of times, and most of a long setting.
func Text(c bench.Comparisons, brief bool) string {
	var b strings.Builder
	for i, one := range c.Comparisons {
		if i > 0 {
			b.WriteString("\n")
		}
		text(&b, one, brief)
	}
	return b.String()
}

func text(b *strings.Builder, c bench.Comparison, brief bool) {
	fmt.Fprintf(b, "comparison  %s: %s\n", heading(c), c.Verdict)
	sideText(b, "A", c.A, brief)
	sideText(b, "B", c.B, brief)
	ran := !slices.ContainsFunc(c.Refusals, func(r bench.Refusal) bool { return r.Cause == causeRuns })
	if ran || !brief { // what a run that did not pass has no facts of is no news
		facts(b, c, brief)
	}
	if c.Verdict == Refused {
		b.WriteString("\nrefused, no number is printed:\n")
		learn := ""
		for _, r := range c.Refusals {
			if brief && !ran && r.Cause != causeRuns {
				continue
			}
			fmt.Fprintf(b, "  %s: %s: %s\n", r.Cause, terminal.Line(r.Subject), terminal.Line(r.Text))
			if r.Learn != "" && r.Learn != learn {
				learn = r.Learn
				fmt.Fprintf(b, "    hint: %s\n", terminal.Line(learn))
			}
		}
		return
	}
	b.WriteString("\n")
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "METRIC\tUNIT\tSIDE\tN\tP50\t95% INTERVAL\tP95\tMIN\tMAX\tB/A\t95% INTERVAL")
	for _, m := range c.Metrics {
		if brief && strings.HasPrefix(m.Name, spanPrefix) {
			continue
		}
		a, o := row(m.Unit, m.A), row(m.Unit, m.B)
		fmt.Fprintf(t, "%s\t%s\tA\t%s\t\t\n", m.Name, shown(m.Unit)+mark(c), strings.Join(a, "\t"))
		fmt.Fprintf(t, "\t\tB\t%s\t%s\t%s\n", strings.Join(o, "\t"), estimate("ratio", m.Ratio), interval("ratio", m.Ratio))
	}
	t.Flush()
	for _, note := range fewNotes(c) {
		b.WriteString(note + "\n")
	}
	b.WriteString("\n")
	differences(b, c)
}

// mark is what stands beside the unit of every number of an emulated guest.
func mark(c bench.Comparison) string {
	for _, f := range c.Facts {
		if f.Name == engine.Accelerator && (f.A.Value == "tcg" || f.B.Value == "tcg") {
			return " emulated"
		}
	}
	return ""
}

// heading says what is compared.
func heading(c bench.Comparison) string {
	a, b := c.A, c.B
	switch c.Kind {
	case Arm:
		return fmt.Sprintf("arm, %s and %s (%s)", a.Arm, b.Arm, a.Reset)
	case Reset:
		return fmt.Sprintf("reset, %s and %s (%s)", a.Reset, b.Reset, a.Arm)
	case Setting:
		x, y := settingsApart(a.Settings, b.Settings)
		return fmt.Sprintf("setting, %s and %s (%s %s)", x, y, a.Arm, a.Reset)
	case Slots:
		return fmt.Sprintf("slots, %d and %d (%s %s)", a.Slots, b.Slots, a.Arm, a.Reset)
	case Branch:
		return fmt.Sprintf("branch, reuse %s and %s (%s %s)", a.Reuse, b.Reuse, a.Arm, a.Reset)
	case Repeat:
		return fmt.Sprintf("repeat, %s %s", a.Arm, a.Reset)
	}
	return fmt.Sprintf("%s %s and %s %s", a.Arm, a.Reset, b.Arm, b.Reset)
}

// settingsApart are the settings in which two sides differ.
func settingsApart(a, b map[string]string) (x, y string) {
	var names []string
	for _, m := range []map[string]string{a, b} {
		for name := range m {
			if a[name] != b[name] && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	sort.Strings(names)
	list := func(m map[string]string) string {
		parts := make([]string, len(names))
		for i, name := range names {
			parts[i] = name + "=" + m[name]
		}
		return strings.Join(parts, ",")
	}
	return list(a), list(b)
}

func sideText(b *strings.Builder, name string, s bench.ComparedSide, brief bool) {
	runs := make([]string, len(s.Runs))
	for i, r := range s.Runs {
		runs[i] = terminal.Line(r.Run)
		if r.Verdict != "passed" {
			runs[i] += " (" + string(r.Verdict) + ")"
		}
	}
	fmt.Fprintf(b, "  %s  %s %s%s: %s\n", name, terminal.Line(s.Arm), s.Reset, settingsOf(s, brief), strings.Join(runs, ", "))
}

func settingsOf(s bench.ComparedSide, brief bool) string {
	names := make([]string, 0, len(s.Settings))
	for name, v := range s.Settings {
		if v != "" {
			if brief {
				v = clip(v, 24)
			}
			names = append(names, name+"="+v)
		}
	}
	if len(names) == 0 {
		return ""
	}
	sort.Strings(names)
	return " " + terminal.Line(strings.Join(names, ","))
}

// facts is the table of facts.
func facts(b *strings.Builder, c bench.Comparison, brief bool) {
	same := 0
	b.WriteString("\n")
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	header := false
	for _, f := range c.Facts {
		if f.Status == "same" {
			same++
			if brief {
				continue
			}
		}
		if !header {
			header = true
			fmt.Fprintln(t, "FACT\tSTATUS\tA\tB\tSOURCE")
		}
		word := f.Status
		switch {
		case f.Refuses:
			word += ", refused"
		case f.Status == "different" && c.Kind != "":
			word += ", declared"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", f.Name, word, cell(f.A), cell(f.B), sources(f))
	}
	t.Flush()
	fmt.Fprintf(b, "%d of %d facts are known on both sides and the same\n", same, len(c.Facts))
}

func cell(v bench.ComparedValue) string {
	if !v.Known {
		return "unknown: " + clip(v.Reason, 80)
	}
	return clip(v.Value, 34)
}

func sources(f bench.ComparedFact) string {
	a, b := clip(f.A.Source, 60), clip(f.B.Source, 60)
	switch {
	case a == b || b == "":
		return a
	case a == "":
		return b
	}
	return a + "; B: " + b
}

// row is a summary as cells: n, p50, its interval, p95, min, max.
func row(unit string, s bench.Summary) []string {
	cells := []string{strconv.FormatInt(s.N, 10), "-", "-", "-", "-", "-"}
	if s.P50 != nil {
		cells[1], cells[2] = estimate(unit, *s.P50), interval(unit, *s.P50)
	}
	if s.P95 != nil {
		cells[3] = estimate(unit, *s.P95)
	}
	if s.Min != nil && s.Max != nil {
		cells[4], cells[5] = number(unit, *s.Min), number(unit, *s.Max)
	}
	return cells
}

const tooFew = "too few"

func estimate(unit string, e bench.Estimate) string {
	switch {
	case e.Value != nil:
		return number(unit, *e.Value)
	case e.Few != nil && e.Few.Have > 0:
		return tooFew
	}
	return "-"
}

func interval(unit string, e bench.Estimate) string {
	switch {
	case e.Interval != nil:
		return number(unit, e.Interval.Low) + " … " + number(unit, e.Interval.High)
	case e.Few != nil && e.Few.Have > 0:
		return tooFew
	}
	return "-"
}

// number in the unit that is shown.
func number(unit string, v float64) string {
	switch unit {
	case "ns":
		return strconv.FormatFloat(v/1e6, 'f', 1, 64)
	case "bytes":
		return strconv.FormatFloat(v/(1<<20), 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

func shown(unit string) string {
	switch unit {
	case "ns":
		return "ms"
	case "bytes":
		return "MiB"
	}
	return unit
}

// fewNotes say what "too few" means, with the numbers.
func fewNotes(c bench.Comparison) (notes []string) {
	needs := map[string]int64{}
	note := func(what string, e *bench.Estimate) {
		if e != nil && e.Few != nil {
			needs[what] = e.Few.Need
		}
	}
	for _, m := range c.Metrics {
		for _, s := range []bench.Summary{m.A, m.B} {
			note("the interval of a median", s.P50)
			note("a 95th percentile", s.P95)
		}
		if m.A.N > 0 && m.B.N > 0 {
			note("the interval of a ratio", &m.Ratio)
		}
	}
	for what, need := range needs {
		notes = append(notes, fmt.Sprintf("too few runs to say: %s takes %d", what, need))
	}
	sort.Strings(notes)
	return notes
}

// differences that are declared, those of both sides first.
func differences(b *strings.Builder, c bench.Comparison) {
	b.WriteString("declared differences\n")
	none := true
	for _, f := range c.Facts {
		if f.Status == "different" && !f.Refuses {
			none = false
			fmt.Fprintf(b, "  %s: A %s, B %s\n", f.Title, terminal.Line(f.A.Value), terminal.Line(f.B.Value))
		}
	}
	for _, group := range []struct {
		who  string
		list []bench.Difference
	}{
		{"both", intersect(c.A.Differences, c.B.Differences)},
		{"A, " + c.A.Arm, without(c.A.Differences, c.B.Differences)},
		{"B, " + c.B.Arm, without(c.B.Differences, c.A.Differences)},
	} {
		for _, d := range group.list {
			none = false
			fmt.Fprintf(b, "  %s: %s: %s\n", terminal.Line(group.who), terminal.Line(d.Name), terminal.Line(d.Text))
		}
	}
	if none {
		b.WriteString("  none\n")
	}
}

func intersect(a, b []bench.Difference) (out []bench.Difference) {
	for _, d := range a {
		if slices.Contains(b, d) {
			out = append(out, d)
		}
	}
	return out
}

func without(a, b []bench.Difference) (out []bench.Difference) {
	for _, d := range a {
		if !slices.Contains(b, d) {
			out = append(out, d)
		}
	}
	return out
}

func clip(s string, most int) string {
	r := []rune(terminal.Line(s))
	if len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return string(r)
}

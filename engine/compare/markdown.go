package compare

import (
	"fmt"
	"strings"

	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Markdown is the comparisons for a page, with every fact in full.
func Markdown(c bench.Comparisons) string {
	var b strings.Builder
	for i, one := range c.Comparisons {
		if i > 0 {
			b.WriteString("\n")
		}
		markdown(&b, one)
	}
	return b.String()
}

func markdown(b *strings.Builder, c bench.Comparison) {
	fmt.Fprintf(b, "# %s: %s\n\n", escape(heading(c)), c.Verdict)
	for _, s := range []struct {
		name string
		side bench.ComparedSide
	}{{"A", c.A}, {"B", c.B}} {
		runs := make([]string, len(s.side.Runs))
		for i, r := range s.side.Runs {
			runs[i] = fmt.Sprintf("%s (%s, last line of its chain %s)", escape(r.Run), r.Verdict, r.Events)
		}
		fmt.Fprintf(b, "- %s: %s %s%s: %s\n", s.name, escape(s.side.Arm), s.side.Reset, escape(settingsOf(s.side, false)), strings.Join(runs, ", "))
	}
	b.WriteString("\n")
	if c.Verdict == Refused {
		b.WriteString("## Refused\n\n")
		table(b, "cause", "subject", "why", "what to do")
		for _, r := range c.Refusals {
			line(b, r.Cause, r.Subject, r.Text, r.Learn)
		}
		b.WriteString("\n")
	} else {
		b.WriteString("## Numbers\n\n")
		table(b, "metric", "unit", "side", "n", "p50", "95% interval", "p95", "min", "max", "B/A", "95% interval")
		for _, m := range c.Metrics {
			line(b, append(append([]string{m.Title, shown(m.Unit) + mark(c), "A"}, row(m.Unit, m.A)...), "", "")...)
			line(b, append(append([]string{"", "", "B"}, row(m.Unit, m.B)...), estimate("ratio", m.Ratio), interval("ratio", m.Ratio))...)
		}
		fmt.Fprintf(b, "\n%s.\n", escape(c.Method))
		for _, note := range fewNotes(c) {
			fmt.Fprintf(b, "\n%s.\n", note)
		}
		var declared strings.Builder
		differences(&declared, c)
		b.WriteString("\n## Declared differences\n\n")
		for l := range strings.Lines(declared.String()) {
			if text, below := strings.CutPrefix(l, "  "); below {
				b.WriteString("- " + escape(strings.TrimSuffix(text, "\n")) + "\n")
			}
		}
		b.WriteString("\n")
	}
	b.WriteString("## Facts\n\n")
	table(b, "fact", "status", "A", "B", "source of A", "source of B")
	for _, f := range c.Facts {
		status := f.Status
		if f.Refuses {
			status = "**" + status + ", refused**"
		}
		line(b, f.Title, status, full(f.A), full(f.B), f.A.Source, f.B.Source)
	}
}

func full(v bench.ComparedValue) string {
	if !v.Known {
		return "unknown: " + v.Reason
	}
	return v.Value
}

func table(b *strings.Builder, titles ...string) {
	line(b, titles...)
	b.WriteString("|" + strings.Repeat(" --- |", len(titles)) + "\n")
}

func line(b *strings.Builder, cells ...string) {
	for _, c := range cells {
		b.WriteString("| " + escape(c) + " ")
	}
	b.WriteString("|\n")
}

// escape what ends a cell or begins something else than text. Stars stay: statuses have them.
func escape(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "`", "\\`", "[", `\[`).Replace(terminal.Line(s))
}

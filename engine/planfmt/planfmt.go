// Package planfmt prints plans. A plan decides what a run does, so a person must
// be able to read all of it before it runs.
//
// Always holds: what is printed comes from the plan's data alone and is the same
// for equal digests, byte for byte.
package planfmt

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// JSON is the plan as canonical JSON (RFC 8785), whose SHA-256 is the digest of
// the plan. It has no line feed at its end.
func JSON(p *engine.Plan) []byte { return p.JSON() }

// Text is the plan for people: one line a step in a topological order, under
// headings for its rollout and its measurement window.
//
//	id  kind  deadline  needs: step (mode Type), …  [optional] [release]
func Text(p *engine.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "plan      %s\nworkload  %s\nreset     %s\nsteps     %d\n\n", p.Digest(), p.Workload, p.Reset, len(p.Steps))
	wide, kinds, deadlines := 0, 0, 0
	for _, s := range p.Steps {
		wide = max(wide, 2*depth(s)+utf8.RuneCountInString(s.Id))
		kinds = max(kinds, utf8.RuneCountInString(s.Kind))
		deadlines = max(deadlines, utf8.RuneCountInString(string(s.Deadline)))
	}
	var before bench.Step
	for _, s := range p.Steps {
		if r := rollout(s); r != rollout(before) && r != "" {
			b.WriteString(r + "\n")
		}
		if s.Window != "" && (s.Window != before.Window || rollout(s) != rollout(before)) {
			fmt.Fprintf(&b, "%swindow %s\n", strings.Repeat("  ", depth(s)-1), s.Window)
		}
		before = s
		indent := strings.Repeat("  ", depth(s))
		line := fmt.Sprintf("%s%-*s  %-*s  %*s  %s%s", indent, wide-len(indent), s.Id, kinds, s.Kind, deadlines, s.Deadline, needs(s), flags(s))
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// depth is how many headings a step is under.
func depth(s bench.Step) int {
	d := 0
	if rollout(s) != "" {
		d++
	}
	if s.Window != "" {
		d++
	}
	return d
}

// rollout is the heading of the rollout or round that a step belongs to, empty for none.
func rollout(s bench.Step) string {
	if s.Rollout == nil {
		return round(s)
	}
	text := fmt.Sprintf("rollout %d", *s.Rollout)
	if s.Slot != "" {
		text += ", " + s.Slot
	}
	if s.Warmup {
		text += ", warm-up"
	}
	if s.Control != "" {
		text += ", control " + s.Control
	}
	if s.Branch != "" {
		text += fmt.Sprintf(", branch %s of round %d", s.Branch, *s.Round)
	}
	return text
}

// round is the heading of steps that are of a round of a task that branches and of no branch: of its trunk, which is in a
// slot, or of its siblings together.
func round(s bench.Step) string {
	switch {
	case s.Round == nil:
		return ""
	case s.Slot != "":
		return fmt.Sprintf("round %d, trunk, %s", *s.Round, s.Slot)
	}
	return fmt.Sprintf("round %d, siblings", *s.Round)
}

func needs(s bench.Step) string {
	var parts []string
	for _, e := range s.Needs {
		if e.Mode == engine.ModeAfter {
			parts = append(parts, e.Step)
			continue
		}
		parts = append(parts, fmt.Sprintf("%s (%s %s)", e.Step, e.Mode, e.Type))
	}
	return strings.Join(parts, ", ")
}

func flags(s bench.Step) string {
	text := ""
	if s.Optional {
		text += " [optional]"
	}
	if s.Release {
		text += " [release]"
	}
	return text
}

// Mermaid is the plan as a Mermaid flowchart: a subgraph for each rollout and,
// in it, for the rollout's part of a measurement window. Arrows that carry a
// value are labelled, a thick one moves it, a dotted one is order only; release
// steps have a dashed border.
func Mermaid(p *engine.Plan) string {
	var b strings.Builder
	b.WriteString("flowchart TD\n")
	var release []string
	var open [2]string // headings of the rollout and the window that are open
	index := make(map[string]int, len(p.Steps))
	graphs := 0
	closeTo := func(level int) {
		for k := 1; k >= level; k-- {
			if open[k] != "" {
				fmt.Fprintf(&b, "%send\n", strings.Repeat("  ", 1+outer(open, k)))
				open[k] = ""
			}
		}
	}
	for i, s := range p.Steps {
		index[s.Id] = i
		want := [2]string{rollout(s), ""}
		if s.Window != "" {
			want[1] = "window " + s.Window
		}
		switch {
		case want[0] != open[0]:
			closeTo(0)
		case want[1] != open[1]:
			closeTo(1)
		}
		for k := range want {
			if want[k] != "" && open[k] == "" {
				fmt.Fprintf(&b, "%ssubgraph g%d[\"%s\"]\n", strings.Repeat("  ", 1+outer(want, k)), graphs, escape(want[k]))
				open[k] = want[k]
				graphs++
			}
		}
		fmt.Fprintf(&b, "%ss%d[\"%s\"]\n", strings.Repeat("  ", 1+depth(s)), i, escape(s.Id))
		if s.Release {
			release = append(release, fmt.Sprint("s", i))
		}
	}
	closeTo(0)
	for i, s := range p.Steps {
		for _, e := range s.Needs {
			arrow := "-->|" + escape(e.Mode+" "+e.Type) + "|"
			switch e.Mode {
			case engine.ModeAfter:
				arrow = "-.->"
			case engine.ModeMove:
				arrow = "==>|" + escape(e.Mode+" "+e.Type) + "|"
			}
			fmt.Fprintf(&b, "  s%d %s s%d\n", index[e.Step], arrow, i)
		}
	}
	if len(release) > 0 {
		b.WriteString("  classDef release stroke-dasharray: 5 5\n")
		fmt.Fprintf(&b, "  class %s release\n", strings.Join(release, ","))
	}
	return b.String()
}

// outer counts the headings around the one at level k.
func outer(headings [2]string, k int) int {
	if k == 1 && headings[0] != "" {
		return 1
	}
	return 0
}

// escape keeps text from ending a Mermaid label.
func escape(text string) string {
	return strings.NewReplacer(`"`, "#quot;", "|", "#124;", "[", "#91;", "]", "#93;", "<", "#lt;", ">", "#gt;").Replace(text)
}

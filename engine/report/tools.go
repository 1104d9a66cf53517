package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine/stats"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// tool is a time or a count that a mechanism's own tool gives of itself: a fact of a
// step whose name begins with "tool.", the tool's name, and ends with "-ns" where it
// is a time in nanoseconds.
const toolPrefix = "tool."

// toolFacts of the receipts of measured, valid rollouts and of the steps before
// them, by name, in the order in which they first come; spans of the same step beside them.
type toolFact struct {
	kind, name string
	sample     []float64
}

func (r *Run) toolFacts() (list []toolFact) {
	plan := map[string]bench.Step{}
	for _, s := range r.Plan.Steps {
		plan[s.Id] = s
	}
	quiet := map[int64]bool{}
	for _, o := range r.Record.Rollouts {
		quiet[o.Index] = true
	}
	for _, o := range valid(Measured(r.Record)) {
		quiet[o.Index] = false
	}
	index := map[string]int{}
	for _, e := range r.Receipts {
		p, planned := plan[e.Step]
		if e.Event != "step" || !planned || p.Rollout != nil && quiet[*p.Rollout] {
			continue
		}
		kind := e.Kind
		if kind == "resume" {
			kind = "restore" // its slot tells what restored it
		}
		for _, f := range e.Facts {
			name, is := strings.CutPrefix(f.Name, toolPrefix)
			if !is || !f.Known {
				continue
			}
			k := kind + " " + name
			i, known := index[k]
			if !known {
				i, index[k] = len(list), len(list)
				list = append(list, toolFact{kind: kind, name: name})
			}
			list[i].sample = appendNumber(list[i].sample, bench.Int64(f.Value))
		}
	}
	return slices.DeleteFunc(list, func(f toolFact) bool { return len(f.sample) == 0 })
}

// ours are the same times as the engine's clock saw them: of dump and restore the
// step, and the part of it in which the tool ran.
func (r *Run) ours() (list []toolFact) {
	plan := map[string]bench.Step{}
	for _, s := range r.Plan.Steps {
		plan[s.Id] = s
	}
	valids := map[int64]bool{}
	for _, o := range valid(Measured(r.Record)) {
		valids[o.Index] = true
	}
	index := map[string]int{}
	add := func(kind, name string, start, end bench.Int64) {
		a, b := appendNumber(nil, start), appendNumber(nil, end)
		if a == nil || b == nil {
			return
		}
		k := kind + " " + name
		i, known := index[k]
		if !known {
			i, index[k] = len(list), len(list)
			list = append(list, toolFact{kind: kind, name: name})
		}
		list[i].sample = append(list[i].sample, b[0]-a[0])
	}
	for _, e := range r.Receipts {
		p := plan[e.Step]
		if e.Event != "step" || e.Kind != "dump" && e.Kind != "restore" || p.Rollout != nil && !valids[*p.Rollout] {
			continue
		}
		add(e.Kind, "the whole step", e.Start, e.End)
		for _, s := range e.Spans {
			if s.Name == "criu" || s.Name == "qemu" || s.Name == "load" || s.Name == "save" {
				add(e.Kind, "the part "+s.Name, s.Start, s.End)
			}
		}
	}
	return list
}

// toolsSection puts what the tools say of themselves beside what the engine's clock
// saw. Of a run that yields no number there is none.
func toolsSection(r *Run) (*Section, error) {
	theirs := r.toolFacts()
	if !r.Counts() || len(theirs) == 0 {
		return nil, nil
	}
	t := Table{Name: "tools", Caption: "Times and counts of dumps and of the restores of measured, valid rollouts", Head: heads("What", "Step", "Whose", "p50#", "interval, 95% or more", "min#", "max#", "n#")}
	add := func(whose string, f toolFact) {
		unit, name := "", f.name
		switch {
		case whose == "ours":
			unit = "ns"
		case strings.HasSuffix(name, "-ns"):
			unit, name = "ns", strings.TrimSuffix(name, "-ns")
		}
		tool, rest, found := strings.Cut(name, ".")
		if found {
			whose, name = tool, strings.ReplaceAll(rest, "-", " ")
		}
		m := rowOf(Metric{Unit: unit, Summary: stats.Summarize(f.sample), Of: int64(len(f.sample))})
		cell := func(people, raw string) Cell {
			if unit == "" && raw != "" {
				people = raw // a count
			}
			return Cell{Text: people, Raw: raw}
		}
		t.Rows = append(t.Rows, []Cell{text(name), text(f.kind), text(whose), cell(m.P50, m.P50Raw), text(m.Interval), cell(m.Min, m.MinRaw), cell(m.Max, m.MaxRaw), whole(len(f.sample))})
	}
	for _, kind := range []string{"dump", "restore"} {
		for _, f := range r.ours() {
			if f.kind == kind {
				add("ours", f)
			}
		}
		for _, f := range theirs {
			if f.kind == kind {
				add("", f)
			}
		}
	}
	text := "What the mechanism's tool wrote down of itself stands beside what the engine's clock saw of the same step. The two begin and end at other points: the tool leaves out its own start and end."
	if r.Emulated() {
		text += " The processor was emulated."
	}
	return &Section{ID: "tools", Title: "The tools' own times beside ours", Text: []string{text}, Tables: []Table{t}, Notes: []string{fmt.Sprintf("From facts of the receipts, %d kinds of them.", len(theirs))}}, nil
}

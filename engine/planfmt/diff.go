package planfmt

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Diff is what two plans differ in, step by step: steps of only one, and each
// field of a step of both, parameters by their paths. names are those of the
// manifests. Plans of equal digests differ in nothing.
func Diff(nameA string, a *engine.Plan, nameB string, b *engine.Plan) (bench.PlanDifference, error) {
	d := bench.PlanDifference{
		A: side(nameA, a), B: side(nameB, b),
		OnlyA: only(a, b), OnlyB: only(b, a), Fields: []bench.PlanField{},
	}
	other := byID(b)
	for _, x := range a.Steps {
		y, both := other[x.Id]
		if !both {
			continue
		}
		left, err := fields(x)
		if err != nil {
			return d, err
		}
		right, err := fields(y)
		if err != nil {
			return d, err
		}
		canonical.EachDifference("", left, right, func(path, have, want string) {
			d.Fields = append(d.Fields, bench.PlanField{Step: x.Id, Path: path, A: have, B: want})
		})
	}
	return d, nil
}

// Equal says whether two plans were found to be one.
func Equal(d bench.PlanDifference) bool { return d.A.Plan == d.B.Plan }

func side(name string, p *engine.Plan) bench.PlanSide {
	return bench.PlanSide{Manifest: name, Plan: p.Digest(), Workload: p.Workload, Reset: p.Reset, Steps: int64(len(p.Steps))}
}

func byID(p *engine.Plan) map[string]bench.Step {
	steps := make(map[string]bench.Step, len(p.Steps))
	for _, s := range p.Steps {
		steps[s.Id] = s
	}
	return steps
}

func only(p, other *engine.Plan) []bench.PlanStep {
	list, have := []bench.PlanStep{}, byID(other)
	for _, s := range p.Steps {
		if _, both := have[s.Id]; !both {
			list = append(list, bench.PlanStep{Step: s.Id, Kind: s.Kind})
		}
	}
	return list
}

// fields of a step as JSON, its parameters as what they are, and what it needs
// as one line each: order of edges is the order of inputs.
func fields(s bench.Step) (map[string]any, error) {
	data, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, err
	}
	var params any
	if err := json.Unmarshal([]byte(s.Params), &params); err != nil {
		return nil, fmt.Errorf("parameters of step %s: %w", s.Id, err)
	}
	out["params"], out["needs"] = params, needs(s)
	return out, nil
}

// DiffText is a difference for people. A field that differs alike in many steps
// is one line with the steps counted.
func DiffText(d bench.PlanDifference) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tMANIFEST\tPLAN\tWORKLOAD\tRESET\tSTEPS")
	for _, s := range []struct {
		name string
		bench.PlanSide
	}{{"A", d.A}, {"B", d.B}} {
		fmt.Fprintf(t, "%s\t%s\t%.12s\t%.12s\t%s\t%d\n", s.name, s.Manifest, s.Plan, s.Workload, s.Reset, s.Steps)
	}
	t.Flush()
	if Equal(d) {
		b.WriteString("the plans are equal\n")
		return b.String()
	}
	onlyText(&b, "A", d.OnlyA)
	onlyText(&b, "B", d.OnlyB)
	type change struct{ path, a, b string }
	var order []change
	steps := map[change][]string{}
	for _, f := range d.Fields {
		c := change{f.Path, f.A, f.B}
		if steps[c] == nil {
			order = append(order, c)
		}
		steps[c] = append(steps[c], f.Step)
	}
	if len(order) > 0 {
		b.WriteString("\nsteps of both that differ\n")
	}
	for _, c := range order {
		where := steps[c][0]
		if n := len(steps[c]); n > 1 {
			where += fmt.Sprintf(" and %d more", n-1)
		}
		fmt.Fprintf(&b, "  %s  %s\n    A %s\n    B %s\n", where, c.path, c.a, c.b)
	}
	if len(order) == 0 && len(d.OnlyA)+len(d.OnlyB) == 0 {
		b.WriteString("\nthe steps are equal; digest of the workload, reset or order of the steps differ\n")
	}
	return b.String()
}

func onlyText(b *strings.Builder, name string, list []bench.PlanStep) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(b, "\nonly in %s\n", name)
	// Rollouts of the same steps are one line.
	type part struct{ first, last, steps string }
	var parts []part
	for len(list) > 0 {
		before, _, _ := strings.Cut(list[0].Step, "/")
		var steps []string
		for len(list) > 0 {
			prefix, step, below := strings.Cut(list[0].Step, "/")
			if prefix != before {
				break
			}
			if below {
				steps = append(steps, step)
			}
			list = list[1:]
		}
		p := part{before, before, strings.Join(steps, ", ")}
		if n := len(parts); n > 0 && parts[n-1].steps == p.steps && p.steps != "" {
			parts[n-1].last = p.last
			continue
		}
		parts = append(parts, p)
	}
	for _, p := range parts {
		switch {
		case p.steps == "":
			fmt.Fprintf(b, "  %s\n", p.first)
		case p.first == p.last:
			fmt.Fprintf(b, "  %s: %s\n", p.first, p.steps)
		default:
			fmt.Fprintf(b, "  %s to %s, each: %s\n", p.first, p.last, p.steps)
		}
	}
}

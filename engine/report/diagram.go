package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Diagram is a plan as layers of boxes with arrows between them. Rollouts that
// are wired alike are drawn once.
type Diagram struct {
	Width, Height float64
	Text          string
	Nodes         []Node
	Edges         []Arrow
	// Alike says of a rollout that was drawn which others it stands for.
	Alike []string
}

// Node is a step.
type Node struct {
	X, Y, Width, Height float64
	Label, Kind         string
	Group, Bad          string
	Title               string
}

// Arrow is an edge as an SVG path.
type Arrow struct {
	Path  string
	Order bool // order only, no value
}

const (
	nodeWidth  = 148.0
	nodeHeight = 30.0
	nodeGapX   = 14.0
	nodeGapY   = 30.0
)

// Diagram of the run's plan, its boxes marked by what came of them.
func (r *Run) Diagram() Diagram {
	verdicts := map[string]bench.Verdict{}
	for _, s := range r.Record.Steps {
		verdicts[s.Step] = s.Verdict
	}
	steps, alike, stands := drawn(r.Plan)
	d := layered(steps, stands)
	d.Alike = alike
	d.Text = fmt.Sprintf("The plan: %d of its %d steps are drawn.", len(steps), len(r.Plan.Steps))
	for i := range d.Nodes {
		s := steps[i]
		n := &d.Nodes[i]
		v := verdicts[s.Id]
		if engine.Stops(v, s.Optional) {
			n.Bad = "bad"
		}
		if v == engine.Review {
			n.Bad = "waits"
		}
		n.Group, n.Kind, n.Label = groupOf(s.Kind), s.Kind, short(s.Id, 22)
		n.Title = fmt.Sprintf("%s (%s): %s", s.Id, s.Kind, v)
	}
	return d
}

func short(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	return string(runes[:most-1]) + "…"
}

// drawn are the steps that are drawn: those before and after the rollouts, and
// the first rollout of each shape. stands says which drawn step an undrawn one
// is drawn as.
func drawn(p bench.Plan) (steps []bench.Step, alike []string, stands map[string]string) {
	of := map[int64][]bench.Step{}
	var order []int64
	for _, s := range p.Steps {
		if s.Rollout == nil || s.Release {
			continue
		}
		if of[*s.Rollout] == nil {
			order = append(order, *s.Rollout)
		}
		of[*s.Rollout] = append(of[*s.Rollout], s)
	}
	first := map[string]int64{}
	same := map[int64][]int64{}
	stands = map[string]string{}
	for _, i := range order {
		shape := shapeOf(of[i], i)
		f, known := first[shape]
		if !known {
			first[shape], f = i, i
		}
		same[f] = append(same[f], i)
		for k, s := range of[i] {
			stands[s.Id] = of[f][k].Id
		}
	}
	for _, s := range p.Steps {
		if s.Rollout == nil || s.Release {
			stands[s.Id] = s.Id
		}
		if stands[s.Id] == s.Id {
			steps = append(steps, s)
		}
	}
	for _, i := range order {
		if len(same[i]) > 1 {
			others := make([]string, 0, len(same[i])-1)
			for _, k := range same[i][1:] {
				others = append(others, fmt.Sprint(k))
			}
			alike = append(alike, fmt.Sprintf("Rollout %d stands for %s, wired alike.", i, strings.Join(others, ", ")))
		}
	}
	return steps, alike, stands
}

// shapeOf is what rollouts that are drawn once have in common: the steps' kinds
// and how they hang together. Who acts is part of it.
func shapeOf(steps []bench.Step, index int64) string {
	prefix := fmt.Sprintf("r%d/", index)
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&b, "%s %s %s:", strings.TrimPrefix(s.Id, prefix), s.Kind, s.Control)
		for _, e := range s.Needs {
			if strings.HasPrefix(e.Step, prefix) {
				fmt.Fprintf(&b, " %s %s", strings.TrimPrefix(e.Step, prefix), e.Mode)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// layered puts each step below all that it needs, next to what it hangs from. An
// edge that longer paths imply is left out.
func layered(steps []bench.Step, stands map[string]string) Diagram {
	index := map[string]int{}
	for i, s := range steps {
		index[s.Id] = i
	}
	// The plan is in a topological order.
	needs := make([]map[int]string, len(steps))
	above := make([]map[int]bool, len(steps)) // all that a step comes after
	layer := make([]int, len(steps))
	deepest := 0
	for i, s := range steps {
		needs[i], above[i] = map[int]string{}, map[int]bool{}
		for _, e := range s.Needs {
			k, known := index[stands[e.Step]]
			if !known || k >= i {
				continue
			}
			if was, twice := needs[i][k]; !twice || was == "after" {
				needs[i][k] = e.Mode
			}
			above[i][k] = true
			for a := range above[k] {
				above[i][a] = true
			}
			layer[i] = max(layer[i], layer[k]+1)
		}
		deepest = max(deepest, layer[i])
	}
	for i := range needs {
		for k := range needs[i] {
			for other := range needs[i] {
				if other != k && above[other][k] {
					delete(needs[i], k)
					break
				}
			}
		}
	}
	rows := make([][]int, deepest+1)
	for i := range steps {
		rows[layer[i]] = append(rows[layer[i]], i)
	}
	widest := 1
	for _, row := range rows {
		widest = max(widest, len(row))
	}
	d := Diagram{Width: float64(widest)*(nodeWidth+nodeGapX) + nodeGapX, Height: float64(len(rows))*(nodeHeight+nodeGapY) + nodeGapX, Nodes: make([]Node, len(steps))}
	center := make([]float64, len(steps))
	for depth, row := range rows {
		want := map[int]float64{}
		for _, i := range row {
			sum := 0.0
			for k := range needs[i] {
				sum += center[k]
			}
			want[i] = d.Width / 2
			if len(needs[i]) > 0 {
				want[i] = sum / float64(len(needs[i]))
			}
		}
		slices.SortStableFunc(row, func(a, b int) int {
			if math.Abs(want[a]-want[b]) < 0.5 {
				return a - b
			}
			if want[a] < want[b] {
				return -1
			}
			return 1
		})
		left := (d.Width - float64(len(row))*(nodeWidth+nodeGapX) + nodeGapX) / 2
		if len(row) == 1 { // below what it hangs from
			left = min(max(want[row[0]]-nodeWidth/2, nodeGapX), d.Width-nodeWidth-nodeGapX)
		}
		for k, i := range row {
			x := left + float64(k)*(nodeWidth+nodeGapX)
			center[i] = x + nodeWidth/2
			d.Nodes[i] = Node{X: x, Y: nodeGapX/2 + float64(depth)*(nodeHeight+nodeGapY), Width: nodeWidth, Height: nodeHeight}
		}
	}
	for i := range steps {
		var from []int
		for k := range needs[i] {
			from = append(from, k)
		}
		slices.Sort(from)
		for _, k := range from {
			a, b := d.Nodes[k], d.Nodes[i]
			x1, y1, x2, y2 := center[k], a.Y+nodeHeight, center[i], b.Y-2
			bend := min((y2-y1)/2, 40)
			d.Edges = append(d.Edges, Arrow{
				Path:  fmt.Sprintf("M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f", x1, y1, x1, y1+bend, x2, y2-bend, x2, y2),
				Order: needs[i][k] == "after",
			})
		}
	}
	return d
}

package planfmt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The parts of an overview; those in the middle but the rollout are of a task that branches.
const (
	partOnce = iota
	partTrunk
	partRollout
	partSiblings
	partActs
	partAfter
	partEnd
	partCount
)

// Overview is the plan's shape as a Mermaid flowchart, for a page: what happens
// once, what in each rollout, and what at the end. Of the
// rollouts it shows the first that is neither control nor warm-up (or simply the
// first). Gates that wait for the same steps are one box, and an order that
// follows from others is not drawn. It shows no deadline and no parameter. Of a
// task that branches it shows the first round's trunk, one branch that stands for
// all, and what is judged between siblings.
func Overview(p *engine.Plan) string {
	shown := shownRollout(p)
	part := parts(p)
	boxes := [partCount][]box{}
	at := map[string][2]int{} // part and box of a step
	for _, s := range p.Steps {
		if s.Rollout != nil && *s.Rollout != shown.rollout || s.Rollout == nil && s.Round != nil && (shown.round == nil || *s.Round != *shown.round) {
			continue
		}
		k := part[s.Id]
		i := slices.IndexFunc(boxes[k], func(b box) bool {
			return s.Kind == "gate" && b.steps[0].Kind == "gate" && slices.Equal(sources(b.steps[0]), sources(s))
		})
		if i < 0 {
			i = len(boxes[k])
			boxes[k] = append(boxes[k], box{})
		}
		boxes[k][i].steps = append(boxes[k][i].steps, s)
		at[s.Id] = [2]int{k, i}
	}
	var out strings.Builder
	out.WriteString("flowchart LR\n")
	titles := [partCount]string{"once", "each round: the trunk", "each rollout", "siblings, all alive", "each branch acts", "siblings, when all have acted", "at the end; releases whatever happened"}
	if controlled(p) {
		titles[partRollout] = "each rollout; in the first nobody acts, in the second the oracle"
	}
	if names := branches(p, shown); len(names) > 0 {
		titles[partRollout] = "each branch: " + strings.Join(names, ", ")
	}
	var before string
	n := -1
	for k, list := range boxes {
		if len(list) == 0 {
			continue
		}
		n++
		name := fmt.Sprintf("part%d", n)
		if before != "" {
			fmt.Fprintf(&out, "  %s ==> %s\n", before, name)
		}
		before = name
		fmt.Fprintf(&out, "  subgraph %s[\"%s\"]\n    direction TB\n", name, escape(titles[k]))
		for i, b := range list {
			fmt.Fprintf(&out, "    p%db%d[\"%s\"]\n", n, i, escape(b.label()))
		}
		last := -1 // the box that the line ends with: edges of a chain are one line
		for _, e := range reduced(edges(list, k, at), len(list)) {
			if e[0] != last {
				if last >= 0 {
					out.WriteString("\n")
				}
				fmt.Fprintf(&out, "    p%db%d", n, e[0])
			}
			fmt.Fprintf(&out, " --> p%db%d", n, e[1])
			last = e[1]
		}
		if last >= 0 {
			out.WriteString("\n")
		}
		out.WriteString("  end\n")
	}
	return out.String()
}

// box is a step, or gates that wait for the same steps.
type box struct{ steps []bench.Step }

// label names a box by its steps without what they have in common.
func (b box) label() string {
	var names []string
	for _, s := range b.steps {
		_, name, found := strings.Cut(s.Id, "/")
		if !found || s.Kind == "release" {
			name = s.Id
		}
		names = append(names, strings.TrimPrefix(name, "gate-"))
	}
	if b.steps[0].Kind != "gate" {
		return names[0]
	}
	if len(names) == 1 {
		return "gate: " + names[0]
	}
	common, _, found := strings.Cut(names[0], "-")
	for _, n := range names {
		found = found && strings.HasPrefix(n, common+"-")
	}
	if found {
		for i := range names {
			names[i] = strings.TrimPrefix(names[i], common+"-")
		}
		common = ", " + common
	} else {
		common = ""
	}
	return "gates" + common + ": " + strings.Join(names, ", ")
}

// shownPart is what an overview shows of all rollouts and rounds.
type shownPart struct {
	rollout int64
	round   *int64
}

func shownRollout(p *engine.Plan) shownPart {
	first, found := shownPart{}, false
	for _, s := range p.Steps {
		if s.Rollout == nil {
			continue
		}
		if s.Control == "" && !s.Warmup {
			return shownPart{*s.Rollout, s.Round}
		}
		if !found {
			first, found = shownPart{*s.Rollout, s.Round}, true
		}
	}
	return first
}

// branches of the shown round, in the plan's order.
func branches(p *engine.Plan, shown shownPart) (names []string) {
	for _, s := range p.Steps {
		if s.Branch != "" && *s.Round == *shown.round && !slices.Contains(names, string(s.Branch)) {
			names = append(names, string(s.Branch))
		}
	}
	return names
}

func controlled(p *engine.Plan) bool {
	return slices.ContainsFunc(p.Steps, func(s bench.Step) bool { return s.Control != "" })
}

// parts says for each step whether it is of a rollout, comes after one, or
// neither, and which part of its round it is. Steps are in a topological order.
func parts(p *engine.Plan) map[string]int {
	part, rounds := map[string]int{}, map[string]int64{}
	// behind says that a step of the same round that it needs is of a part, or of a later one.
	behind := func(s bench.Step, least int) bool {
		return slices.ContainsFunc(s.Needs, func(e bench.Edge) bool {
			of, has := rounds[e.Step]
			return has && of == *s.Round && part[e.Step] >= least
		})
	}
	for _, s := range p.Steps {
		if s.Round != nil {
			rounds[s.Id] = *s.Round
		}
		switch {
		case s.Branch != "" && behind(s, partSiblings):
			part[s.Id] = partActs
		case s.Rollout != nil:
			part[s.Id] = partRollout
		case s.Round != nil && s.Slot != "":
			part[s.Id] = partTrunk
		case s.Round != nil && behind(s, partActs):
			part[s.Id] = partAfter
		case s.Round != nil:
			part[s.Id] = partSiblings
		case s.Release || slices.ContainsFunc(s.Needs, func(e bench.Edge) bool { return part[e.Step] != partOnce }):
			part[s.Id] = partEnd
		default:
			part[s.Id] = partOnce
		}
	}
	return part
}

// sources are the steps that a step needs, each once, sorted.
func sources(s bench.Step) []string {
	var list []string
	for _, e := range s.Needs {
		list = append(list, e.Step)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// edges are those between the boxes of one part.
func edges(list []box, part int, at map[string][2]int) (out [][2]int) {
	for i, b := range list {
		for _, s := range b.steps {
			for _, from := range sources(s) {
				if f, drawn := at[from]; drawn && f[0] == part && f[1] != i && !slices.Contains(out, [2]int{f[1], i}) {
					out = append(out, [2]int{f[1], i})
				}
			}
		}
	}
	return out
}

// reduced leaves out each edge whose order follows from others.
func reduced(all [][2]int, n int) (out [][2]int) {
	reach := make([][]bool, n) // by a way of any length
	for i := range reach {
		reach[i] = make([]bool, n)
	}
	for _, e := range all {
		reach[e[0]][e[1]] = true
	}
	for k := range n {
		for i := range n {
			for j := range n {
				reach[i][j] = reach[i][j] || reach[i][k] && reach[k][j]
			}
		}
	}
	for _, e := range all {
		around := slices.ContainsFunc(all, func(o [2]int) bool { return o[0] == e[0] && o[1] != e[1] && reach[o[1]][e[1]] })
		if !around {
			out = append(out, e)
		}
	}
	return out
}

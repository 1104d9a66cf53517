package register

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Turn is one run of an experiment: which arm and reset, and which of their blocks.
type Turn struct {
	Arm, Reset string
	Block      int64
	// Blocks is how many there are, Position where the turn stands among all, from 0.
	Blocks   int64
	Position int
}

// Schedule says which run follows which.
//
//	sequence   A A B B    every block of one arm and reset, then the next
//	abba       A B B A    one of each, every second time backwards
func Schedule(arms, resets []string, e bench.Experiment) (turns []Turn) {
	var one []Turn
	for _, arm := range arms {
		for _, reset := range resets {
			one = append(one, Turn{Arm: arm, Reset: reset, Blocks: e.Blocks})
		}
	}
	for block := range e.Blocks {
		round := slices.Clone(one)
		if e.Order == "abba" && block%2 == 1 {
			slices.Reverse(round)
		}
		for _, t := range round {
			t.Block = block
			turns = append(turns, t)
		}
	}
	if e.Order == "sequence" {
		place := func(t Turn) int {
			return slices.IndexFunc(one, func(o Turn) bool { return o.Arm == t.Arm && o.Reset == t.Reset })
		}
		slices.SortStableFunc(turns, func(a, b Turn) int { return place(a) - place(b) })
	}
	for i := range turns {
		turns[i].Position = i
	}
	return turns
}

// ArmsInTurn are the arms that a manifest has, in the order in which they run.
func ArmsInTurn(m bench.Manifest) []string {
	order := []string{"drums", "oci", "qemu", "fake"}
	return slices.SortedStableFunc(slices.Values(armsOf(m)), func(a, b string) int {
		return cmp.Compare(slices.Index(order, a), slices.Index(order, b))
	})
}

// Folder is the run's in the experiment's.
func (t Turn) Folder() string {
	name := t.Arm + "-" + t.Reset
	if t.Blocks > 1 {
		name += fmt.Sprintf("-%d", t.Block)
	}
	return name
}

// Facts say where in the experiment the run stood.
func (t Turn) Facts(e bench.Experiment) []bench.Fact {
	known := func(name, value string) bench.Fact {
		return bench.Fact{Name: "experiment." + name, Known: true, Value: value, Source: "the schedule"}
	}
	return []bench.Fact{known("order", e.Order), known("blocks", fmt.Sprint(t.Blocks)), known("block", fmt.Sprint(t.Block)), known("position", fmt.Sprint(t.Position))}
}

// misplaced says how a run did not stand where the schedule has one of its arm and
// reset; empty where it did. What its facts do not say is not as registered. Two
// runs of one turn are more than registered, which is said elsewhere.
func misplaced(r Run) string {
	m := r.Registered.Manifest
	facts := map[string]string{}
	for _, f := range r.Record.Facts {
		if f.Known {
			facts[f.Name] = f.Value
		}
	}
	at := func(get func(string) string) string {
		return fmt.Sprintf("order %s, block %s of %s, position %s", get("order"), get("block"), get("blocks"), get("position"))
	}
	have := at(func(name string) string { return cmp.Or(facts["experiment."+name], "unknown") })
	var want []string
	for _, t := range Schedule(ArmsInTurn(m), m.Experiment.Reset, m.Experiment) {
		if t.Arm != r.Record.Arm || t.Reset != string(r.Record.Reset) {
			continue
		}
		planned := map[string]string{}
		for _, f := range t.Facts(m.Experiment) {
			planned[f.Name] = f.Value
		}
		want = append(want, at(func(name string) string { return planned["experiment."+name] }))
	}
	if slices.Contains(want, have) {
		return ""
	}
	return fmt.Sprintf("it did not run in its turn: %s is not among %q", have, want)
}

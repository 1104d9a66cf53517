package register

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Turn is one run of an experiment: which arm and reset, and which of their blocks.
type Turn struct {
	Arm, Reset string
	Block      int64
	// Blocks is how many there are, Position where the turn stands among all, from 0.
	Blocks   int64
	Position int
	// Part of the experiment, beside its ordinary runs; nil for those. A sustained
	// part is as many runs as its time allows.
	Part *bench.Part
}

// Schedule says which run follows which.
//
//	sequence   A A B B    every block of one arm and reset, then the next
//	abba       A B B A    one of each, every second time backwards
//
// After the ordinary runs come the levels of a sweep, every trial a round of all
// levels, and then the sustained windows, each a round of one window for each arm
// and reset: in the same order.
func Schedule(arms, resets []string, e bench.Experiment) (turns []Turn) {
	var one []Turn
	for _, arm := range arms {
		for _, reset := range resets {
			one = append(one, Turn{Arm: arm, Reset: reset, Blocks: e.Blocks})
		}
	}
	turns = rounds(one, e.Blocks, e.Order)
	of := func(kind string, slots []int64, times int64) (list []Turn) {
		for _, n := range slots {
			for _, t := range one {
				t.Blocks, t.Part = times, &bench.Part{Kind: kind, Slots: n}
				list = append(list, t)
			}
		}
		return list
	}
	if s := e.Sweep; s != nil {
		turns = append(turns, rounds(of("level", s.Slots, s.Trials), s.Trials, e.Order)...)
	}
	if s := e.Sustain; s != nil {
		turns = append(turns, rounds(of("sustain", []int64{s.Slots}, s.Windows), s.Windows, e.Order)...)
	}
	for i := range turns {
		turns[i].Position = i
	}
	return turns
}

// rounds repeats one so often, in an order.
func rounds(one []Turn, times int64, order string) (turns []Turn) {
	for block := range times {
		round := slices.Clone(one)
		if order == "abba" && block%2 == 1 {
			slices.Reverse(round)
		}
		for _, t := range round {
			t.Block = block
			if t.Part != nil {
				part := *t.Part
				part.Series = block
				t.Part = &part
			}
			turns = append(turns, t)
		}
	}
	if order == "sequence" {
		place := func(t Turn) int {
			return slices.IndexFunc(one, func(o Turn) bool {
				return o.Arm == t.Arm && o.Reset == t.Reset && (o.Part == nil || o.Part.Slots == t.Part.Slots)
			})
		}
		slices.SortStableFunc(turns, func(a, b Turn) int { return place(a) - place(b) })
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
	if p := t.Part; p != nil && p.Kind == "level" {
		return fmt.Sprintf("%s-level%d-%d", name, p.Slots, p.Series)
	} else if p != nil {
		return fmt.Sprintf("%s-window%d-%03d", name, p.Series, p.Run)
	}
	if t.Blocks > 1 {
		name += fmt.Sprintf("-%d", t.Block)
	}
	return name
}

// Next is the same turn's next run.
func (t Turn) Next() Turn {
	if t.Part != nil {
		part := *t.Part
		part.Run++
		t.Part = &part
	}
	return t
}

// Again says whether a turn has another run: a window's time is not over yet, by
// the records of its first and latest run, as whoever reads them counts it.
func (t Turn) Again(e bench.Experiment, first, latest bench.Record) bool {
	if t.Part == nil || t.Part.Kind != "sustain" {
		return false
	}
	d, derr := time.ParseDuration(string(e.Sustain.Duration))
	from, ferr := time.Parse(time.RFC3339Nano, string(first.Started))
	to, terr := time.Parse(time.RFC3339Nano, string(latest.Ended))
	return derr == nil && ferr == nil && terr == nil && to.Sub(from) < d
}

// Facts say where in the experiment the run stood.
func (t Turn) Facts(e bench.Experiment) []bench.Fact {
	known := func(name, value string) bench.Fact {
		return bench.Fact{Name: "experiment." + name, Known: true, Value: value, Source: "the schedule"}
	}
	facts := []bench.Fact{known("order", e.Order), known("blocks", fmt.Sprint(t.Blocks)), known("block", fmt.Sprint(t.Block)), known("position", fmt.Sprint(t.Position))}
	if p := t.Part; p != nil {
		facts = append(facts, known("part", p.Kind), known("slots", fmt.Sprint(p.Slots)))
		if p.Kind == "sustain" {
			facts = append(facts, known("run", fmt.Sprint(p.Run)))
		}
	}
	return facts
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

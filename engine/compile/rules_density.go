package compile

import (
	"fmt"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// pageCache checks that what is dropped can leave: what another slot has mapped
// would stay in memory, and a machine that is reset in place is not ended.
func (r *rules) pageCache(m bench.Manifest) {
	e := m.Experiment
	if e.PageCache != "dropped" {
		return
	}
	for _, c := range []struct {
		is   bool
		what string
	}{
		{e.Slots > 1, "slots above 1"}, {e.Pool > 0, "a pool"}, {e.Sweep != nil, "a sweep"}, {e.Sustain != nil && e.Sustain.Slots > 1, "sustain.slots above 1"},
		{m.Arms.Qemu != nil && m.Arms.Qemu.Snapshot == "inplace", `arms.qemu.snapshot "inplace"`},
	} {
		if c.is {
			r.add("experiment.pageCache", "dropped goes with one slot at a time that is ended before each reset, and not with "+c.what, "leave one of the two out")
		}
	}
}

// settle of a checkpoint parses and is above 0.
func (r *rules) settle(m bench.Manifest) {
	if c := m.Checkpoint; c != nil && c.Settle != "" {
		r.duration("checkpoint.settle", string(c.Settle))
	}
}

// memoryAfter checks that there is one slot that can be left alone for that long.
func (r *rules) memoryAfter(m bench.Manifest) {
	if m.Experiment.MemoryAfter == "" {
		return
	}
	r.duration("experiment.memoryAfter", string(m.Experiment.MemoryAfter))
	if m.Task.Branching != nil || m.Experiment.Sustain != nil {
		r.add("experiment.memoryAfter", "a task that branches, and a sustained window, wait for no slot", "leave one of the two out")
	}
}

// budget has a time that parses and is above 0, a number of rollouts, or both.
func (r *rules) budget(b *bench.Budget) {
	switch {
	case b == nil:
	case b.Time != "":
		r.duration("experiment.budget.time", string(b.Time))
	case b.Trials == 0:
		r.add("experiment.budget", "bounds nothing", "name time, trials, or both")
	}
}

// density checks what an experiment asks of many slots at once.
//
//	sweep.slots        ascend, so that what lies above a level is what comes after it
//	sweep.settle, sweep.isolation, sustain.duration   parse and are above 0; isolation.period is at most its watch
//	prices             inference that is counted has a price, a day and a source; that is not counted has none
func (r *rules) density(e bench.Experiment) {
	if s := e.Sweep; s != nil {
		for i := 1; i < len(s.Slots); i++ {
			if s.Slots[i] <= s.Slots[i-1] {
				r.add(fmt.Sprintf("experiment.sweep.slots[%d]", i), fmt.Sprintf("%d comes after %d", s.Slots[i], s.Slots[i-1]), "name each number once, ascending")
			}
		}
		r.duration("experiment.sweep.settle", s.Settle)
		if w := s.Isolation; w != nil {
			watch, period := r.duration("experiment.sweep.isolation.watch", string(w.Watch)), r.duration("experiment.sweep.isolation.period", w.Period)
			if watch > 0 && period > watch {
				r.add("experiment.sweep.isolation.period", fmt.Sprintf("%s is longer than what is watched, %s", w.Period, w.Watch), "")
			}
		}
	}
	if s := e.Sustain; s != nil {
		r.duration("experiment.sustain.duration", string(s.Duration))
	}
	if p := e.Prices; p != nil {
		i := p.Inference
		priced := i.Rollout != "" && i.Date != "" && i.Source != ""
		switch {
		case i.Counted == "in" && !priced:
			r.add("experiment.prices.inference", "inference is counted, and lacks rollout, date or source", `name them, or set counted: "out"`)
		case i.Counted == "out" && i.Rollout != "":
			r.add("experiment.prices.inference.rollout", "is a price of what is not counted", `set counted: "in", or leave the price out`)
		}
	}
}

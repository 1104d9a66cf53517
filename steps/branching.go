package steps

import (
	"fmt"
	"slices"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Of a task that branches, a round stands in the place of a rollout:
//
//	trunk      restore as in Block -> witness -> prefix -> witness -> identify -> gate(canary) -> gates(enclosed) -> dump -> gate(checkpoint)
//	branches   each, all alive at once: restore of that checkpoint as in Block, with an identity of its own
//	           -> measure -> identify -> witness -> gate(carried)
//	siblings   audit -> gate(audit, by the cold pair), gate(hygiene) -> isolate
//	branches   inspect -> evaluate(before) -> act -> evaluate(after: the branch's score) -> witness -> gate(canary)
//	siblings   gate(diverged), gate(parent)
//
// Before the first checkpoint the slot that is dumped stands beside a second cold one: what those two share any two do.
// Cold, each branch is a rollout of its own, whose preparation is set-up and prefix.

// branchPoint is what the rounds are made from.
type branchPoint struct {
	// task is the checkpoint that each trunk restores.
	task engine.Promise[engine.Checkpoint]
}

// control is what two cold slots share, and what each of them is.
type control struct {
	made   bool
	shared engine.Promise[engine.Audited]
	ids    [2]engine.Promise[engine.Identity]
}

// coldPair makes a second cold slot beside one, reads what each is, and lists what they share. The place is the second
// sibling's later.
func (w *wiring) coldPair(base At, slot engine.Promise[engine.Slot], planted engine.Promise[engine.Canary]) engine.Input {
	at := At{ID: "pair/provision", Slot: slotName(1)}
	second := w.provision(at, slotName(1), engine.Promise[engine.Place]{})
	prepared, _ := w.fresh(at, second)
	w.last[1] = engine.AsPlace(second)
	w.pair.made = true
	w.pair.ids = [2]engine.Promise[engine.Identity]{w.identify(base, slot, planted), w.identify(at, second, prepared)}
	w.pair.shared = Audit(w.b, at.step("audit"), []engine.Promise[engine.Slot]{slot, second}, engine.After(w.pair.ids[0]), engine.After(w.pair.ids[1]))
	return engine.After(w.pair.shared)
}

func (w *wiring) identify(at At, slot engine.Promise[engine.Slot], planted engine.Promise[engine.Canary], after ...engine.Input) engine.Promise[engine.Identity] {
	return Identify(w.b, at.step("identify"), slot, planted, bench.IdentifyParams{Port: w.port(), Hygiene: w.m.Hygiene}, after...)
}

// compared judges siblings: what they share, and what they are.
func (w *wiring) compared(at At, slots []engine.Promise[engine.Slot], ids []engine.Promise[engine.Identity], held ...engine.Input) []engine.Input {
	return []engine.Input{
		engine.After(GateAudit(w.b, at.step("gate-audit"), Audit(w.b, at.step("audit"), slots, held...), w.pair.shared)),
		engine.After(GateHygiene(w.b, at.step("gate-hygiene"), w.pair.ids, ids, w.m.Hygiene)),
	}
}

// siblings says whether slots of one checkpoint are compared outside of a task that branches.
func (w *wiring) siblings() bool {
	return w.m.Hygiene != nil && w.m.Task.Branching == nil && w.sweep == nil && w.m.Experiment.Slots > 1
}

// rounds wires the rounds behind the controls; next is the number of the first branch's rollout.
func (w *wiring) rounds(next int64, end func(k int, e engine.Input)) {
	b, e := w.m.Task.Branching, w.m.Experiment
	ended := slices.Clone(w.ends) // of the round before: the controls
	for n := range e.Warmup + e.Rollouts {
		ended = w.round(n, next+n*int64(len(b.Branches)), ended)
	}
	for k := range w.last {
		for _, last := range ended {
			end(k, last)
		}
	}
}

// round wires one round and returns what the next has to wait for.
func (w *wiring) round(n, first int64, after []engine.Input) (ended []engine.Input) {
	b, e := w.m.Task.Branching, w.m.Experiment
	policy := bench.Policy{Oracle: &bench.OraclePolicy{}}
	act := func(commands []bench.Command, seed int64) bench.ActParams {
		return bench.ActParams{Port: w.port(), Policy: policy, Commands: nonNil(commands), Seed: seed}
	}
	trunk := At{ID: fmt.Sprintf("t%d/", n), Slot: slotName(0), Warmup: n < e.Warmup, Round: &n}
	slot, planted := w.reset(trunk, w.branch.task, w.last[0], nil, after...)
	start := w.witness(trunk.step("witness-start"), slot, engine.After(planted))
	prefix := Act(w.b, trunk.step("prefix"), slot, act(b.Prefix, e.Seed+n), engine.After(start))
	point := w.witness(trunk.step("witness"), slot, engine.After(prefix))
	ids := []engine.Promise[engine.Identity]{w.identify(trunk, slot, planted, engine.After(point))}
	own := w.canary(trunk, slot, planted, engine.After(ids[0]))
	dumped, complete := w.dump(trunk, slot, engine.After(own))
	cp := engine.First(dumped)
	w.last[0] = engine.Second(dumped)

	var all []begun
	var slots []engine.Promise[engine.Slot]
	var held []engine.Input
	for k, branch := range b.Branches {
		i := first + int64(k)
		at := At{ID: fmt.Sprintf("r%d/", i), Window: fmt.Sprintf("reset-%d", n), Rollout: &i, Slot: slotName(k), Warmup: n < e.Warmup, Branch: string(branch.Name), Round: &n}
		slot, planted := w.reset(at, cp, w.last[k], nil, engine.After(complete))
		r := w.begun(at, k, slot, planted, nil)
		id := w.identify(r.at, slot, planted, engine.After(r.measured))
		carried := GateCarried(w.b, r.at.step("gate-carried"), start, point, w.witness(r.at.step("witness"), slot, engine.After(id)))
		all, slots, ids, held = append(all, r), append(slots, slot), append(ids, id), append(held, engine.After(carried))
	}
	siblings := At{ID: fmt.Sprintf("s%d/", n), Warmup: n < e.Warmup, Round: &n}
	isolated := Isolate(w.b, siblings.step("isolate"), slots, bench.IsolateParams{Port: w.port(), Isolation: b.Isolation,
		Home: bench.GuestPath(w.m.Guest.Home), Clipboard: w.m.Guest.Display != nil}, w.compared(siblings, slots, ids, held...)...)

	var states []engine.Promise[engine.Witness]
	var judged []engine.Input
	for k, r := range all {
		score := float64(b.Branches[k].Score)
		judge := w.evaluate("after", policy)
		judge.Expect = &score
		_, after := w.acted(r, policy, act(b.Branches[k].Act, e.Seed+n), judge, engine.After(isolated))
		state := w.witness(r.at.step("witness-after"), r.slot, engine.After(after))
		canary := w.canary(r.at, r.slot, r.planted, engine.After(state))
		w.ended(k, r.slot, canary)
		states, judged = append(states, state), append(judged, engine.After(canary))
	}
	diverged := GateDiverged(w.b, siblings.step("gate-diverged"), b.Branches, point, states)
	parent := GateParent(w.b, siblings.step("gate-parent"), cp, judged...)
	ended = append(judged, engine.After(diverged), engine.After(parent))
	w.ends = append(w.ends, engine.After(diverged), engine.After(parent))
	return ended
}

// groups wires rollouts that are siblings of one moment: nobody acts before all of a group were compared. The last of
// the groups may be one slot, which has nobody to be compared with.
func (w *wiring) groups(next int64, begin func(at At, k int, take *taking) begun, finish func(r begun, policy bench.Policy, seed int64, held ...engine.Input) engine.Input, end func(k int, e engine.Input)) {
	e := w.m.Experiment
	total := e.Warmup + e.Rollouts
	for first := int64(0); first < total; first += e.Slots {
		var all []begun
		var slots []engine.Promise[engine.Slot]
		var ids []engine.Promise[engine.Identity]
		var held []engine.Input
		round := first / e.Slots
		for n := first; n < min(first+e.Slots, total); n++ {
			i, k := next+n, int(n-first)
			at := At{ID: fmt.Sprintf("r%d/", i), Window: fmt.Sprintf("reset-%d", round), Rollout: &i, Slot: slotName(k), Warmup: n < e.Warmup}
			r := begin(at, k, nil)
			id := w.identify(r.at, r.slot, r.planted, engine.After(r.measured))
			all, slots, ids, held = append(all, r), append(slots, r.slot), append(ids, id), append(held, engine.After(id))
		}
		if len(slots) > 1 {
			held = w.compared(At{ID: fmt.Sprintf("s%d/", round), Warmup: first < e.Warmup}, slots, ids, held...)
		}
		for n, r := range all {
			end(n, finish(r, w.policyOf(), e.Seed+first+int64(n), held...))
		}
	}
}

func (w *wiring) witness(at At, slot engine.Promise[engine.Slot], after ...engine.Input) engine.Promise[engine.Witness] {
	return TakeWitness(w.b, at, slot, bench.WitnessParams{Port: w.port(), Commands: w.m.Task.Branching.Witness}, after...)
}

// coldRounds wires each branch as a rollout that begins cold and does the prefix as a part of its preparation.
func (w *wiring) coldRounds(next int64, begin func(at At, k int, take *taking) begun, end func(k int, e engine.Input)) {
	b, e := w.m.Task.Branching, w.m.Experiment
	policy := bench.Policy{Oracle: &bench.OraclePolicy{}}
	for n := range e.Warmup + e.Rollouts {
		for _, branch := range b.Branches {
			i := next
			next++
			at := At{ID: fmt.Sprintf("r%d/", i), Window: fmt.Sprintf("reset-%d", i-int64(len(Controls))), Rollout: &i, Slot: slotName(0),
				Warmup: n < e.Warmup, Branch: string(branch.Name), Round: &n}
			r := begin(at, 0, nil)
			score := float64(branch.Score)
			judge := w.evaluate("after", policy)
			judge.Expect = &score
			_, after := w.acted(r, policy, bench.ActParams{Port: w.port(), Policy: policy, Commands: nonNil(branch.Act), Seed: e.Seed + n}, judge)
			canary := w.canary(r.at, r.slot, r.planted, engine.After(after))
			w.ended(0, r.slot, canary)
			end(0, engine.After(canary))
		}
	}
}

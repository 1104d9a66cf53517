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
	// pair is what two cold slots share.
	pair engine.Promise[engine.Audited]
}

// coldPair makes a second cold slot beside one, and lists what they share. The place is the second branch's later.
func (w *wiring) coldPair(slot engine.Promise[engine.Slot], after ...engine.Input) engine.Input {
	at := At{ID: "pair/provision", Slot: slotName(1)}
	second := w.provision(at, slotName(1), engine.Promise[engine.Place]{})
	prepared, _ := w.fresh(at, second)
	w.last[1] = engine.AsPlace(second)
	w.branch.pair = Audit(w.b, at.step("audit"), []engine.Promise[engine.Slot]{slot, second}, append(slices.Clip(after), engine.After(prepared))...)
	return engine.After(w.branch.pair)
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
	ids := []engine.Promise[engine.Identity]{Identify(w.b, trunk.step("identify"), slot, planted, bench.IdentifyParams{Port: w.port()}, engine.After(point))}
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
		id := Identify(w.b, r.at.step("identify"), slot, planted, bench.IdentifyParams{Port: w.port()}, engine.After(r.measured))
		carried := GateCarried(w.b, r.at.step("gate-carried"), start, point, w.witness(r.at.step("witness"), slot, engine.After(id)))
		all, slots, ids, held = append(all, r), append(slots, slot), append(ids, id), append(held, engine.After(carried))
	}
	siblings := At{ID: fmt.Sprintf("s%d/", n), Warmup: n < e.Warmup, Round: &n}
	audit := GateAudit(w.b, siblings.step("gate-audit"), Audit(w.b, siblings.step("audit"), slots, held...), w.branch.pair)
	hygiene := GateHygiene(w.b, siblings.step("gate-hygiene"), ids)
	isolated := Isolate(w.b, siblings.step("isolate"), slots, bench.IsolateParams{Port: w.port(), Isolation: b.Isolation,
		Home: bench.GuestPath(w.m.Guest.Home), Clipboard: w.m.Guest.Display != nil}, engine.After(audit), engine.After(hygiene))

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

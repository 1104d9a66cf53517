package steps

import (
	"fmt"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps/gate"
)

// Block wires the plan of one arm-block: the same for every arm.
//
//	survey -> mount -> provision -> gates -> readiness -> prepare -> gates(enclosed) -> dump -> gate(checkpoint)
//	  each rollout: restore -> gates@stopped -> resume -> gates -> readiness -> reseed
//	                -> measure -> inspect -> evaluate(before) -> act -> evaluate(after) -> gate(canary)
//	release -> gate(cleanup) (always)
//
// The first two rollouts are controls: one in which nobody acts and the score
// must stay 0, one in which the oracle acts and it must become 1. A task that
// fails either is worth no number: nothing after it is run. In cold mode each rollout is provision, readiness, prepare in place of
// restore. Rollouts go round the slots; a measurement window holds the resets of
// one round, siblings together. With a pool there are more slots than act at a
// time: each is made ready outside of any window, and the window holds what is
// left to do when a rollout takes it. A task that branches has rounds in their place (branching.go).
func Block(m bench.Manifest, workload bench.SHA256, reset string) (*engine.Plan, error) {
	return BlockOf(m, workload, reset, nil)
}

// BlockOf wires the plan of a part of the experiment; nil is an ordinary run.
//
//	level    mount -> baseline -> provision ...; one rollout for each slot, all at once: after the last of them is
//	         measured, density reads host and slots in a window of its own, then isolate, then everybody acts;
//	         release of the slots -> baseline -> release of the image
//	sustain  the ordinary plan with so many slots, no warm-up and no pool
func BlockOf(m bench.Manifest, workload bench.SHA256, reset string, part *bench.Part) (*engine.Plan, error) {
	w := wiring{b: engine.NewBuilder(), m: m, workload: workload, dropping: m.Experiment.PageCache == PageCacheDropped}
	if part != nil {
		e := &w.m.Experiment
		e.Slots, e.Pool, e.Warmup = part.Slots, 0, 0
		switch {
		case part.Kind == PartSustain && m.Experiment.Sustain != nil:
		case part.Kind == PartLevel && m.Experiment.Sweep != nil:
			e.Rollouts, w.sweep = part.Slots, m.Experiment.Sweep
		default:
			return nil, fmt.Errorf("compile plan: the experiment has no %q: %w", part.Kind, engine.ErrUsage)
		}
	}
	w.begin()
	switch reset {
	case "restore":
		w.restore()
	case "cold":
		w.cold()
	default:
		return nil, fmt.Errorf("compile plan: no reset named %q: %w", reset, engine.ErrUsage)
	}
	return w.b.Build(workload, reset)
}

// Kinds of parts of an experiment.
const (
	PartLevel   = "level"
	PartSustain = "sustain"
)

type wiring struct {
	b        *engine.Builder
	m        bench.Manifest
	workload bench.SHA256
	root     engine.Promise[engine.Root]
	// sweep is that of a run which holds all its slots at once; nil for others.
	sweep *bench.Sweep
	// ground is the baseline before any slot.
	ground []engine.Input
	// survey is the host before the run.
	survey engine.Promise[engine.Reading[engine.Survey]]
	// last keeps each slot's place, and what must come before its release.
	last []engine.Promise[engine.Place]
	// first is the evaluation before the act in the first rollout: what the checker stands on there, it must stand on in all.
	first engine.Promise[engine.Score]
	// late: a checkpoint holds nothing of the task, whose set-up is each rollout's own.
	late bool
	// dropping: the page cache is emptied before each reset.
	dropping bool
	// branch is what the rounds of a task that branches restore and are judged by; nil where there is no checkpoint.
	branch *branchPoint
	// pair is what siblings are compared with.
	pair control
	// checkpoint that rollouts begin with; not there in cold mode.
	checkpoint engine.Promise[engine.Checkpoint]
	// compares says that each restored screen is compared with the dumped one; the person who is asked then sees both.
	compares bool
	// looked says that a rollout's screen waits for a person already.
	looked bool
	// ends are the last gates of all rollouts.
	ends []engine.Input
}

// begin looks at the host, then mounts the image.
func (w *wiring) begin() {
	w.survey = Survey(w.b, At{ID: "survey"})
	w.root = Mount(w.b, At{ID: "mount"}, bench.MountParams{Image: w.m.Image}, engine.After(w.survey))
	if w.sweep != nil {
		w.ground = []engine.Input{engine.After(w.baseline("baseline-before", false, engine.After(w.root)))}
	}
}

func (w *wiring) baseline(id string, release bool, after ...engine.Input) engine.Promise[engine.Measured] {
	return HostBaseline(w.b, At{ID: id}, bench.BaselineParams{Settle: bench.Duration(w.sweep.Settle), Samples: w.sweep.Samples}, release, after...)
}

func (w *wiring) port() int64 { return w.m.Guest.Server.Port }

func (w *wiring) policy() bench.CheckpointPolicy {
	if w.m.Checkpoint != nil {
		return *w.m.Checkpoint
	}
	return bench.CheckpointPolicy{EstablishedTCP: "refuse", GhostLimit: "64MiB"}
}

func (w *wiring) exclude() []string {
	out := []string{}
	if w.m.State != nil {
		for _, p := range w.m.State.Exclude {
			out = append(out, string(p))
		}
	}
	return out
}

func (w *wiring) provision(at At, slot string, place engine.Promise[engine.Place], after ...engine.Input) engine.Promise[engine.Slot] {
	return Provision(w.b, at, w.root, place, bench.ProvisionParams{
		Slot: bench.Name(slot), Network: w.m.Network, Guest: w.m.Guest, Resources: w.m.Resources,
		Policy: w.policy(), Exclude: w.exclude(), Driver: w.m.Image.Driver,
	}, append(after, w.ground...)...)
}

// under returns at with another step's name.
func (a At) step(name string) At {
	prefix, _, _ := strings.Cut(a.ID, "/")
	a.ID = prefix + "/" + name
	return a
}

// fresh takes a provisioned slot to its prepared state, each gate on the way.
func (w *wiring) fresh(at At, slot engine.Promise[engine.Slot]) (prepared engine.Promise[engine.Canary], gates []engine.Input) {
	limits := GateSlot(w.b, at.step("gate-limits"), slot, bench.GateParams{Gate: gate.Limits, Resources: &w.m.Resources})
	mounts := GateSlot(w.b, at.step("gate-mount-contract"), slot, bench.GateParams{Gate: gate.MountContract})
	config := GateSlot(w.b, at.step("gate-tool-config"), slot, bench.GateParams{Gate: gate.ToolConfig})
	ready := w.readiness(at, slot, engine.After(limits), engine.After(mounts), engine.After(config))
	server := GateSlot(w.b, at.step("gate-server"), slot, bench.GateParams{Gate: gate.Server, Port: w.port(), Server: &w.m.Guest.Server}, engine.After(ready))
	network := GateSlot(w.b, at.step("gate-network-up"), slot, bench.GateParams{Gate: gate.NetworkUp}, engine.After(ready))
	prepared = w.prepare(at, slot, !w.late, engine.After(ready), engine.After(server), engine.After(network))
	return prepared, []engine.Input{engine.After(prepared)}
}

// prepare does the task's set-up, where this is its time, and plants the canary.
func (w *wiring) prepare(at At, slot engine.Promise[engine.Slot], setup bool, after ...engine.Input) engine.Promise[engine.Canary] {
	commands := []bench.Command{}
	if setup {
		commands = nonNil(w.m.Task.Setup)
		if at.Branch != "" { // a cold branch
			commands = append(slices.Clip(commands), w.m.Task.Branching.Prefix...)
		}
	}
	return Prepare(w.b, at.step("prepare"), slot, bench.PrepareParams{Port: w.port(), Setup: commands, Canary: w.m.Canary}, after...)
}

// rule of readiness.
func (w *wiring) rule() bench.ReadinessParams {
	services := []string{}
	for _, s := range w.m.Guest.Services {
		services = append(services, string(s.Name))
	}
	r := w.m.Readiness
	r.Probes, r.Windows = nonNil(r.Probes), nonNil(r.Windows)
	p := bench.ReadinessParams{Port: w.port(), Readiness: r, Services: services, Display: w.m.Guest.Display}
	if r.Input != nil && w.m.Screen != nil {
		p.Moving = w.m.Screen.Moving
	}
	return p
}

// readiness of a slot; with a pool the slot then waits until it is taken.
func (w *wiring) readiness(at At, slot engine.Promise[engine.Slot], after ...engine.Input) engine.Promise[engine.Ready] {
	return Readiness(w.b, at.step("readiness"), slot, w.rule(), after...)
}

// places are where slots are: those at the same time, and those of the pool.
// Of a task that branches, each branch has one.
func (w *wiring) places() int64 {
	if b := w.m.Task.Branching; b != nil && w.branch != nil {
		return int64(len(b.Branches))
	}
	return w.m.Experiment.Slots + w.m.Experiment.Pool
}

func (w *wiring) restore() {
	w.late = w.m.Experiment.Reuse == "none"
	if w.m.Task.Branching != nil {
		w.branch = &branchPoint{}
	}
	// The slot that is dumped.
	at := At{ID: "base/provision", Slot: slotName(0)}
	slot := w.provision(at, slotName(0), engine.Promise[engine.Place]{})
	prepared, _ := w.fresh(at, slot)
	held := []engine.Input{engine.After(prepared)}
	w.last = make([]engine.Promise[engine.Place], w.places())
	if w.m.Task.Branching != nil || w.siblings() {
		held = append(held, w.coldPair(at, slot, prepared))
	}
	dumped, complete := w.dump(at, slot, held...)
	w.last[0] = engine.Second(dumped)
	w.resets(engine.First(dumped), complete)
}

// dump judges that a slot is enclosed, dumps it and judges the checkpoint.
func (w *wiring) dump(at At, slot engine.Promise[engine.Slot], after ...engine.Input) (engine.Promise[engine.Pair[engine.Checkpoint, engine.Place]], engine.Promise[engine.Judged]) {
	gates := after
	for _, name := range []string{gate.Enclosure, gate.MountContract, gate.ToolConfig, gate.NetworkUp} {
		gates = append(gates, engine.After(GateSlot(w.b, at.step("gate-enclosed-"+name), slot, bench.GateParams{Gate: name}, after...)))
	}
	dumped := Dump(w.b, at.step("dump"), slot, bench.DumpParams{
		Port: w.port(), Policy: w.policy(), Exclude: w.exclude(), Canary: w.m.Canary, Workload: w.workload, Screen: w.m.Screen,
	}, gates...)
	return dumped, GateCheckpoint(w.b, at.step("gate-checkpoint"), engine.First(dumped))
}

// resets wires rollouts that each begin with a restore of one checkpoint.
func (w *wiring) resets(cp engine.Promise[engine.Checkpoint], complete engine.Promise[engine.Judged]) {
	// A checkpoint that holds nothing of the task is of a screen that its set-up may change.
	w.checkpoint, w.compares = cp, w.m.Screen != nil && !w.late && w.m.Task.Branching == nil
	ended := make([]engine.Input, len(w.last))
	for k := range ended {
		ended[k] = engine.After(complete)
	}
	if w.branch != nil {
		w.branch.task = cp
	}
	w.rollouts(func(at At, k int, take *taking) (engine.Promise[engine.Slot], engine.Promise[engine.Canary], []engine.Input) {
		slot, planted := w.reset(at, cp, w.last[k], take, ended[k])
		return slot, planted, nil
	}, func(k int, end engine.Input) { ended[k] = end })
	w.release()
}

// own is what each restored slot has made anew.
func (w *wiring) own() []bench.Own {
	if w.m.Hygiene == nil {
		return nil
	}
	return w.m.Hygiene.Own
}

// taking is how a rollout takes a slot that a pool made ready.
type taking struct {
	// window of the taking, and of what follows before the slot is usable.
	window string
	// after are the rollouts that must have ended: no more slots act at a time than there are.
	after []engine.Input
}

// take hands the slot over once it is ready, and moves at into the window.
func (w *wiring) take(t *taking, at *At, slot engine.Promise[engine.Slot], ready ...engine.Input) engine.Input {
	at.Window = t.window
	return engine.After(Take(w.b, at.step("take"), slot, w.rule(), append(ready, t.after...)...))
}

// reset restores a checkpoint, judges the stopped tree, lets it run, judges it
// again and makes it this slot's own; take is nil without a pool.
func (w *wiring) reset(at At, cp engine.Promise[engine.Checkpoint], place engine.Promise[engine.Place], take *taking, after ...engine.Input) (engine.Promise[engine.Slot], engine.Promise[engine.Canary]) {
	if w.dropping {
		after = []engine.Input{engine.After(DropCache(w.b, at.step("drop-cache"), w.root, cp, place, after...))}
	}
	stopped := Restore(w.b, at.step("restore"), w.root, cp, place, bench.RestoreParams{
		Slot: bench.Name(at.Slot), Resources: w.m.Resources, Policy: w.policy(), Exclude: w.exclude(),
	}, after...)
	judged := []engine.Input{}
	for _, p := range []bench.GateParams{
		{Gate: gate.State}, // takes longest, and the engine starts what is ready in the plan's order
		{Gate: gate.Locks}, {Gate: gate.Mounts}, {Gate: gate.Limits, Resources: &w.m.Resources},
		{Gate: gate.Processes}, {Gate: gate.Network}, // nobody could reach a guest whose loopback is down
	} {
		judged = append(judged, engine.After(GateStopped(w.b, at.step("gate-stopped-"+p.Gate), stopped, cp, p)))
	}
	slot := Resume(w.b, at.step("resume"), stopped, bench.ResumeParams{Port: w.port()}, judged...)
	ready := w.readiness(at, slot)
	live := GateRestored(w.b, at.step("gate-live"), slot, cp, bench.GateParams{Gate: gate.Live, Port: w.port()}, engine.After(ready))
	network := GateRestored(w.b, at.step("gate-network"), slot, cp, bench.GateParams{Gate: gate.Network, Port: w.port()}, engine.After(ready))
	judged = []engine.Input{engine.After(ready), engine.After(live), engine.After(network)}
	if take != nil {
		judged = []engine.Input{w.take(take, &at, slot, judged...)}
	}
	planted := Reseed(w.b, at.step("reseed"), slot, cp, bench.ReseedParams{Port: w.port(), Canary: w.m.Canary, Identity: at.Branch != "" || w.m.Hygiene != nil, Own: w.own()}, judged...)
	if w.late && at.Branch == "" { // a branch has its trunk's
		planted = w.prepare(at, slot, true, engine.After(planted))
	}
	return slot, planted
}

func (w *wiring) cold() {
	w.last = make([]engine.Promise[engine.Place], w.places())
	ended := make([][]engine.Input, len(w.last))
	w.rollouts(func(at At, k int, take *taking) (engine.Promise[engine.Slot], engine.Promise[engine.Canary], []engine.Input) {
		after := ended[k]
		if w.dropping {
			after = []engine.Input{engine.After(DropCache(w.b, at.step("drop-cache"), w.root, engine.Promise[engine.Checkpoint]{}, w.last[k], after...))}
		}
		slot := w.provision(at.step("provision"), at.Slot, w.last[k], after...)
		planted, gates := w.fresh(at, slot)
		if take != nil {
			gates = append(gates, w.take(take, &at, slot, gates...))
		}
		return slot, planted, gates
	}, func(k int, end engine.Input) { ended[k] = []engine.Input{end} })
	w.release()
}

// together looks at all slots at once, with nobody acting: at what they take, then at what they see of each other.
func (w *wiring) together(slots []engine.Promise[engine.Slot], after []engine.Input) engine.Promise[engine.Measured] {
	read := Density(w.b, At{ID: "density", Window: "density"}, slots, bench.DensityParams{Settle: bench.Duration(w.sweep.Settle), Samples: w.sweep.Samples}, after...)
	if w.sweep.Isolation == nil || len(slots) < 2 { // one slot has nobody to see
		return read
	}
	return Isolate(w.b, At{ID: "isolate"}, slots, bench.IsolateParams{
		Port: w.port(), Isolation: *w.sweep.Isolation, Home: bench.GuestPath(w.m.Guest.Home), Clipboard: w.m.Guest.Display != nil}, engine.After(read))
}

// begun is a rollout whose slot is usable.
type begun struct {
	at       At
	k        int
	slot     engine.Promise[engine.Slot]
	planted  engine.Promise[engine.Canary]
	gates    []engine.Input
	measured engine.Promise[engine.Measured]
}

// begun measures a slot that has become usable; at is out of its window then.
func (w *wiring) begun(at At, k int, slot engine.Promise[engine.Slot], planted engine.Promise[engine.Canary], gates []engine.Input) begun {
	at.Window = ""
	gates = append(gates, engine.After(planted))
	return begun{at, k, slot, planted, gates, Measure(w.b, at.step("measure"), slot, bench.MeasureParams{}, gates...)}
}

// before takes a rollout to the score before its act.
func (w *wiring) before(r begun, policy bench.Policy, held ...engine.Input) engine.Promise[engine.Score] {
	at, slot := r.at, r.slot
	gates := append(slices.Clip(r.gates), held...)
	inspected := Inspect(w.b, at.step("inspect"), slot, bench.InspectParams{Port: w.port(), Display: w.m.Guest.Display}, append(gates, engine.After(r.measured))...)
	gates = append(gates, engine.After(inspected))
	if w.compares {
		p := bench.GateParams{Gate: gate.Screen, Port: w.port(), Screen: w.m.Screen}
		if w.looks(at) {
			p.Review = w.m.Review
		}
		gates = append(gates, engine.After(GateRestored(w.b, at.step("gate-screen"), slot, w.checkpoint, p, gates...)))
	} else if w.looks(at) {
		gates = append(gates, engine.After(GateSlot(w.b, at.step("gate-look"), slot, bench.GateParams{Gate: gate.Look, Port: w.port(), Review: w.m.Review}, gates...)))
	}
	before := Evaluate(w.b, at.step("evaluate-before"), slot, w.first, w.evaluate("before", policy), gates...)
	if len(w.ends) == 0 { // the first rollout, which all others wait for
		w.first = before
	}
	return before
}

// acted has somebody act between two evaluations.
func (w *wiring) acted(r begun, policy bench.Policy, act bench.ActParams, judge bench.EvaluateParams, held ...engine.Input) (acted engine.Promise[engine.Acted], after engine.Promise[engine.Score]) {
	before := w.before(r, policy, held...)
	acted = Act(w.b, r.at.step("act"), r.slot, act, engine.After(before))
	return acted, Evaluate(w.b, r.at.step("evaluate-after"), r.slot, before, judge, engine.After(acted))
}

// canary judges that a rollout's canary is its own still.
func (w *wiring) canary(at At, slot engine.Promise[engine.Slot], planted engine.Promise[engine.Canary], after ...engine.Input) engine.Promise[engine.Judged] {
	return GateCanary(w.b, at.step("gate-canary"), slot, planted, bench.GateParams{Gate: gate.Canary, Port: w.port(), Canary: &w.m.Canary}, after...)
}

// ended notes the last step of a rollout: the slot is its place's next one's.
func (w *wiring) ended(k int, slot engine.Promise[engine.Slot], last engine.Promised) {
	w.last[k] = engine.AsPlace(slot)
	w.ends = append(w.ends, engine.After(last))
}

// Controls are who acts in the rollouts before all others.
var Controls = []string{"none", "oracle"}

// rollouts wires evaluate, act, evaluate and the canary behind each reset.
func (w *wiring) rollouts(
	start func(at At, k int, take *taking) (engine.Promise[engine.Slot], engine.Promise[engine.Canary], []engine.Input),
	end func(k int, e engine.Input),
) {
	e := w.m.Experiment
	begin := func(at At, k int, take *taking) begun {
		slot, planted, gates := start(at, k, take)
		return w.begun(at, k, slot, planted, gates)
	}
	finish := func(r begun, policy bench.Policy, seed int64, held ...engine.Input) engine.Input {
		at, k, slot, planted := r.at, r.k, r.slot, r.planted
		_, after := w.acted(r, policy, w.act(policy, seed), w.evaluate("after", policy), held...)
		canary := w.canary(at, slot, planted, engine.After(after))
		w.ended(k, slot, canary)
		return engine.After(canary)
	}
	rollout := func(at At, k int, take *taking, policy bench.Policy, seed int64, last bool) engine.Input {
		r := begin(at, k, take)
		if last && e.MemoryAfter != "" { // the same slot, untouched since
			p := bench.MeasureParams{After: e.MemoryAfter}
			return finish(r, policy, seed, engine.After(Measure(w.b, r.at.step("measure-later"), r.slot, p, engine.After(r.measured))))
		}
		return finish(r, policy, seed)
	}
	next := int64(0)
	for _, who := range Controls {
		i := next
		next++
		policy := bench.Policy{None: &bench.NonePolicy{}}
		if who == "oracle" {
			policy = bench.Policy{Oracle: &bench.OraclePolicy{}}
		}
		controlled := rollout(At{ID: fmt.Sprintf("r%d/", i), Rollout: &i, Slot: slotName(0), Control: who}, 0, nil, policy, e.Seed, false)
		for k := range w.last { // no slot begins before the task has proved itself
			end(k, controlled)
		}
	}
	if w.m.Task.Branching != nil {
		if w.branch != nil {
			w.rounds(next, end)
		} else {
			w.coldRounds(next, begin, end)
		}
		return
	}
	if w.sweep != nil {
		var all []begun
		var slots []engine.Promise[engine.Slot]
		var measured []engine.Input
		for n := range e.Slots {
			i := next + n
			r := begin(At{ID: fmt.Sprintf("r%d/", i), Window: "reset-0", Rollout: &i, Slot: slotName(int(n))}, int(n), nil)
			all, slots, measured = append(all, r), append(slots, r.slot), append(measured, engine.After(r.measured))
		}
		held := engine.After(w.together(slots, measured))
		for n, r := range all {
			end(n, finish(r, w.policyOf(), e.Seed+int64(n), held))
		}
		return
	}
	if w.siblings() && w.pair.made {
		w.groups(next, begin, finish, end)
		return
	}
	var done []engine.Input
	for n := range e.Warmup + e.Rollouts {
		i, k := next+n, int(n%w.places())
		at := At{ID: fmt.Sprintf("r%d/", i), Window: fmt.Sprintf("reset-%d", n/e.Slots), Rollout: &i, Slot: slotName(k), Warmup: n < e.Warmup}
		var take *taking
		if e.Pool > 0 {
			take = &taking{window: at.Window}
			at.Window = ""
			if n >= e.Slots {
				take.after = []engine.Input{done[n-e.Slots]}
			}
		}
		done = append(done, rollout(at, k, take, w.policyOf(), e.Seed+n, n == e.Warmup+e.Rollouts-1))
		end(k, done[n])
	}
}

// looks says whether a person has to see this rollout's screen: the first that is measured, or each.
func (w *wiring) looks(at At) bool {
	if w.m.Review == nil || at.Control != "" || at.Warmup || w.looked && w.m.Review.Screens == "first" {
		return false
	}
	w.looked = true
	return true
}

func (w *wiring) policyOf() bench.Policy {
	if w.m.Policy != nil {
		return *w.m.Policy
	}
	return bench.Policy{Oracle: &bench.OraclePolicy{}}
}

func (w *wiring) act(policy bench.Policy, seed int64) bench.ActParams {
	p := bench.ActParams{Port: w.port(), Policy: policy, Commands: []bench.Command{}, Instruction: w.m.Task.Instruction, Seed: seed}
	switch {
	case policy.Oracle != nil:
		p.Commands = nonNil(w.m.Task.Oracle)
	case policy.Host != nil:
		p.Task = w.m.Task.Id
	}
	return p
}

// evaluate says which score a control must give: every rollout starts at 0, the
// oracle ends at 1 and nobody ends at 0.
func (w *wiring) evaluate(when string, policy bench.Policy) bench.EvaluateParams {
	p := bench.EvaluateParams{Port: w.port(), When: when, Checker: w.m.Checker, Display: w.m.Guest.Display}
	zero, one := 0.0, 1.0
	switch {
	case when == "before", policy.None != nil:
		p.Expect = &zero
	case policy.Oracle != nil:
		p.Expect = &one
	}
	return p
}

func (w *wiring) release() {
	released := []engine.Input{}
	for k, place := range w.last {
		at := At{ID: fmt.Sprintf("release/%s", slotName(k)), Slot: slotName(k)}
		released = append(released, engine.After(ReleasePlace(w.b, at, place, w.ends...)))
	}
	if w.sweep != nil {
		released = append(released, engine.After(w.baseline("baseline-after", true, released...)))
	}
	checked := GateImage(w.b, At{ID: "gate-image"}, w.root, w.ends...)
	root := ReleaseRoot(w.b, At{ID: "release/root"}, w.root, append(released, engine.After(checked))...)
	GateCleanup(w.b, At{ID: "gate-cleanup"}, w.survey, engine.After(root))
}

func slotName(k int) string { return fmt.Sprintf("slot-%d", k) }

// nonNil keeps an absent list from becoming null in canonical JSON.
func nonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

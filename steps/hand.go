package steps

import (
	"fmt"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps/gate"
)

// The plans of this file are not whole runs. BlockFrom's yields rollouts, as
// Block's does; each of the others is one command on a slot by hand, which
// nobody releases at its end, and has the steps and gates that a run has there.

// BlockFrom wires a run whose rollouts restore a checkpoint of an earlier run:
//
//	survey -> mount -> checkpoint (opened and verified) -> gate(checkpoint)
//	  each rollout as in Block
//	release -> gate(cleanup) (always)
func BlockFrom(m bench.Manifest, p bench.CheckpointParams) (*engine.Plan, error) {
	if m.Task.Branching != nil {
		return nil, &engine.Error{Op: "compile plan", Err: fmt.Errorf("%w: a task that branches saves its own checkpoints", engine.ErrUsage), Hint: "run it without a checkpoint of an earlier run"}
	}
	w := wiring{b: engine.NewBuilder(), m: m, workload: p.Workload, dropping: m.Experiment.PageCache == PageCacheDropped}
	w.begin()
	cp, complete := w.open(p)
	w.last = make([]engine.Promise[engine.Place], w.places())
	w.resets(cp, complete)
	return w.b.Build(w.workload, "restore")
}

// open takes a checkpoint and judges it.
func (w *wiring) open(p bench.CheckpointParams) (engine.Promise[engine.Checkpoint], engine.Promise[engine.Judged]) {
	at := At{ID: "base/checkpoint"}
	cp := OpenCheckpoint(w.b, at, w.root, p)
	return cp, GateCheckpoint(w.b, at.step("gate-checkpoint"), cp)
}

// HandProvision makes a slot and prepares it, each gate on the way.
func HandProvision(m bench.Manifest, workload bench.SHA256) (*engine.Plan, error) {
	w := wiring{b: engine.NewBuilder(), m: m, workload: workload}
	w.root = Mount(w.b, At{ID: "mount"}, bench.MountParams{Image: m.Image})
	at := At{ID: "slot/provision", Slot: slotName(0)}
	w.fresh(at, w.provision(at, slotName(0), engine.Promise[engine.Place]{}))
	return w.b.Build(workload, "restore")
}

// HandRestore makes a slot from a checkpoint of an earlier run.
func HandRestore(m bench.Manifest, p bench.CheckpointParams) (*engine.Plan, error) {
	w := wiring{b: engine.NewBuilder(), m: m, workload: p.Workload}
	w.root = Mount(w.b, At{ID: "mount"}, bench.MountParams{Image: m.Image})
	cp, complete := w.open(p)
	w.reset(At{ID: "slot/restore", Slot: slotName(0)}, cp, engine.Promise[engine.Place]{}, nil, engine.After(complete))
	return w.b.Build(w.workload, "restore")
}

// HandReset brings a slot, whatever is in its place, back to a checkpoint.
func HandReset(m bench.Manifest, a bench.AdoptParams, p bench.CheckpointParams) (*engine.Plan, error) {
	w := wiring{b: engine.NewBuilder(), m: m, workload: p.Workload}
	at := At{ID: "slot/adopt", Slot: string(a.Place.Name)}
	adopted := Adopt(w.b, at, a)
	w.root = engine.First(adopted)
	cp, complete := w.open(p)
	w.reset(at.step("restore"), cp, engine.Second(adopted), nil, engine.After(complete))
	return w.b.Build(w.workload, "restore")
}

// HandDump dumps a slot that runs. Its tree ends; its place stays.
func HandDump(m bench.Manifest, workload bench.SHA256, a bench.AdoptParams) (*engine.Plan, error) {
	w := wiring{b: engine.NewBuilder(), m: m, workload: workload}
	at, slot, server := w.running(a)
	w.dump(at, slot, server)
	return w.b.Build(workload, "restore")
}

// HandExecute runs a command in a slot that runs.
func HandExecute(m bench.Manifest, workload bench.SHA256, a bench.AdoptParams, c bench.Command) (*engine.Plan, error) {
	w := wiring{b: engine.NewBuilder(), m: m, workload: workload}
	at, slot, server := w.running(a)
	Execute(w.b, at.step("execute"), slot, bench.ExecuteParams{Port: w.port(), Command: c}, server)
	return w.b.Build(workload, "restore")
}

// running takes over a slot that runs and has the pinned guest server.
func (w *wiring) running(a bench.AdoptParams) (At, engine.Promise[engine.Slot], engine.Input) {
	at := At{ID: "slot/adopt", Slot: string(a.Place.Name)}
	adopted := AdoptSlot(w.b, at, a)
	slot := engine.Second(adopted)
	server := GateSlot(w.b, at.step("gate-server"), slot, bench.GateParams{Gate: gate.Server, Port: w.port(), Server: &w.m.Guest.Server})
	return at, slot, engine.After(server)
}

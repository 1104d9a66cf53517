package armtest

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps/gate"
)

// passes requires that a gate passes, unless the arm declares that it lacks what the gate is about.
func (r *run) passes(name, what string, j engine.Judgement) {
	r.t.Helper()
	if _, lacks := r.arm.Describe().NotApplicable[name]; lacks {
		return
	}
	if v := j.Verdict(); v != engine.Pass {
		r.t.Errorf("%s: gate %s: %s", what, name, v)
		for _, f := range j.Findings {
			r.t.Errorf("  %s %s: %s (want %q, have %q)", f.Verdict, f.Subject, f.Text, f.Want, f.Have)
		}
	}
}

// judgeCold is what a run asks of a provisioned slot.
func (r *run) judgeCold(s engine.Slot) {
	r.t.Helper()
	o := s.Observe(r.ctx(), engine.AspectLimits, engine.AspectMounts, engine.AspectNetwork, engine.AspectToolConfig, engine.AspectEnclosure)
	r.passes(gate.Limits, s.Name(), gate.JudgeLimits(r.h.Manifest.Resources, o.Limits))
	r.passes(gate.MountContract, s.Name(), gate.JudgeMountContract(o.Mounts))
	r.passes(gate.NetworkUp, s.Name(), gate.JudgeNetworkUp(o.Network))
	r.passes(gate.ToolConfig, s.Name(), gate.JudgeToolConfig(o.ToolConfig))
	r.passes(gate.Enclosure, s.Name(), gate.JudgeEnclosure(o.Enclosure))
	p := r.answers(s)
	r.passes(gate.Server, s.Name(), gate.JudgeServer(r.h.Manifest.Guest.Server.Sha256, engine.Known(p.ServerSHA256, "probe", engine.ViewGuest)))
}

// judgeStopped is what a run asks of a restored slot before it runs.
func (r *run) judgeStopped(s engine.Stopped, cp engine.Checkpoint) {
	r.t.Helper()
	ref := cp.Handle.Reference
	o := s.Observe(r.ctx(), engine.AspectLocks, engine.AspectMounts, engine.AspectLimits, engine.AspectProcesses, engine.AspectState)
	r.passes(gate.Locks, s.Name(), gate.JudgeLocks(cp.Handle.Locks, o.Locks))
	r.passes(gate.Mounts, s.Name(), gate.JudgeMounts(ref.Mounts, o.Mounts))
	r.passes(gate.Limits, s.Name(), gate.JudgeLimits(r.h.Manifest.Resources, o.Limits))
	r.passes(gate.Processes, s.Name(), gate.JudgeProcesses(ref.Processes, o.Processes))
	r.passes(gate.State, s.Name(), gate.JudgeState(r.state(cp), o.State))
}

// state is the state manifest that lies in a checkpoint.
func (r *run) state(cp engine.Checkpoint) (m bench.StateManifest) {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(cp.Dir, "state.json"))
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		r.t.Fatalf("read state manifest: %v", err)
	}
	return m
}

// judgeResumed is what a run asks of a restored slot that runs again. It waits until the slot is ready.
func (r *run) judgeResumed(s engine.Slot, cp engine.Checkpoint) guest.Probe {
	r.t.Helper()
	first := r.ready(s)
	second := r.answers(s)
	ref := cp.Handle.Reference
	live := func(p guest.Probe) engine.Reading[bench.LiveState] {
		return engine.Known(p.Live, "probe", engine.ViewGuest)
	}
	r.passes(gate.Live, s.Name(), gate.JudgeLive(ref.Live, live(first), live(second)))
	o := s.Observe(r.ctx(), engine.AspectNetwork, engine.AspectLimits)
	r.passes(gate.Network, s.Name(), gate.JudgeNetwork(ref.Network, o.Network))
	r.passes(gate.Limits, s.Name(), gate.JudgeLimits(r.h.Manifest.Resources, o.Limits))
	b, err := r.client(s).ReadFile(r.ctx(), string(r.h.Manifest.Canary.File), 4096)
	if err != nil {
		r.t.Errorf("%s: read canary: %v", s.Name(), describe(err))
	}
	r.passes(gate.Canary, s.Name(), gate.JudgeCanary(string(r.h.Manifest.Canary.File), ref.Canary, engine.Known(string(b), "guest", engine.ViewGuest)))
	r.has(s, r.path("kept"), "as at the dump")
	return second
}

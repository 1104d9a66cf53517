package steps

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/screen"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps/gate"
)

// StateFile is the state manifest's name inside a checkpoint.
const StateFile = "state.json"

// GateImage compares the image with its pin again, at the end of a run.
func GateImage(b *engine.Builder, at At, root engine.Promise[engine.Root], after ...engine.Input) engine.Promise[engine.Judged] {
	return addGate(b, at, bench.GateParams{Gate: gate.Image}, append([]engine.Input{engine.Read(root)}, after...)...)
}

// GateSlot judges a running slot on its own.
func GateSlot(b *engine.Builder, at At, slot engine.Promise[engine.Slot], p bench.GateParams, after ...engine.Input) engine.Promise[engine.Judged] {
	return addGate(b, at, p, append([]engine.Input{engine.Read(slot)}, after...)...)
}

// GateRestored judges a running slot against its checkpoint.
func GateRestored(b *engine.Builder, at At, slot engine.Promise[engine.Slot], cp engine.Promise[engine.Checkpoint], p bench.GateParams, after ...engine.Input) engine.Promise[engine.Judged] {
	return addGate(b, at, p, append([]engine.Input{engine.Read(slot), engine.Read(cp)}, after...)...)
}

// GateStopped judges a restored slot before it runs.
func GateStopped(b *engine.Builder, at At, stopped engine.Promise[engine.Stopped], cp engine.Promise[engine.Checkpoint], p bench.GateParams) engine.Promise[engine.Judged] {
	return addGate(b, at, p, engine.Read(stopped), engine.Read(cp))
}

// GateCheckpoint judges a checkpoint by itself.
func GateCheckpoint(b *engine.Builder, at At, cp engine.Promise[engine.Checkpoint]) engine.Promise[engine.Judged] {
	return addGate(b, at, bench.GateParams{Gate: gate.Checkpoint}, engine.Read(cp))
}

// GateCanary requires that the canary still is what the engine planted.
func GateCanary(b *engine.Builder, at At, slot engine.Promise[engine.Slot], planted engine.Promise[engine.Canary], p bench.GateParams, after ...engine.Input) engine.Promise[engine.Judged] {
	return addGate(b, at, p, append([]engine.Input{engine.Read(slot), engine.Read(planted)}, after...)...)
}

func addGate(b *engine.Builder, at At, p bench.GateParams, in ...engine.Input) engine.Promise[engine.Judged] {
	s := at.spec(KindGate, p, deadlineGate)
	s.Optional = true // an arm may declare a gate not applicable; nothing else makes it so
	return engine.Add[engine.Judged](b, s, in...)
}

// observer is what running and stopped slots have in common.
type observer interface {
	Observe(ctx context.Context, aspects ...engine.Aspect) engine.Observation
}

var bindGate = engine.Bind(KindGate, func(ctx context.Context, x *engine.Exec, p bench.GateParams) (engine.Judged, error) {
	if reason, ok := x.Arm().Describe().NotApplicable[p.Gate]; ok {
		var j engine.Judgement
		j.Add(engine.NotApplicable, p.Gate, reason)
		x.Judge(j)
		return engine.Judged{}, nil
	}
	run, ok := gates[p.Gate]
	if !ok {
		return engine.Judged{}, fmt.Errorf("no gate named %q", p.Gate)
	}
	j, err := run(ctx, x, p)
	if err != nil {
		return engine.Judged{}, err
	}
	x.Judge(j)
	return engine.Judged{}, nil
})

// gates reads what each gate needs and hands it to the gate's pure function.
var gates = map[string]func(context.Context, *engine.Exec, bench.GateParams) (engine.Judgement, error){
	gate.Image: func(ctx context.Context, x *engine.Exec, _ bench.GateParams) (j engine.Judgement, err error) {
		return j, engine.In[engine.Root](x, 0).Verify(ctx)
	},
	gate.ToolConfig: func(ctx context.Context, x *engine.Exec, _ bench.GateParams) (engine.Judgement, error) {
		return gate.JudgeToolConfig(observe(ctx, x, engine.AspectToolConfig).ToolConfig), nil
	},
	gate.Limits: func(ctx context.Context, x *engine.Exec, p bench.GateParams) (engine.Judgement, error) {
		return gate.JudgeLimits(*p.Resources, observe(ctx, x, engine.AspectLimits).Limits), nil
	},
	gate.MountContract: func(ctx context.Context, x *engine.Exec, _ bench.GateParams) (engine.Judgement, error) {
		return gate.JudgeMountContract(observe(ctx, x, engine.AspectMounts).Mounts), nil
	},
	gate.Mounts: func(ctx context.Context, x *engine.Exec, _ bench.GateParams) (engine.Judgement, error) {
		return withEvidence(gate.JudgeMounts, reference(x).Mounts, observe(ctx, x, engine.AspectMounts).Mounts), nil
	},
	gate.NetworkUp: func(ctx context.Context, x *engine.Exec, _ bench.GateParams) (engine.Judgement, error) {
		return gate.JudgeNetworkUp(observe(ctx, x, engine.AspectNetwork).Network), nil
	},
	gate.Network: func(ctx context.Context, x *engine.Exec, _ bench.GateParams) (engine.Judgement, error) {
		j := withEvidence(gate.JudgeNetwork, reference(x).Network, observe(ctx, x, engine.AspectNetwork).Network)
		return j, nil
	},
	gate.Enclosure: func(ctx context.Context, x *engine.Exec, _ bench.GateParams) (engine.Judgement, error) {
		return gate.JudgeEnclosure(observe(ctx, x, engine.AspectEnclosure).Enclosure), nil
	},
	gate.Checkpoint: func(_ context.Context, x *engine.Exec, _ bench.GateParams) (engine.Judgement, error) {
		return gate.JudgeCheckpoint(engine.In[engine.Checkpoint](x, 0).Handle), nil
	},
	gate.Locks: func(ctx context.Context, x *engine.Exec, _ bench.GateParams) (engine.Judgement, error) {
		want := engine.In[engine.Checkpoint](x, 1).Handle.Locks
		return withEvidence(gate.JudgeLocks, want, observe(ctx, x, engine.AspectLocks).Locks), nil
	},
	gate.Processes: func(ctx context.Context, x *engine.Exec, _ bench.GateParams) (engine.Judgement, error) {
		return withEvidence(gate.JudgeProcesses, reference(x).Processes, observe(ctx, x, engine.AspectProcesses).Processes), nil
	},
	gate.State: func(ctx context.Context, x *engine.Exec, _ bench.GateParams) (engine.Judgement, error) {
		cp := engine.In[engine.Checkpoint](x, 1)
		var want bench.StateManifest
		b, err := os.ReadFile(filepath.Join(cp.Dir, StateFile))
		if err == nil {
			err = json.Unmarshal(b, &want)
		}
		if err != nil {
			return engine.Judgement{}, &engine.Error{Op: "read state manifest", Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
		}
		return withEvidence(gate.JudgeState, want, observe(ctx, x, engine.AspectState).State), nil
	},
	gate.Live: func(ctx context.Context, x *engine.Exec, p bench.GateParams) (engine.Judgement, error) {
		c := dial(engine.In[engine.Slot](x, 0), p.Port)
		first := liveState(ctx, c)
		second := liveState(ctx, c)
		// The counter goes on by time as well as by each probe, so two readings suffice; a stopped clock cannot pass.
		return gate.JudgeLive(reference(x).Live, first, second), nil
	},
	gate.Server: func(ctx context.Context, x *engine.Exec, p bench.GateParams) (engine.Judgement, error) {
		c := dial(engine.In[engine.Slot](x, 0), p.Port)
		probe, err := c.Probe(ctx)
		if err != nil {
			return gate.JudgeServer(p.Server.Sha256, engine.Unknown[bench.SHA256](err.Error(), engine.ViewGuest)), nil
		}
		return gate.JudgeServer(p.Server.Sha256, engine.Known(bench.SHA256(probe.ServerSHA256), "guest server /probe", engine.ViewGuest)), nil
	},
	gate.Cleanup: func(ctx context.Context, x *engine.Exec, _ bench.GateParams) (engine.Judgement, error) {
		j := gate.JudgeCleanup(cleanedUp(ctx, x))
		probeHost(ctx, x) // after the look: it starts programs of its own
		return j, nil
	},
	gate.Look: func(ctx context.Context, x *engine.Exec, p bench.GateParams) (engine.Judgement, error) {
		data, err := dial(engine.In[engine.Slot](x, 0), p.Port).Screenshot(ctx)
		if err == nil {
			_, err = screen.Decode(data)
		}
		picture := engine.Known(data, "screenshot", engine.ViewGuest)
		if err != nil {
			picture = engine.Unknown[[]byte](err.Error(), engine.ViewGuest)
		}
		return gate.JudgeLook(p.Review.Question, picture), nil
	},
	gate.Screen: fidelity,
	gate.Canary: func(ctx context.Context, x *engine.Exec, p bench.GateParams) (engine.Judgement, error) {
		c := dial(engine.In[engine.Slot](x, 0), p.Port)
		return judgeCanary(ctx, c, string(p.Canary.File), string(engine.In[engine.Canary](x, 1))), nil
	},
	gate.Audit: func(_ context.Context, x *engine.Exec, _ bench.GateParams) (engine.Judgement, error) {
		return gate.JudgeAudit(engine.In[engine.Audited](x, 0), engine.In[engine.Audited](x, 1)), nil
	},
	gate.Carried: func(_ context.Context, x *engine.Exec, _ bench.GateParams) (engine.Judgement, error) {
		return gate.JudgeCarried(engine.In[engine.Witness](x, 0), engine.In[engine.Witness](x, 1), engine.In[engine.Witness](x, 2)), nil
	},
	gate.Hygiene: func(_ context.Context, x *engine.Exec, p bench.GateParams) (engine.Judgement, error) {
		all := inputs[engine.Identity](x, 0)
		return gate.JudgeHygiene(all[:2], all[2:], p.Hygiene), nil
	},
	gate.Diverged: func(_ context.Context, x *engine.Exec, p bench.GateParams) (engine.Judgement, error) {
		return gate.JudgeDiverged(p.Branches, engine.In[engine.Witness](x, 0), inputs[engine.Witness](x, 1)), nil
	},
	gate.Parent: func(ctx context.Context, x *engine.Exec, _ bench.GateParams) (engine.Judgement, error) {
		cp := engine.In[engine.Checkpoint](x, 0)
		return gate.JudgeParent(cp.Handle.Files, digests(ctx, cp)), nil
	},
}

func observe(ctx context.Context, x *engine.Exec, a engine.Aspect) engine.Observation {
	return engine.In[observer](x, 0).Observe(ctx, a)
}

func reference(x *engine.Exec) bench.Reference {
	return engine.In[engine.Checkpoint](x, 1).Handle.Reference
}

// withEvidence judges, and keeps both sides as evidence where they differ: what
// is equal needs no second copy in every rollout.
func withEvidence[T any](judge func(T, engine.Reading[T]) engine.Judgement, want T, have engine.Reading[T]) engine.Judgement {
	j := judge(want, have)
	if j.Verdict() == engine.Pass {
		return j
	}
	j.Evidence = map[string][]byte{}
	keep := func(name string, v any) {
		if b, err := json.MarshalIndent(v, "", "  "); err == nil {
			j.Evidence[name] = append(b, '\n')
		}
	}
	keep("want.json", want)
	if v, ok := have.Get(); ok {
		keep("have.json", v)
	}
	return j
}

func liveState(ctx context.Context, c *guest.Client) engine.Reading[bench.LiveState] {
	start := time.Now()
	p, err := c.Probe(ctx)
	if err != nil {
		return engine.Unknown[bench.LiveState](err.Error(), engine.ViewGuest)
	}
	return engine.Known(p.Live, fmt.Sprintf("guest server /probe at %s", start.UTC().Format(time.RFC3339Nano)), engine.ViewGuest)
}

func judgeCanary(ctx context.Context, c *guest.Client, file, want string) engine.Judgement {
	b, err := c.ReadFile(ctx, file, canaryLimit)
	r := engine.Known(string(b), "guest server /file", engine.ViewGuest)
	if err != nil {
		r = engine.Unknown[string](err.Error(), engine.ViewGuest)
	}
	return gate.JudgeCanary(file, want, r)
}

package steps

import (
	"context"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Dump ends the slot's tree and seals a checkpoint; the place stays for the first reset.
func Dump(b *engine.Builder, at At, slot engine.Promise[engine.Slot], p bench.DumpParams, gates ...engine.Input) engine.Promise[engine.Pair[engine.Checkpoint, engine.Place]] {
	in := append([]engine.Input{engine.Move(slot)}, gates...)
	limit := deadlineDump
	if p.Policy.Settle != "" {
		limit += duration(string(p.Policy.Settle))
	}
	return engine.Add[engine.Pair[engine.Checkpoint, engine.Place]](b, at.spec(KindDump, p, limit), in...)
}

var bindDump = engine.Bind(KindDump, func(ctx context.Context, x *engine.Exec, p bench.DumpParams) (out engine.Pair[engine.Checkpoint, engine.Place], err error) {
	slot := engine.In[engine.Slot](x, 0)
	if p.Policy.Settle != "" {
		if err := sleep(ctx, duration(string(p.Policy.Settle))); err != nil {
			return out, &engine.Error{Op: "let " + slot.Name() + " settle", Err: err}
		}
	}
	client := dial(slot, p.Port)
	ref := engine.GuestReference{}
	probe, err := client.Probe(ctx)
	if err != nil {
		return out, err
	}
	ref.Live = probe.Live
	canary, err := client.ReadFile(ctx, string(p.Canary.File), canaryLimit)
	if err != nil {
		return out, err
	}
	ref.Canary = string(canary)
	if p.Screen != nil {
		if ref.Screen, err = stillScreen(ctx, client, *p.Screen); err != nil {
			return out, err
		}
	}
	out.A, out.B, err = slot.Dump(ctx, p, ref)
	if err != nil {
		return out, err
	}
	x.Fact(out.A.Handle.Facts...)
	digest, err := canonical.Digest(out.A.Handle)
	if err != nil {
		return out, err
	}
	x.Fact(stored(out.A))
	x.Fact(bench.Fact{Name: "checkpoint", Known: true, Value: string(digest), Source: "checkpoint handle", View: engine.ViewHost})
	return out, nil
})

package steps

import (
	"context"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Restore brings the checkpoint back as a stopped slot: in the place of an
// earlier slot, which is a reset, or, where place is absent, as a sibling in a new one.
func Restore(b *engine.Builder, at At, root engine.Promise[engine.Root], cp engine.Promise[engine.Checkpoint], place engine.Promise[engine.Place], p bench.RestoreParams, after ...engine.Input) engine.Promise[engine.Stopped] {
	in := append([]engine.Input{engine.Read(root), engine.Read(cp), engine.Move(place)}, after...)
	return engine.Add[engine.Stopped](b, at.spec(KindRestore, p, deadlineRestore), in...)
}

var bindRestore = engine.Bind(KindRestore, func(ctx context.Context, x *engine.Exec, p bench.RestoreParams) (engine.Stopped, error) {
	place := engine.In[engine.Place](x, 2)
	stopped, err := x.Arm().Restore(ctx, x.Workspace(), engine.In[engine.Root](x, 0), engine.In[engine.Checkpoint](x, 1), place, p)
	if err != nil {
		return nil, err
	}
	if place == nil {
		x.OnRelease(stopped.Release)
	}
	return stopped, nil
})

// Resume lets a stopped slot run; it comes after every gate that judges the stopped tree.
func Resume(b *engine.Builder, at At, stopped engine.Promise[engine.Stopped], p bench.ResumeParams, gates ...engine.Input) engine.Promise[engine.Slot] {
	in := append([]engine.Input{engine.Move(stopped)}, gates...)
	return engine.Add[engine.Slot](b, at.spec(KindResume, p, deadlineGate), in...)
}

var bindResume = engine.Bind(KindResume, func(ctx context.Context, x *engine.Exec, _ bench.ResumeParams) (engine.Slot, error) {
	slot, err := engine.In[engine.Stopped](x, 0).Resume(ctx)
	if err == nil {
		tell(x, slot)
	}
	return slot, err
})

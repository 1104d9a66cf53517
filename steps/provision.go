package steps

import (
	"context"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Provision makes a cold slot, in the place of an earlier one or, where place
// is absent, in a new one.
func Provision(b *engine.Builder, at At, root engine.Promise[engine.Root], place engine.Promise[engine.Place], p bench.ProvisionParams, after ...engine.Input) engine.Promise[engine.Slot] {
	in := append([]engine.Input{engine.Read(root), engine.Move(place)}, after...)
	return engine.Add[engine.Slot](b, at.spec(KindProvision, p, deadlineProvision), in...)
}

var bindProvision = engine.Bind(KindProvision, func(ctx context.Context, x *engine.Exec, p bench.ProvisionParams) (engine.Slot, error) {
	place := engine.In[engine.Place](x, 1)
	slot, err := x.Arm().Provision(ctx, x.Workspace(), engine.In[engine.Root](x, 0), place, p)
	if err != nil {
		return nil, err
	}
	if place == nil {
		x.OnRelease(slot.Release)
	}
	tell(x, slot)
	return slot, nil
})

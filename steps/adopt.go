package steps

import (
	"context"
	"fmt"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Adopt takes over a place that another process made, whatever is in it.
func Adopt(b *engine.Builder, at At, p bench.AdoptParams) engine.Promise[engine.Pair[engine.Root, engine.Place]] {
	return engine.Add[engine.Pair[engine.Root, engine.Place]](b, at.spec(KindAdopt, p, deadlineAdopt))
}

// AdoptSlot takes over a slot that another process made and that runs.
func AdoptSlot(b *engine.Builder, at At, p bench.AdoptParams) engine.Promise[engine.Pair[engine.Root, engine.Slot]] {
	return engine.Add[engine.Pair[engine.Root, engine.Slot]](b, at.spec(KindAdoptSlot, p, deadlineAdopt))
}

var bindAdopt = engine.Bind(KindAdopt, func(ctx context.Context, x *engine.Exec, p bench.AdoptParams) (out engine.Pair[engine.Root, engine.Place], err error) {
	out.A, out.B, err = adopt(ctx, x, p)
	return out, err
})

var bindAdoptSlot = engine.Bind(KindAdoptSlot, func(ctx context.Context, x *engine.Exec, p bench.AdoptParams) (out engine.Pair[engine.Root, engine.Slot], err error) {
	root, place, err := adopt(ctx, x, p)
	if err != nil {
		return out, err
	}
	slot, ok := place.(engine.Slot)
	if !ok {
		return out, &engine.Error{Op: "adopt " + place.Name(), Err: fmt.Errorf("%w: it does not run, it is %s", engine.ErrRefused, p.Place.State), Hint: "reset it"}
	}
	if m, ok := slot.(engine.Mortal); ok {
		if err := m.Alive(); err != nil {
			return out, err
		}
	}
	out.A, out.B = root, slot
	return out, nil
})

func adopt(ctx context.Context, x *engine.Exec, p bench.AdoptParams) (engine.Root, engine.Place, error) {
	arm, ok := x.Arm().(engine.Adopter)
	if !ok {
		return nil, nil, &engine.Error{Op: "adopt " + string(p.Place.Name), Err: fmt.Errorf("%w: a slot of the %s arm ends with the program that made it", engine.ErrRefused, x.Arm().Describe().Kind)}
	}
	root, place, err := arm.Adopt(ctx, x.Workspace(), p)
	if err != nil {
		return nil, nil, err
	}
	x.Fact(root.Facts()...)
	return root, place, nil
}

package fake

import (
	"context"
	"errors"
	"fmt"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Provision implements engine.Arm.
func (a *Arm) Provision(ctx context.Context, ws *engine.Workspace, r engine.Root, old engine.Place, p bench.ProvisionParams) (engine.Slot, error) {
	op := "provision " + string(p.Slot)
	if p.Network != "none" {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: the fake arm has no network %q", engine.ErrRefused, p.Network), Hint: `set network to "none"`}
	}
	if p.Driver != nil {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: the fake arm's image is never read: no driver can be compared with it", engine.ErrRefused), Hint: "leave image.driver out"}
	}
	if err := ctx.Err(); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	pl, err := a.takePlace(ctx, ws, r, old, string(p.Slot))
	if err != nil {
		return nil, err
	}
	if err := pl.provision(ctx, p); err != nil {
		return nil, pl.abandon(ctx, op, err, old == nil)
	}
	return &slot{pl}, nil
}

func (p *place) provision(ctx context.Context, params bench.ProvisionParams) error {
	end := engine.StartSpan(ctx, "layer")
	t, err := p.move(params.Resources, false)
	end()
	if err != nil {
		return err
	}
	defer engine.StartSpan(ctx, "start")()
	t.policy, t.exclude = params.Policy, nonNil(params.Exclude)
	switch {
	case t.fault("provision-error"):
		return errors.New("exec of the first process: exec format error")
	case t.fault("provision-hang"):
		<-ctx.Done()
	}
	if err := t.pause(ctx); err != nil {
		return err
	}
	w, err := boot(p.name, params.Guest)
	if err != nil {
		return err
	}
	t.plant(w)
	if err := t.pause(ctx); err != nil {
		return err
	}
	t.mu.Lock()
	t.world = w
	t.mu.Unlock()
	t.run()
	return nil
}

func nonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

package oci

import (
	"context"
	"fmt"

	"github.com/drumsbench/drumsbench/arms/confine"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Provision implements engine.Arm.
func (a *Arm) Provision(ctx context.Context, ws *engine.Workspace, r engine.Root, old engine.Place, p bench.ProvisionParams) (engine.Slot, error) {
	op := "provision " + string(p.Slot)
	if p.Network != "none" {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: the oci arm has no network %q", engine.ErrRefused, p.Network), Hint: `set network to "none"`}
	}
	if err := ctx.Err(); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	pl, err := a.takePlace(ctx, ws, r, old, string(p.Slot))
	if err != nil {
		return nil, tree.Wrapped(op, err)
	}
	s, err := pl.provision(ctx, p)
	if err != nil {
		return nil, pl.abandon(ctx, op, err, old == nil)
	}
	return s, nil
}

// abandon takes away what a failed provision or restore made; a new place goes
// altogether, an old one stays vacant with its network namespace, so that it can
// be tried again.
func (p *place) abandon(ctx context.Context, op string, err error, whole bool) error {
	if whole {
		return tree.Abandon(ctx, op, err, p.Release)
	}
	return tree.Abandon(ctx, op, err, p.Vacate)
}

// prepare writes what runc and criu read.
func (p *place) prepare(t *tenancy, args, env []string, r bench.Resources, criuSettings string) error {
	seccomp, err := profile(p.ws.Manifest, p.arm.settings.Seccomp)
	if err != nil {
		return err
	}
	c := config{
		name: p.name, root: t.Merged(), cgroups: p.container(t).CgroupsPath(), args: args, env: env, resources: r, seccomp: seccomp,
	}
	if p.holder != nil {
		if err := p.holder.Verify(); err != nil {
			return err
		}
		c.netns = p.holder.Path()
	}
	spec, err := c.spec()
	if err != nil {
		return err
	}
	return p.container(t).Write(spec, criuSettings)
}

func (p *place) provision(ctx context.Context, params bench.ProvisionParams) (s *slot, err error) {
	end := engine.StartSpan(ctx, "layer")
	t, err := p.move(params.Resources)
	end()
	if err != nil {
		return nil, err
	}
	t.Policy, t.Exclude = params.Policy, tree.NonNil(params.Exclude)
	if err := t.Stage(ctx, p.ws, p.root.Dir(), params.Driver); err != nil {
		return nil, err
	}
	env, err := tree.GuestEnv(params.Guest)
	if err != nil {
		return nil, err
	}
	if err := p.prepare(t, params.Guest.Server.Exec, env, params.Resources, Settings(t.Policy)); err != nil {
		return nil, err
	}
	if err := t.Intend(p.ws.Ledger, bench.Claim{Cgroup: p.holding(t).Path(), Note: "first process of " + p.name}); err != nil {
		return nil, err
	}
	defer engine.StartSpan(ctx, "start")()
	pid, err := p.container(t).Start(ctx, func() error { return t.Mount(p.root.Dir()) })
	if err != nil {
		return nil, err
	}
	if err := p.settle(t, pid); err != nil {
		return nil, err
	}
	if err := confine.Wait(ctx, pid); err != nil {
		return nil, err
	}
	return &slot{p}, p.tree(t).Limited()
}

package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	gorunc "github.com/containerd/go-runc"

	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// undoTime bounds what is done after a failure or a cancellation.
const undoTime = 30 * time.Second

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
		return nil, wrapped(op, err)
	}
	s, err := pl.provision(ctx, p)
	if err != nil {
		return nil, pl.abandon(ctx, op, err, old == nil)
	}
	return s, nil
}

// wrapped is an error with what was being done, unless it says that already.
func wrapped(op string, err error) error {
	var e *engine.Error
	if err == nil || asError(err, &e) {
		return err
	}
	return &engine.Error{Op: op, Err: err}
}

// abandon takes away what a failed provision or restore made; a new place goes
// altogether, an old one stays vacant with its network namespace, so that it can
// be tried again.
func (p *place) abandon(ctx context.Context, op string, err error, whole bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	undo := p.Vacate
	if whole {
		undo = p.Release
	}
	if uerr := undo(ctx); uerr != nil {
		err = fmt.Errorf("%w; and then: %w", err, uerr)
	}
	return wrapped(op, err)
}

// prepare writes what runc reads: the container's config.json and criu's settings.
func (p *place) prepare(t *tenancy, args, env []string, r bench.Resources) error {
	seccomp, err := profile(p.ws.Manifest, p.arm.settings.Seccomp)
	if err != nil {
		return err
	}
	c := container{
		name: p.name, root: t.merged(), cgroups: p.cgroupsPath(t), criuConf: t.criuConf(),
		args: args, env: env, resources: r, seccomp: seccomp,
	}
	if p.holder != nil {
		if err := p.holder.Verify(); err != nil {
			return err
		}
		c.netns = p.holder.Path()
	}
	return writeBundle(t.bundle(), c)
}

func (p *place) provision(ctx context.Context, params bench.ProvisionParams) (s *slot, err error) {
	end := engine.StartSpan(ctx, "layer")
	t, err := p.move(params.Resources)
	end()
	if err != nil {
		return nil, err
	}
	t.policy, t.exclude = params.Policy, tree.NonNil(params.Exclude)
	env, err := tree.GuestEnv(params.Guest)
	if err != nil {
		return nil, err
	}
	if err := p.prepare(t, params.Guest.Server.Exec, env, params.Resources); err != nil {
		return nil, err
	}
	t.procID, err = p.ws.Ledger.Intend("process", bench.Claim{Cgroup: p.group.Path(), Note: "first process of " + p.name})
	if err != nil {
		return nil, err
	}
	defer engine.StartSpan(ctx, "start")()
	err = p.making(ctx, t, nil, func(ctx context.Context, runc *gorunc.Runc, io gorunc.IO) error {
		err := overlay.Mount(overlay.Options{Lower: []string{p.root.Dir()}, Upper: t.upper(), Work: t.work(), Target: t.merged(), NFSExport: true})
		if err != nil {
			return err
		}
		_, err = runc.Run(ctx, t.id, t.bundle(), &gorunc.CreateOpts{IO: io, PidFile: t.pidFile(), Detach: true})
		return over(ctx, "run container", err)
	})
	if err != nil {
		return nil, err
	}
	return &slot{p}, p.tree(t).Limited()
}

// making has f make the slot's tree with runc, and settles it: the first process,
// an orphan once runc has ended, is a child of ours from then on.
func (p *place) making(ctx context.Context, t *tenancy, keep []string, f func(context.Context, *gorunc.Runc, gorunc.IO) error) (err error) {
	release, err := adoptOrphans()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	io, err := gorunc.NewNullIO()
	if err != nil {
		return err
	}
	defer io.Close()
	err = p.arm.stage(p.ws, keep, func() error {
		ctx, done := call{groupFD: p.birth(t), env: p.arm.env(t.home())}.with(ctx)
		defer done()
		return f(ctx, p.arm.runc(t), io)
	})
	if err != nil {
		// What was begun ends while its orphans are still ours to wait for.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		for _, g := range []interface{ Kill(context.Context) error }{p.helpers, p.group} {
			err = errors.Join(err, g.Kill(undo))
		}
		if said := t.said(); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return err
	}
	text, err := os.ReadFile(t.pidFile())
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("read %s: %w", t.pidFile(), err)
	}
	return p.settle(t, pid)
}

// said is the end of what runc wrote to its log.
func (t *tenancy) said() string {
	b, err := os.ReadFile(t.runcLog())
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b[max(0, len(b)-600):]))
}

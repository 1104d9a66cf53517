package oci

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Files of a checkpoint.
const (
	// stoppedFile lists the inner pids that the guest itself had stopped: in the
	// images every task is, since the arm stops the tree before it is dumped.
	stoppedFile = "stopped.json"
	// What runc and criu were told.
	configFile   = "config.json"
	settingsFile = "criu.conf"
)

// Dump implements engine.Slot. The tree is stopped, the census is taken and
// judged: what it finds vetoes the dump, and the slot runs on. After the dump the
// tree is gone, which is proven, and its upper layer is sealed.
func (s *slot) Dump(ctx context.Context, p bench.DumpParams, ref engine.GuestReference) (engine.Checkpoint, engine.Place, error) {
	cp, err := s.dump(ctx, p, ref)
	if err != nil {
		return engine.Checkpoint{}, nil, tree.Wrapped("dump "+s.name, err)
	}
	return cp, s.place, nil
}

// census is the slot as it stood still.
type census struct {
	tree.Census
	stopped map[int]bool
	// settings says what criu was told.
	settings bench.Fact
}

// lost is what went wrong once the tree was proven dead: the slot is too. A
// refusal means that the slot runs on, and a transient failure that it can be
// dumped again, so neither is passed on as such.
func lost(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, engine.ErrRefused), errors.Is(err, criu.ErrTransient):
		f := engine.Failure(err)
		return &engine.Error{Op: f.Op, Err: fmt.Errorf("%w: its tree was dumped and has ended: %v", engine.ErrDead, err), Hint: f.Hint, Log: f.Log}
	}
	return fmt.Errorf("%w: its tree was dumped and has ended: %w", engine.ErrDead, err)
}

func (s *slot) dump(ctx context.Context, p bench.DumpParams, ref engine.GuestReference) (engine.Checkpoint, error) {
	t := s.now
	if err := t.life().Dumpable(s.name); err != nil {
		return engine.Checkpoint{}, err
	}
	if err := ctx.Err(); err != nil {
		return engine.Checkpoint{}, err
	}
	if s.holder != nil {
		if err := s.holder.Verify(); err != nil {
			return engine.Checkpoint{}, err
		}
	}
	t.Policy, t.Exclude = p.Policy, tree.NonNil(p.Exclude)
	return tree.Draft(s.ws, s.name, func(dir string) (_ engine.Checkpoint, err error) {
		images, work := filepath.Join(dir, tree.ImagesDir), filepath.Join(dir, "criu")
		var c census
		attempts, err := tree.Attempts(ctx, s.name, "runc", []string{images, work}, func() (err error) {
			c, err = s.dumpOnce(ctx, dir, images, work, ref)
			return err
		})
		if err != nil {
			return engine.Checkpoint{}, err
		}
		defer func() { err = lost(err) }()
		defer engine.StartSpan(ctx, "seal")()
		stopped := slices.Sorted(maps.Keys(c.stopped))
		if err := tree.WriteJSON(filepath.Join(dir, stoppedFile), tree.NonNil(stopped)); err != nil {
			return engine.Checkpoint{}, err
		}
		if err := checkpoint.KeepScreen(dir, ref); err != nil {
			return engine.Checkpoint{}, err
		}
		config, err := os.ReadFile(filepath.Join(s.container(t).bundle(), configFile))
		if err != nil {
			return engine.Checkpoint{}, err
		}
		if err := os.WriteFile(filepath.Join(dir, configFile), config, 0o600); err != nil {
			return engine.Checkpoint{}, err
		}
		facts := append(s.arm.Facts(ctx), attempts, c.settings, s.network(),
			bench.Fact{Name: "oci.config.sha256", Known: true, Value: fmt.Sprintf("%x", sha256.Sum256(config)), Source: configFile + " of the checkpoint", View: engine.ViewHost})
		return tree.Dumped{
			Arm: Kind, Slot: s.name, Params: p, Root: s.root.Root, Tenancy: t.life(), Group: s.holding(t), Census: c.Census, Facts: facts, Sharing: s.arm.settings.Sharing,
		}.Seal(ctx, dir)
	})
}

// dumpOnce is one dump with the census before it. On an error the tree runs on,
// but for engine.ErrDead.
func (s *slot) dumpOnce(ctx context.Context, dir, images, work string, ref engine.GuestReference) (c census, err error) {
	t := s.now
	end := engine.StartSpan(ctx, "halt")
	h, err := s.halt(ctx, t)
	end()
	if err != nil {
		return c, err
	}
	c.stopped = h.stopped
	defer func() {
		if err != nil {
			if ended, eerr := t.Ended(); eerr == nil && ended {
				return // it was dumped, or has died
			}
			err = errors.Join(err, s.unhalt(ctx, t, h))
		}
	}()
	end = engine.StartSpan(ctx, "census")
	c.Census, err = s.place.tree(t).Census(ref)
	end()
	if err != nil {
		return c, err
	}
	text, err := dumpSettings(t.Policy)
	if err != nil {
		return c, err
	}
	if err := s.container(t).Configure(text); err != nil {
		return c, err
	}
	end = engine.StartSpan(ctx, "criu")
	err = s.container(t).Checkpoint(ctx, s.ws.Evidence, images, work, s.arm.settings.Locks != "refuse")
	end()
	if err != nil {
		return c, err
	}
	// The checkpoint keeps what runc and criu read, sealed with it.
	told, err := os.ReadFile(s.container(t).criuConf())
	if err != nil {
		return c, lost(err)
	}
	if err := os.WriteFile(filepath.Join(dir, settingsFile), told, 0o600); err != nil {
		return c, lost(err)
	}
	c.settings = bench.Fact{Name: criuConfig + ".sha256", Known: true, Value: fmt.Sprintf("%x", sha256.Sum256(told)), Source: settingsFile + " of the checkpoint", View: engine.ViewHost}
	// The return code is no proof. The tree's first process ends when criu lets go of it.
	if err := s.gone(ctx, t); err != nil {
		return c, err
	}
	return c, lost(s.container(t).Dumped(images))
}

// gone requires that the dumped tree has ended: its first process by its exit,
// everything else by the group that holds it.
func (s *slot) gone(ctx context.Context, t *tenancy) error {
	for {
		ended, err := t.Ended()
		if err != nil {
			return err
		}
		pids, err := s.holding(t).Pids()
		if err != nil {
			return err
		}
		if ended && len(pids) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("runc reports a checkpoint, and processes %v live: %w", pids, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}

// network says how the network comes back: the holder's namespace is never
// dumped, it stays. Of a namespace that runc made nothing is in the images, since
// runc tells criu that it is empty; the gate on the restored slot shows it.
func (p *place) network() bench.Fact {
	f := bench.Fact{Name: engine.NetworkPreserved, View: engine.ViewHost, Known: true}
	if p.holder == nil {
		f.Value, f.Source = "not preserved: runc restores a namespace that it makes anew", "the arm's setting namespace"
		return f
	}
	id := p.holder.Identity()
	f.Value, f.Source = fmt.Sprintf("net:[%s] kept by pid %d, started at tick %s", id.Ino, id.Pid, id.StartTicks), "the holder, verified before the dump"
	return f
}

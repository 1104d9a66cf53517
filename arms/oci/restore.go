package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// compatible are the facts that a checkpoint is of.
var compatible = []string{"kernel-release", "machine", "cpu-features", "criu.version", "criu.sha256", "runc.version", "runc.sha256", engine.EngineDigest}

// Restore implements engine.Arm.
func (a *Arm) Restore(ctx context.Context, ws *engine.Workspace, r engine.Root, cp engine.Checkpoint, old engine.Place, p bench.RestoreParams) (engine.Stopped, error) {
	op := "restore " + string(p.Slot)
	mounted, ok := r.(*root)
	if !ok {
		return nil, fmt.Errorf("restore: root of another arm: %T", r)
	}
	if err := ctx.Err(); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	// Everything that can refuse comes before the old tree is ended.
	end := engine.StartSpan(ctx, "verify")
	err := a.usable(ctx, mounted, cp)
	end()
	if err != nil {
		return nil, err
	}
	pl, err := a.takePlace(ctx, ws, r, old, string(p.Slot))
	if err != nil {
		return nil, tree.Wrapped(op, err)
	}
	s, err := pl.restore(ctx, cp, p)
	if err != nil {
		return nil, pl.abandon(ctx, op, err, old == nil)
	}
	return s, nil
}

// usable requires that the checkpoint is whole and of this arm, image, kernel, CPU, criu and runc.
func (a *Arm) usable(ctx context.Context, r *root, cp engine.Checkpoint) error {
	return checkpoint.Usable(ctx, cp, Kind, r.SHA256, a.Facts(ctx), compatible...)
}

// OpenCheckpoint implements engine.CheckpointOpener.
func (a *Arm) OpenCheckpoint(ctx context.Context, r engine.Root, dir string) (engine.Checkpoint, error) {
	mounted, ok := r.(*root)
	if !ok {
		return engine.Checkpoint{}, fmt.Errorf("open checkpoint: root of another arm: %T", r)
	}
	cp, err := checkpoint.Open(dir)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	return cp, a.usable(ctx, mounted, cp)
}

func (p *place) restore(ctx context.Context, cp engine.Checkpoint, params bench.RestoreParams) (*stopped, error) {
	end := engine.StartSpan(ctx, "place")
	t, err := p.move(params.Resources)
	end()
	if err != nil {
		return nil, err
	}
	t.Policy, t.Exclude = params.Policy, tree.NonNil(params.Exclude)
	t.Restored(cp)
	if t.Stopped, err = stoppedIn(cp); err != nil {
		return nil, err
	}
	// What the process was started with is in the images; runc wants some of it nevertheless.
	if err := p.prepare(t, []string{"restored"}, []string{}, params.Resources, restoreSettings(t.Policy)); err != nil {
		return nil, err
	}
	work := filepath.Join(t.Dir, "criu")
	if err := os.Mkdir(work, 0o700); err != nil {
		return nil, err
	}
	if err := t.Intend(p.ws.Ledger, bench.Claim{Cgroup: p.holding(t).Path(), Note: "restored first process of " + p.name}); err != nil {
		return nil, err
	}
	pid, err := p.container(t).Restore(ctx, p.ws.Evidence, filepath.Join(cp.Dir, tree.ImagesDir), work, p.arm.settings.Locks != "refuse", func() error {
		defer engine.StartSpan(ctx, "layer")()
		return t.Mount(p.root.Dir())
	})
	if err != nil {
		return nil, err
	}
	if err := p.settle(t, pid); err != nil {
		return nil, err
	}
	// runc calls it running; what counts is that each of its tasks stands still.
	if err := criu.WaitStopped(ctx, t.Pid); err != nil {
		return nil, err
	}
	if p.arm.settings.Locks == "repair" {
		defer engine.StartSpan(ctx, "repair")()
		if err := tree.RepairLocks(ctx, t.Pid, cp.Handle.Locks); err != nil {
			return nil, err
		}
	}
	return &stopped{p}, nil
}

// stoppedIn are the inner pids that the guest itself had stopped when it was dumped.
func stoppedIn(cp engine.Checkpoint) (map[int]bool, error) {
	b, err := record.ReadRegular(filepath.Join(cp.Dir, stoppedFile))
	if err != nil {
		return nil, err
	}
	var pids []int
	if err := json.Unmarshal(b, &pids); err != nil {
		return nil, fmt.Errorf("read %s: %w", stoppedFile, err)
	}
	stopped := map[int]bool{}
	for _, pid := range pids {
		stopped[pid] = true
	}
	return stopped, nil
}

// Resume implements engine.Stopped.
func (s *stopped) Resume(ctx context.Context) (engine.Slot, error) {
	if err := s.now.life().Resume(ctx, s.name); err != nil {
		return nil, err
	}
	return &slot{s.place}, nil
}

package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	gorunc "github.com/containerd/go-runc"

	"github.com/drumsbench/drumsbench/arms/checkpoint"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
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
		return nil, wrapped(op, err)
	}
	s, err := pl.restore(ctx, cp, p)
	if err != nil {
		return nil, pl.abandon(ctx, op, err, old == nil)
	}
	return s, nil
}

// usable requires that the checkpoint is whole and of this arm, image, kernel, CPU, criu and runc.
func (a *Arm) usable(ctx context.Context, r *root, cp engine.Checkpoint) error {
	refused := func(what, want, have string) error {
		return &engine.Error{Op: "restore checkpoint", Err: fmt.Errorf("%w: it is of another %s: %s, here %s", engine.ErrRefused, what, want, have), Hint: "make the checkpoint again"}
	}
	if cp.Handle.Arm != Kind {
		return refused("arm", cp.Handle.Arm, Kind)
	}
	if cp.Handle.Image != r.sha256 {
		return refused("image", string(cp.Handle.Image), string(r.sha256))
	}
	if err := checkpoint.Compatible(cp.Handle, a.Facts(ctx), compatible...); err != nil {
		return err
	}
	_, err := checkpoint.Verify(ctx, cp)
	return err
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
	t.policy, t.exclude, t.from, t.held = params.Policy, tree.NonNil(params.Exclude), &cp, true
	lower := []string{}
	for _, l := range cp.Handle.Layers {
		t.layers = append(t.layers, filepath.Join(cp.Dir, l))
		lower = append([]string{filepath.Join(cp.Dir, l)}, lower...) // overlay wants the topmost first
	}
	lower = append(lower, p.root.Dir())
	if t.stopped, err = stoppedIn(cp); err != nil {
		return nil, err
	}
	// What the process was started with is in the images; runc wants some of it nevertheless.
	if err := p.prepare(t, []string{"restored"}, []string{}, params.Resources); err != nil {
		return nil, err
	}
	if err := os.WriteFile(t.criuConf(), []byte(restoreSettings(t.policy)), 0o600); err != nil {
		return nil, err
	}
	work := filepath.Join(t.dir, "criu")
	if err := os.Mkdir(work, 0o700); err != nil {
		return nil, err
	}
	t.procID, err = p.ws.Ledger.Intend("process", bench.Claim{Cgroup: p.group.Path(), Note: "restored first process of " + p.name})
	if err != nil {
		return nil, err
	}
	err = p.making(ctx, t, []string{cp.Dir}, func(ctx context.Context, runc *gorunc.Runc, io gorunc.IO) error {
		end := engine.StartSpan(ctx, "layer")
		err := overlay.Mount(overlay.Options{Lower: lower, Upper: t.upper(), Work: t.work(), Target: t.merged(), NFSExport: true})
		if err == nil {
			err = overlay.CopyUp(t.merged(), t.upper(), cp.Handle.CopyUp)
		}
		end()
		if err != nil {
			return err
		}
		defer engine.StartSpan(ctx, "criu")()
		_, err = runc.Restore(ctx, t.id, t.bundle(), &gorunc.RestoreOpts{
			CheckpointOpts: gorunc.CheckpointOpts{
				ImagePath: filepath.Join(cp.Dir, imagesDir), WorkDir: work, FileLocks: p.arm.settings.Locks != "refuse",
			},
			IO: io, Detach: true, NoSubreaper: true, PidFile: t.pidFile(),
		})
		if err != nil {
			return p.explained(ctx, filepath.Join(work, "restore.log"), over(ctx, "restore container", err))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	// runc calls it running; what counts is that each of its tasks stands still.
	if err := criu.WaitStopped(ctx, t.pid); err != nil {
		return nil, err
	}
	if p.arm.settings.Locks == "repair" {
		defer engine.StartSpan(ctx, "repair")()
		if err := tree.RepairLocks(ctx, t.pid, cp.Handle.Locks); err != nil {
			return nil, err
		}
	}
	return &stopped{p}, nil
}

// stoppedIn are the inner pids that the guest itself had stopped when it was dumped.
func stoppedIn(cp engine.Checkpoint) (map[int]bool, error) {
	b, err := os.ReadFile(filepath.Join(cp.Dir, stoppedFile))
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

// Resume implements engine.Stopped: SIGCONT to every task that ran at the dump,
// then the state of each is read back.
func (s *stopped) Resume(ctx context.Context) (engine.Slot, error) {
	t := s.now
	if t == nil || t.pid == 0 {
		return nil, &engine.Error{Op: "resume " + s.name, Err: engine.ErrDead}
	}
	if err := tree.Continue(ctx, t.pid, t.stopped); err != nil {
		return nil, &engine.Error{Op: "resume " + s.name, Err: err}
	}
	t.held = false
	return &slot{s.place}, nil
}

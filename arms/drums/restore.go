package drums

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// compatible are the facts that a checkpoint is of.
var compatible = []string{"kernel-release", "machine", "cpu-features", "criu.version", "criu.sha256", engine.EngineDigest}

// besideCRIU is tree.BesideCRIU; checkpoint is where criu's images lie.
func (a *Arm) besideCRIU(ws *engine.Workspace, checkpoint string, fn func() error) error {
	return tree.BesideCRIU(a.tool, ws.State, []string{ws.Work, ws.Run, checkpoint}, fn)
}

// command is criu, born in a cgroup.
func (a *Arm) command(groupFD int) *exec.Cmd {
	cmd := a.tool.Command()
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: groupFD}
	return cmd
}

// logLevel of restores; 0 is the level of calls that are measured.
func (a *Arm) logLevel() criu.LogLevel {
	if a.settings.Log == "debug" {
		return criu.LogDebug
	}
	return 0
}

// Restore implements engine.Arm.
func (a *Arm) Restore(ctx context.Context, ws *engine.Workspace, r engine.Root, cp engine.Checkpoint, old engine.Place, p bench.RestoreParams) (engine.Stopped, error) {
	mounted, ok := r.(*root)
	if !ok {
		return nil, fmt.Errorf("restore: root of another arm: %T", r)
	}
	// Everything that can refuse comes before the old tree is ended.
	end := engine.StartSpan(ctx, "verify")
	err := a.usable(ctx, mounted, cp)
	end()
	if err != nil {
		return nil, err
	}
	pl, err := a.takePlace(ws, r, old, string(p.Slot))
	if err != nil {
		return nil, err
	}
	left := pl.leave(ctx)
	s, err := pl.restore(ctx, cp, p, left)
	if err = pl.settled(err, left); err != nil {
		return nil, pl.abandon(ctx, "restore "+pl.name, err, old == nil)
	}
	return s, nil
}

// usable requires that the checkpoint is whole and of this arm, image, kernel, CPU and criu.
func (a *Arm) usable(ctx context.Context, r *root, cp engine.Checkpoint) error {
	return checkpoint.Usable(ctx, cp, Kind, r.SHA256, append(a.tool.Facts(), a.host...), compatible...)
}

func (p *place) restore(ctx context.Context, cp engine.Checkpoint, params bench.RestoreParams, left func() error) (*stopped, error) {
	end := engine.StartSpan(ctx, "place")
	t, err := p.move()
	end()
	if err != nil {
		return nil, err
	}
	t.Policy, t.Exclude = params.Policy, tree.NonNil(params.Exclude)
	t.Restored(cp)
	work := filepath.Join(t.Dir, "criu")
	if err := os.Mkdir(work, 0o700); err != nil {
		return nil, err
	}
	if err := t.Intend(p.ws.Ledger, bench.Claim{Cgroup: p.group.Path(), Note: "restored first process of " + p.name}); err != nil {
		return nil, err
	}
	images := filepath.Join(cp.Dir, tree.ImagesDir)
	pid := 0
	// What the tree before touched is what this one gets first.
	filled := beside(func() (err error) {
		if err = left(); err == nil {
			t.pages, err = p.fillLazily(ctx, cp, images, work)
		}
		return err
	})
	err = p.arm.besideCRIU(p.ws, cp.Dir, func() error {
		end := engine.StartSpan(ctx, "layer")
		err := t.Mount(p.root.Dir())
		end()
		if err != nil {
			return err
		}
		if err := p.limit(ctx, t, params.Resources, left); err != nil {
			return err
		}
		if err := filled(); err != nil {
			return err
		}
		defer engine.StartSpan(ctx, "criu")()
		leave, err := t.Limits.JoinThread()
		if err != nil {
			return err
		}
		pid, err = criu.Restore(ctx, p.arm.command(p.birth(t)), criu.RestoreOptions{
			ImagesDir: images, WorkDir: work, Root: t.Merged(), Sibling: true, LeaveStopped: true, LogLevel: p.arm.logLevel(),
			FileLocks: p.arm.settings.Locks != "refuse", TCPClose: t.Policy.EstablishedTCP == "close",
			Network: p.network(t, cp), Started: leave, LazyPages: t.pages != nil,
		}, nil)
		return errors.Join(err, leave())
	})
	if ferr := filled(); err == nil {
		err = ferr
	}
	if err != nil {
		return nil, p.keepLog(work, err)
	}
	if err := t.Settle(p.ws.Ledger, pid); err != nil {
		return nil, err
	}
	if err := t.restored(ctx); err != nil {
		return nil, err
	}
	if t.Stopped, err = stoppedIn(cp.Dir); err != nil {
		return nil, err
	}
	if p.arm.settings.Locks == "repair" {
		defer engine.StartSpan(ctx, "repair")()
		if err := tree.RepairLocks(ctx, pid, cp.Handle.Locks); err != nil {
			return nil, err
		}
	}
	return &stopped{p}, nil
}

// keepLog copies criu's log beside the run before the tenancy's folder goes, and names it in the error.
func (p *place) keepLog(work string, err error) error {
	if err == nil {
		return nil // a log that no receipt names is damage
	}
	for _, name := range []string{"dump.log", "restore.log"} {
		b, rerr := os.ReadFile(filepath.Join(work, name))
		if rerr != nil {
			continue
		}
		ev, perr := p.ws.Evidence.Put("criu-"+name, b)
		if perr != nil {
			return fmt.Errorf("%w; and its log is lost: %w", err, perr)
		}
		var e *engine.Error
		if errors.As(err, &e) {
			e.Log = p.ws.Evidence.Path(ev)
		}
	}
	return err
}

// Resume implements engine.Stopped.
func (s *stopped) Resume(ctx context.Context) (engine.Slot, error) {
	if err := s.now.life().Resume(ctx, s.name); err != nil {
		return nil, err
	}
	return &slot{s.place}, nil
}

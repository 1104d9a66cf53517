package oci

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	gorunc "github.com/containerd/go-runc"

	"github.com/drumsbench/drumsbench/arms/checkpoint"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Folders and files of a checkpoint.
const (
	imagesDir = "images"
	layerDir  = "layers/0"
	stateFile = "state.json"
	// stoppedFile lists the inner pids that the guest itself had stopped: in the
	// images every task is, since the arm stops the tree before it is dumped.
	stoppedFile = "stopped.json"
	// What runc and criu were told.
	configFile   = "config.json"
	settingsFile = "criu.conf"
)

// A dump that met something which goes away by itself (a connection that its
// server has not accepted yet, as right after a program's start) is tried again
// while the tree runs on: dumpAttempts times at most, first after dumpPause,
// then after twice the pause before.
const (
	dumpAttempts = 6
	dumpPause    = 50 * time.Millisecond
)

// Dump implements engine.Slot. The tree is stopped, the census is taken and
// judged: what it finds vetoes the dump, and the slot runs on. After the dump the
// tree is gone, which is proven, and its upper layer is sealed.
func (s *slot) Dump(ctx context.Context, p bench.DumpParams, ref engine.GuestReference) (engine.Checkpoint, engine.Place, error) {
	cp, err := s.dump(ctx, p, ref)
	if err != nil {
		return engine.Checkpoint{}, nil, wrapped("dump "+s.name, err)
	}
	return cp, s.place, nil
}

// census is the slot as it stood still.
type census struct {
	tree.Census
	stopped map[int]bool
	// attempts says how many dumps it took, settings what criu was told.
	attempts, settings bench.Fact
}

func (s *slot) dump(ctx context.Context, p bench.DumpParams, ref engine.GuestReference) (cp engine.Checkpoint, err error) {
	t := s.now
	if t == nil || t.pid == 0 {
		return engine.Checkpoint{}, engine.ErrDead
	}
	if err := ctx.Err(); err != nil {
		return engine.Checkpoint{}, err
	}
	if t.from != nil {
		return engine.Checkpoint{}, &engine.Error{Op: "dump " + s.name, Err: fmt.Errorf("%w: the slot was itself restored from a checkpoint", engine.ErrRefused),
			Hint: "dump a provisioned slot; chains of checkpoints are not made yet"}
	}
	if s.holder != nil {
		if err := s.holder.Verify(); err != nil {
			return engine.Checkpoint{}, err
		}
	}
	t.policy, t.exclude = p.Policy, tree.NonNil(p.Exclude)
	// Made in the scratch directory and moved once it is sealed: what is not a whole
	// checkpoint never looks like one, and sweep knows whose it is.
	dir := filepath.Join(s.ws.Work, s.name+".checkpoint")
	id, err := engine.Own(s.ws.Ledger, "directory", bench.Claim{Path: dir}, func() (bench.Identity, error) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return bench.Identity{}, err
		}
		return tree.FileIdentity(dir)
	})
	if err != nil {
		return engine.Checkpoint{}, err
	}
	defer func() {
		rerr := os.RemoveAll(dir)
		if rerr == nil {
			rerr = s.ws.Ledger.Gone(id)
		}
		err = errors.Join(err, rerr)
	}()
	if err := os.Mkdir(filepath.Join(dir, filepath.Dir(layerDir)), 0o755); err != nil {
		return engine.Checkpoint{}, err
	}
	c, err := s.dumpTree(ctx, dir, ref)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	defer engine.StartSpan(ctx, "seal")()
	if cp, err = s.seal(ctx, dir, p, c); err != nil {
		return cp, err
	}
	cp.Dir = filepath.Join(s.ws.Run, "checkpoints", s.name)
	if err := os.MkdirAll(filepath.Dir(cp.Dir), 0o755); err != nil {
		return cp, err
	}
	return cp, os.Rename(dir, cp.Dir)
}

// dumpTree has runc dump the tree into fresh folders. A dump that fails with
// criu.ErrTransient is tried again from the start: none of it is silent, the waits
// are spans, the logs are evidence, and the checkpoint's facts say how many
// attempts it took and why.
func (s *slot) dumpTree(ctx context.Context, dir string, ref engine.GuestReference) (census, error) {
	source := "runc"
	for attempt, pause := 1, dumpPause; ; attempt, pause = attempt+1, 2*pause {
		for _, d := range []string{imagesDir, "criu"} {
			d = filepath.Join(dir, d)
			if err := errors.Join(os.RemoveAll(d), os.Mkdir(d, 0o755)); err != nil {
				return census{}, err
			}
		}
		c, err := s.dumpOnce(ctx, dir, ref)
		if err == nil {
			c.attempts = bench.Fact{Name: "dump-attempts", Known: true, Value: strconv.Itoa(attempt), Source: source, View: engine.ViewHost}
			return c, nil
		}
		if !errors.Is(err, criu.ErrTransient) || attempt == dumpAttempts {
			return census{}, err
		}
		source = "runc; attempt " + strconv.Itoa(attempt) + ": " + err.Error()
		end := engine.StartSpan(ctx, "transient")
		select {
		case <-ctx.Done():
			return census{}, &engine.Error{Op: "dump " + s.name, Err: errors.Join(context.Cause(ctx), err)}
		case <-time.After(pause):
		}
		end()
	}
}

// dumpOnce is one dump with the census before it. On an error the tree runs on.
func (s *slot) dumpOnce(ctx context.Context, dir string, ref engine.GuestReference) (c census, err error) {
	t := s.now
	end := engine.StartSpan(ctx, "halt")
	c.stopped, err = s.halt(ctx, t)
	end()
	if err != nil {
		return c, err
	}
	defer func() {
		if err != nil {
			if ended, eerr := t.ended(); eerr == nil && ended {
				return // it was dumped, or has died
			}
			err = errors.Join(err, s.unhalt(ctx, t, c.stopped))
		}
	}()
	end = engine.StartSpan(ctx, "census")
	c.Census, err = s.tree(t).Census(ref)
	end()
	if err != nil {
		return c, err
	}
	text, err := dumpSettings(t.policy)
	if err != nil {
		return c, err
	}
	if err := os.WriteFile(t.criuConf(), []byte(text), 0o600); err != nil {
		return c, err
	}
	// The checkpoint keeps what runc and criu read, sealed with it.
	if err := os.WriteFile(filepath.Join(dir, settingsFile), []byte(text), 0o600); err != nil {
		return c, err
	}
	c.settings = bench.Fact{Name: criuConfig + ".sha256", Known: true, Value: fmt.Sprintf("%x", sha256.Sum256([]byte(text))), Source: settingsFile + " of the checkpoint", View: engine.ViewHost}

	defer engine.StartSpan(ctx, "criu")()
	err = s.arm.stage(s.ws, []string{dir}, func() error {
		ctx, done := call{groupFD: s.helpers.FD(), env: s.arm.env(t.home())}.with(ctx)
		defer done()
		return over(ctx, "checkpoint container", s.arm.runc(t).Checkpoint(ctx, t.id, &gorunc.CheckpointOpts{
			ImagePath: filepath.Join(dir, imagesDir), WorkDir: filepath.Join(dir, "criu"),
			FileLocks: s.arm.settings.Locks != "refuse",
		}))
	})
	if err != nil {
		// No criu may still hold the tree when it is let run.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		return c, errors.Join(s.explained(ctx, filepath.Join(dir, "criu", "dump.log"), err), s.helpers.Kill(undo))
	}
	// The return code is no proof. The tree's first process ends when criu lets go of it.
	if err := s.gone(ctx, t); err != nil {
		return c, err
	}
	img := criu.OpenImages(filepath.Join(dir, imagesDir))
	if err := img.Complete(); err != nil {
		return c, err
	}
	return c, harmless(img, t.limits.Name())
}

// harmless requires that the images keep settings of the slot's own control group
// only: whatever they keep a restore may write to the host.
func harmless(img criu.Images, own string) error {
	groups, err := img.ControlGroups()
	if err != nil {
		return err
	}
	for _, g := range groups {
		if !slices.Equal(g.Controllers, []string{dumpedController}) || filepath.Base(g.Path) != own {
			return &engine.Error{Op: "look at images", Err: fmt.Errorf("%w: they keep settings of the control group %s of %v", engine.ErrRefused, g.Path, g.Controllers),
				Hint: "a restore would write them to the host; another runc or criu may understand cgroup-dump-controller differently"}
		}
	}
	return nil
}

// gone requires that the dumped tree has ended: its first process by its exit,
// everything else by the group that holds it.
func (s *slot) gone(ctx context.Context, t *tenancy) error {
	for {
		ended, err := t.ended()
		if err != nil {
			return err
		}
		pids, err := s.group.Pids()
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

// explained is what runc says of a criu that failed, with what criu itself said,
// whose log is kept.
func (p *place) explained(ctx context.Context, log string, err error) error {
	if ctx.Err() != nil {
		return err
	}
	f := criu.Explain(log)
	e := &engine.Error{Op: "criu", Err: err, Hint: f.Hint()}
	if len(f.Lines) > 0 {
		e.Err = fmt.Errorf("%w: %w", f, err)
	}
	b, rerr := os.ReadFile(log)
	if rerr != nil {
		return e
	}
	ev, perr := p.ws.Evidence.Put("criu-"+filepath.Base(log), b)
	if perr != nil {
		return fmt.Errorf("%w; and its log is lost: %w", e, perr)
	}
	e.Log = p.ws.Evidence.Path(ev)
	return e
}

// seal reaps what is left of the tree, turns the upper layer into a read-only one
// and writes the handle.
func (s *slot) seal(ctx context.Context, dir string, p bench.DumpParams, c census) (engine.Checkpoint, error) {
	t := s.now
	img := criu.OpenImages(filepath.Join(dir, imagesDir))
	wanted, err := tree.WantedLocks("dump "+s.name, img, c.Locks)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	copyUp, err := img.CopyUp()
	if err != nil {
		return engine.Checkpoint{}, err
	}
	stopped := []int{}
	for pid := range c.stopped {
		stopped = append(stopped, pid)
	}
	slices.Sort(stopped)
	for name, v := range map[string]any{stateFile: c.State, stoppedFile: stopped} {
		b, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return engine.Checkpoint{}, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), append(b, '\n'), 0o600); err != nil {
			return engine.Checkpoint{}, err
		}
	}
	if c.Reference.State, err = canonical.Digest(c.State); err != nil {
		return engine.Checkpoint{}, err
	}
	// The tree is gone, its mount namespace and overlay with it; only now may the upper move.
	if err := s.group.Kill(ctx); err != nil {
		return engine.Checkpoint{}, err
	}
	if err := t.reap(ctx); err != nil {
		return engine.Checkpoint{}, err
	}
	if err := overlay.Seal(overlay.SealOptions{
		Upper: t.upper(), Work: t.work(), Image: s.root.Dir(), Dest: filepath.Join(dir, layerDir), Cache: &s.root.hashes,
	}); err != nil {
		return engine.Checkpoint{}, err
	}
	config, err := os.ReadFile(filepath.Join(t.bundle(), configFile))
	if err != nil {
		return engine.Checkpoint{}, err
	}
	if err := os.WriteFile(filepath.Join(dir, configFile), config, 0o600); err != nil {
		return engine.Checkpoint{}, err
	}
	facts := append(s.arm.Facts(ctx), c.Server, c.attempts, c.settings, s.network())
	facts = append(facts, bench.Fact{Name: "oci.config.sha256", Known: true, Value: fmt.Sprintf("%x", sha256.Sum256(config)), Source: configFile + " of the checkpoint", View: engine.ViewHost})
	return checkpoint.Seal(ctx, dir, bench.Checkpoint{
		ApiVersion: engine.APIVersion, Arm: Kind, Created: bench.Time(time.Now().UTC().Format(time.RFC3339Nano)),
		Workload: p.Workload, Image: s.root.sha256,
		Layers: []string{layerDir}, CopyUp: tree.NonNil(copyUp), Locks: wanted,
		Reference: c.Reference, Facts: facts,
	})
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

package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// compatible are the facts of the host that a checkpoint is of.
var compatible = []string{"kernel-release", "machine", "cpu-features", factVersion, factSHA256, engine.Accelerator, engine.EngineDigest}

// Restore implements engine.Arm. The slot that it returns is held by its own
// guest server: the machine runs, and of its processes only the server does.
func (a *Arm) Restore(ctx context.Context, ws *engine.Workspace, r engine.Root, cp engine.Checkpoint, old engine.Place, p bench.RestoreParams) (engine.Stopped, error) {
	op := "restore " + string(p.Slot)
	mounted, ok := r.(*root)
	if !ok {
		return nil, fmt.Errorf("restore: root of another arm: %T", r)
	}
	if err := ctx.Err(); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	// Everything that can refuse comes before the old machine is ended.
	end := engine.StartSpan(ctx, "verify")
	s, err := a.usable(ctx, mounted, cp, &p.Resources)
	end()
	if err != nil {
		return nil, err
	}
	pl, err := placeOf(old)
	if err != nil {
		return nil, err
	}
	if pl != nil && a.settings.Snapshot == MethodInPlace && pl.keeps(cp) {
		err = pl.reset(ctx, cp, p)
	} else {
		if pl, err = a.takePlace(ctx, ws, r, old, string(p.Slot)); err != nil {
			return nil, err
		}
		err = pl.restore(ctx, s, cp, p)
	}
	if err != nil {
		return nil, pl.abandon(ctx, op, err, old == nil)
	}
	return &stopped{pl}, nil
}

// usable requires that the checkpoint is whole and of this arm, image, host and
// QEMU, and, where resources are given, of a machine with these.
func (a *Arm) usable(ctx context.Context, r *root, cp engine.Checkpoint, resources *bench.Resources) (shape, error) {
	refused := func(what, want, have string) error {
		return &engine.Error{Op: "restore checkpoint", Err: fmt.Errorf("%w: it is of another %s: %s, here %s", engine.ErrRefused, what, want, have), Hint: "make the checkpoint again"}
	}
	if cp.Handle.Arm != Kind {
		return shape{}, refused("arm", cp.Handle.Arm, Kind)
	}
	if cp.Handle.Image != r.pin {
		return shape{}, refused("image", string(cp.Handle.Image), string(r.pin))
	}
	s, err := shapeIn(cp.Handle)
	if err != nil {
		return shape{}, err
	}
	if resources != nil {
		want, err := shapeOf(*resources, int64(s.Port))
		if err != nil {
			return shape{}, err
		}
		if want != s {
			return shape{}, refused("machine", fmt.Sprintf("%+v", s), fmt.Sprintf("%+v", want))
		}
	}
	here := append(a.Facts(ctx), r.boot.facts()...)
	here = append(here, s.facts(a.settings.Snapshot)...)
	boots := factKernel
	if r.boot.self() {
		boots = factBoots // the kernel is the image's, whose pin was compared
	}
	if err := checkpoint.Compatible(cp.Handle, here, append([]string{factMethod, boots}, compatible...)...); err != nil {
		return shape{}, err
	}
	_, err = checkpoint.Verify(ctx, cp)
	return s, err
}

// shapeIn reads the machine's shape from a handle.
func shapeIn(h bench.Checkpoint) (s shape, err error) {
	into := map[string]any{factVCPUs: &s.VCPUs, factMemory: &s.Memory, factPids: &s.Pids, factPort: &s.Port}
	for _, f := range h.Facts {
		to, wanted := into[f.Name]
		if !wanted || !f.Known {
			continue
		}
		if _, err := fmt.Sscan(f.Value, to); err != nil {
			return s, &engine.Error{Op: "restore checkpoint", Err: fmt.Errorf("%w: fact %s is %q", engine.ErrRefused, f.Name, f.Value)}
		}
		delete(into, f.Name)
	}
	for name := range into {
		return s, &engine.Error{Op: "restore checkpoint", Err: fmt.Errorf("%w: the handle lacks the fact %s", engine.ErrRefused, name), Hint: "make the checkpoint again"}
	}
	return s, nil
}

// keeps says whether the machine of the place holds the checkpoint's snapshot in its own disk.
func (p *place) keeps(cp engine.Checkpoint) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.now
	if t == nil || t.saved != cp.Dir {
		return false
	}
	ended, err := t.ended()
	return err == nil && !ended
}

// reset loads the snapshot again in the process that it was saved or loaded in.
func (p *place) reset(ctx context.Context, cp engine.Checkpoint, params bench.RestoreParams) error {
	t := p.now
	p.mu.Lock()
	t.held, t.parked = true, false // from here on nobody reaches the guest
	p.mu.Unlock()
	t.forget()
	t.policy, t.exclude, t.from, t.facts = params.Policy, nonNil(params.Exclude), &cp, nil
	if err := t.attach(ctx); err != nil {
		return err
	}
	defer t.detach()
	end := engine.StartSpan(ctx, "kill")
	err := t.stop(ctx)
	end()
	if err != nil {
		return err
	}
	return p.load(ctx, t)
}

// load loads the snapshot of the slot's own disk and wakes the machine.
func (p *place) load(ctx context.Context, t *tenancy) error {
	end := engine.StartSpan(ctx, "load")
	loaded, err := t.listen(ctx, "snapshot-load", jobEvent, "concluded")
	if err != nil {
		end()
		return err
	}
	err = t.job(ctx, "snapshot-load")
	end()
	if err != nil {
		loaded.stop()
		return err
	}
	return p.woken(ctx, t, loaded)
}

func (p *place) restore(ctx context.Context, s shape, cp engine.Checkpoint, params bench.RestoreParams) error {
	end := engine.StartSpan(ctx, "layer")
	t, err := p.move(s)
	if err == nil {
		t.policy, t.exclude, t.from, t.held = params.Policy, nonNil(params.Exclude), &cp, true
		from := diskFile
		if p.arm.settings.Snapshot == MethodFile {
			from = freshFile
		}
		err = copyFile(in(cp, from), t.file(diskFile), 0o600)
	}
	end()
	if err != nil {
		return err
	}
	// The ramdisk of the image: what the machine was told at its boot is in its memory.
	l := launch{initrd: p.root.boot.initramfs}
	if p.arm.settings.Snapshot == MethodFile {
		l.layers = []string{in(cp, diskFile)}
		if l.memory, err = os.Open(in(cp, memoryFile)); err != nil {
			return err
		}
		defer l.memory.Close()
		if l.incoming, err = os.Open(in(cp, machineFile)); err != nil {
			return err
		}
		defer l.incoming.Close()
	}
	end = engine.StartSpan(ctx, "qemu")
	err = p.start(ctx, t, l)
	end()
	if err != nil {
		return err
	}
	defer t.detach()
	if p.arm.settings.Snapshot != MethodFile {
		if p.arm.settings.Snapshot == MethodInPlace {
			t.saved = cp.Dir
		}
		return p.load(ctx, t)
	}
	end = engine.StartSpan(ctx, "load")
	loaded, err := t.loadState(ctx, ignoreShared)
	end()
	if err != nil {
		return p.explain(ctx, t, err)
	}
	return p.woken(ctx, t, loaded)
}

// woken wakes the machine, and asks for QEMU's own time of the load when that has long come.
func (p *place) woken(ctx context.Context, t *tenancy, loaded *ear) error {
	if err := p.wake(ctx, t); err != nil {
		loaded.stop()
		return err
	}
	t.facts = append(t.facts, loaded.told())
	return nil
}

// Resume implements engine.Stopped: the guest's kernel makes its random numbers anew, which
// its siblings would draw too, and the guest thaws its tree and reads that back; a machine
// that boots itself goes on as a whole.
func (s *stopped) Resume(ctx context.Context) (engine.Slot, error) {
	op := "resume " + s.name
	if err := (&slot{s.place}).Alive(); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	t := s.now
	if err := t.attach(ctx); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	defer t.detach()
	t.forget()
	thaw := func() error { return t.client().Thaw(ctx) }
	if t.self {
		thaw = func() error { return t.cont(ctx) }
	}
	if err := thaw(); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	status, err := t.status(ctx)
	if err == nil && status != "running" {
		err = errors.New("its machine's status is " + status)
	}
	if err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	s.mu.Lock()
	t.held = false
	s.mu.Unlock()
	return &slot{s.place}, nil
}

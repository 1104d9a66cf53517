package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Restore implements engine.Arm.
func (a *Arm) Restore(ctx context.Context, ws *engine.Workspace, r engine.Root, cp engine.Checkpoint, old engine.Place, p bench.RestoreParams) (engine.Stopped, error) {
	mounted, ok := mountedRoot(r)
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
	pl, err := a.takePlace(ctx, ws, r, old, string(p.Slot))
	if err != nil {
		return nil, err
	}
	if err := pl.restore(ctx, cp, p); err != nil {
		return nil, pl.abandon(ctx, "restore "+pl.name, err, old == nil)
	}
	return &stopped{pl}, nil
}

// usable requires that the checkpoint is whole and of this arm, image and version.
func (a *Arm) usable(ctx context.Context, r *root, cp engine.Checkpoint) error {
	if err := ctx.Err(); err != nil {
		return &engine.Error{Op: "restore checkpoint", Err: err}
	}
	return checkpoint.Usable(ctx, cp, Kind, r.pin, a.Facts(ctx), factVersion)
}

func (p *place) restore(ctx context.Context, cp engine.Checkpoint, params bench.RestoreParams) error {
	end := engine.StartSpan(ctx, "layer")
	t, err := p.move(params.Resources, true)
	end()
	if err != nil {
		return err
	}
	defer engine.StartSpan(ctx, "load")()
	t.policy, t.exclude, t.from = params.Policy, nonNil(params.Exclude), cp.Dir
	switch {
	case t.fault("restore-error"):
		return errors.New("load images: process exited with status 1")
	case t.fault("restore-hang"):
		<-ctx.Done()
	case t.fault("restore-ignores-deadline"):
		<-ctx.Done()
		time.Sleep(Overrun)
	}
	if err := t.pause(ctx); err != nil {
		return err
	}
	w := &world{}
	if err := read(filepath.Join(cp.Dir, memoryFile), &w.memory); err != nil {
		return err
	}
	var layer map[string]*file
	if err := read(filepath.Join(cp.Dir, layerFile), &layer); err != nil {
		return err
	}
	w.files = over(layer)
	t.plant(w)
	t.spoil(w)
	if err := t.pause(ctx); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.world = w
	return nil
}

// spoil puts the faults of a restore into what came back.
func (t *tenancy) spoil(w *world) {
	if t.fault("lock-lost") {
		w.Locks = slices.DeleteFunc(w.Locks, func(l bench.Lock) bool { return l.Mapped })
	}
	if t.fault("lock-extra") {
		w.Locks = append(w.Locks, bench.Lock{Path: "/run/other.lock", Pid: 1, Type: "FLOCK", Mode: "WRITE", Start: "0", End: "-1"})
	}
	if t.fault("process-lost") {
		w.Processes = w.Processes[:len(w.Processes)-1]
	}
	if t.fault("process-argv") && len(w.Processes) > 0 {
		w.Processes[0].Argv = append(w.Processes[0].Argv, "--other")
	}
	if t.fault("state-dirty") {
		w.files["/tmp/left-over"] = file{Mode: 0o644, Data: []byte("of an earlier rollout\n")}
	}
	if t.fault("memory-lost") {
		w.Notes = nil
	}
	if t.fault("token-lost") {
		w.Token = newToken()
	}
}

func read(path string, into any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// Resume implements engine.Stopped.
func (s *stopped) Resume(ctx context.Context) (engine.Slot, error) {
	op := "resume " + s.name
	t := s.tenancy()
	if t == nil {
		return nil, &engine.Error{Op: op, Err: engine.ErrDead}
	}
	if t.fault("resume-error") {
		return nil, &engine.Error{Op: op, Err: errors.New("continue pid 1: operation not permitted")}
	}
	if err := t.pause(ctx); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	t.mu.Lock()
	w, running := t.world, !t.since.IsZero()
	if w != nil && !running && t.fault("canary-stale") {
		w.touchUploaded()
	}
	t.mu.Unlock()
	switch {
	case w == nil:
		return nil, &engine.Error{Op: op, Err: engine.ErrDead}
	case running:
		return nil, &engine.Error{Op: op, Err: errors.New("it runs already")}
	}
	t.run()
	return &slot{s.place}, nil
}

// touchUploaded changes each file that came in through the guest server.
func (w *world) touchUploaded() {
	for _, p := range w.Uploaded {
		f := w.files[p]
		f.Data = append(slices.Clone(f.Data), "changed"...)
		w.files[p] = f
	}
}

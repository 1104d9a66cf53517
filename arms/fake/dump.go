package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Folders and files of a checkpoint.
const (
	memoryFile = "images/memory.json"
	layerDir   = "layers/0"
	layerFile  = layerDir + "/files.json"
	stateFile  = "state.json"
)

// Dump implements engine.Slot.
func (s *slot) Dump(ctx context.Context, p bench.DumpParams, ref engine.GuestReference) (engine.Checkpoint, engine.Place, error) {
	op := "dump " + s.name
	t := s.tenancy()
	if t == nil {
		return engine.Checkpoint{}, nil, &engine.Error{Op: op, Err: engine.ErrDead}
	}
	cp, err := s.dump(ctx, t, p, ref)
	if err != nil {
		var e *engine.Error
		if !errors.As(err, &e) {
			err = &engine.Error{Op: op, Err: err}
		}
		return engine.Checkpoint{}, nil, err
	}
	return cp, s.place, nil
}

// census is the slot as it is at the dump.
type census struct {
	memory memory
	layer  map[string]*file
	state  bench.StateManifest
}

func (s *slot) dump(ctx context.Context, t *tenancy, p bench.DumpParams, ref engine.GuestReference) (cp engine.Checkpoint, err error) {
	refuse := func(found []bench.Finding) error {
		return &engine.Error{Op: "dump " + s.name, Err: fmt.Errorf("%w: %s %s", engine.ErrRefused, found[0].Subject, found[0].Text), Hint: found[0].Hint, Findings: found}
	}
	switch {
	case t.fault("dump-refused"):
		return cp, refuse([]bench.Finding{{Verdict: engine.Fail, Subject: "pid 1 POSIX READ lock on /run/plain.lock bytes 0-EOF", Text: "is held",
			Want: "not held", Have: "held", Hint: "let go of the lock before the dump, or use an arm that carries it"}})
	case t.fault("dump-hang"):
		<-ctx.Done()
	}
	if err := t.pause(ctx); err != nil {
		return cp, err
	}
	t.mu.Lock()
	t.policy, t.exclude = p.Policy, nonNil(p.Exclude)
	t.mu.Unlock()
	if found := append(engine.MountContract(s.mounts(t)), t.enclosure()...); len(found) > 0 {
		return cp, refuse(found)
	}

	end := engine.StartSpan(ctx, "census")
	c, ok := t.freeze()
	end()
	if !ok {
		return cp, &engine.Error{Op: "dump " + s.name, Err: engine.ErrDead}
	}
	thaw := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.since = time.Now()
	}
	// Made in the scratch directory and moved once it is sealed: what is not a whole
	// checkpoint never looks like one, and sweep knows whose it is.
	owned, err := ownDirectory(s.ws, filepath.Join(s.ws.Work, s.name+".checkpoint"))
	defer func() { err = errors.Join(err, owned.remove()) }()
	if err != nil {
		thaw()
		return cp, err
	}
	dir := owned.path
	if err := write(filepath.Join(dir, memoryFile), c.memory); err != nil {
		thaw()
		return cp, err
	}
	if t.fault("dump-error") {
		thaw()
		return cp, errors.New("write images: no space left on device")
	}
	if err := t.pause(ctx); err != nil {
		thaw()
		return cp, err
	}
	// From here on there is no way back: the tree ends.
	if err := t.end(ctx); err != nil {
		return cp, err
	}
	if err := t.pause(ctx); err != nil {
		return cp, err
	}
	defer engine.StartSpan(ctx, "seal")()
	if err := errors.Join(write(filepath.Join(dir, layerFile), c.layer), write(filepath.Join(dir, stateFile), c.state)); err != nil {
		return cp, err
	}
	if cp, err = s.seal(ctx, t, dir, p, c, ref); err != nil {
		return cp, err
	}
	if cp.Dir, err = s.ws.CheckpointDir(s.name); err != nil {
		return cp, err
	}
	return cp, os.Rename(dir, cp.Dir)
}

// freeze stops the world's clock and takes the census.
func (t *tenancy) freeze() (c census, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.world == nil {
		return c, false
	}
	t.world.Counter = t.counter()
	t.since = time.Time{}
	return census{memory: t.world.memory, layer: t.world.layer(), state: t.world.state(t.exclude)}, true
}

func (s *slot) seal(ctx context.Context, t *tenancy, dir string, p bench.DumpParams, c census, ref engine.GuestReference) (cp engine.Checkpoint, err error) {
	state, err := canonical.Digest(c.state)
	if err != nil {
		return cp, err
	}
	network := bench.Fact{Name: engine.NetworkPreserved, Known: true, Value: "links, addresses, routes and rules", Source: memoryFile, View: engine.ViewHost}
	if t.fault("dump-no-network") {
		network = bench.Fact{Name: engine.NetworkPreserved, Reason: "the images hold no link", View: engine.ViewHost}
	}
	server := bench.Fact{Name: engine.ServerDigest, Known: true, Value: string(c.memory.Server), Source: memoryFile, View: engine.ViewStopped}
	facts := append(s.arm.Facts(ctx), server, network)
	if t.fault("dump-foreign") {
		facts[0].Value = "another"
	}
	if err := checkpoint.KeepScreen(dir, ref); err != nil {
		return cp, err
	}
	cp, err = checkpoint.Seal(ctx, dir, bench.Checkpoint{
		ApiVersion: engine.APIVersion, Arm: Kind, Created: engine.Timestamp(time.Now()), Workload: p.Workload, Image: s.root.pin,
		Layers: []string{layerDir}, CopyUp: []string{}, Locks: nonNil(c.memory.Locks),
		Reference: bench.Reference{
			Mounts: c.memory.Mounts, Network: c.memory.Network, Processes: c.memory.Processes, Live: ref.Live, Canary: ref.Canary, State: state,
		},
		Facts: facts,
	})
	if err == nil && t.fault("checkpoint-damaged") {
		err = damage(filepath.Join(dir, memoryFile))
	}
	return cp, err
}

func write(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}

func damage(path string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte{'\n'})
	return errors.Join(err, f.Close())
}

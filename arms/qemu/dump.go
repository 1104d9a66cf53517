package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Files of a checkpoint beside diskFile and memoryFile.
const (
	machineFile = "machine" // state of the devices
	freshFile   = "fresh.qcow2"
	stateFile   = "state.json"
)

// Facts of a checkpoint.
const (
	factVCPUs  = "machine.vcpus"
	factMemory = "machine.memory"
	factPids   = "machine.pids"
	factPort   = "machine.port"
	factMethod = "machine.snapshot"
	factKernel = "guest.kernel.sha256"
)

// facts that say which machine a state belongs to.
func (s shape) facts(method string) []bench.Fact {
	known := func(name string, v any) bench.Fact {
		return engine.Known(v, "QMP and the manifest", engine.ViewHost).Fact(name)
	}
	return []bench.Fact{known(factVCPUs, s.VCPUs), known(factMemory, s.Memory), known(factPids, s.Pids), known(factPort, s.Port), known(factMethod, method)}
}

// Dump implements engine.Slot. The guest freezes its own tree; then the census
// is taken and judged, and what it finds vetoes the dump: the slot runs on.
// After the dump the machine is gone, or, in place, waits stopped for its resets.
func (s *slot) Dump(ctx context.Context, p bench.DumpParams, ref engine.GuestReference) (engine.Checkpoint, engine.Place, error) {
	cp, err := s.dump(ctx, p, ref)
	if err != nil {
		var e *engine.Error
		if !errors.As(err, &e) {
			err = &engine.Error{Op: "dump " + s.name, Err: err}
		}
		return engine.Checkpoint{}, nil, err
	}
	return cp, s.place, nil
}

func (s *slot) dump(ctx context.Context, p bench.DumpParams, ref engine.GuestReference) (cp engine.Checkpoint, err error) {
	if err := s.Alive(); err != nil {
		return cp, err
	}
	t := s.now
	if err := ctx.Err(); err != nil {
		return cp, err
	}
	if err := t.attach(ctx); err != nil {
		return cp, err
	}
	defer t.detach()
	t.policy, t.exclude = p.Policy, nonNil(p.Exclude)
	c, err := s.census(ctx, ref)
	if err != nil {
		return cp, errors.Join(err, s.goOn(ctx))
	}
	return s.write(ctx, p, c, ref)
}

// write saves the machine as a checkpoint and ends it; the caller is attached.
func (s *slot) write(ctx context.Context, p bench.DumpParams, c census, ref engine.GuestReference) (cp engine.Checkpoint, err error) {
	t := s.now
	// Made in the scratch directory and moved once it is sealed: what is not a whole
	// checkpoint never looks like one, and sweep knows whose it is.
	dir := filepath.Join(s.ws.Work, s.name+".checkpoint")
	id, err := engine.Own(s.ws.Ledger, "directory", bench.Claim{Path: dir}, func() (bench.Identity, error) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return bench.Identity{}, err
		}
		return fileIdentity(dir)
	})
	if err != nil {
		return cp, errors.Join(err, s.goOn(ctx))
	}
	defer func() {
		rerr := os.RemoveAll(dir)
		if rerr == nil {
			rerr = s.ws.Ledger.Gone(id)
		}
		err = errors.Join(err, rerr)
	}()
	end := engine.StartSpan(ctx, "save")
	err = s.save(ctx, dir)
	end()
	if err != nil { // half saved, it is not to be let go on
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		return cp, errors.Join(err, s.end(undo))
	}
	defer engine.StartSpan(ctx, "seal")()
	if cp, err = s.seal(ctx, dir, p, c, ref); err != nil {
		return cp, err
	}
	if cp.Dir, err = s.ws.CheckpointDir(s.name); err != nil {
		return cp, err
	}
	if err := os.Rename(dir, cp.Dir); err != nil {
		return cp, err
	}
	if t.parked {
		t.saved = cp.Dir
	}
	return cp, nil
}

// goOn lets a slot run on whose census vetoed the dump.
func (s *slot) goOn(ctx context.Context) error {
	if s.now.self {
		return nil // never frozen
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	return s.now.client().Freeze(ctx, false)
}

// census is the slot as it was while its tree was frozen.
type census struct {
	reference bench.Reference
	locks     []bench.Lock
	state     bench.StateManifest
	server    bench.Fact
	// freezer is the file of the guest that says that its tree is frozen.
	freezer string
}

// census freezes the tree and reads it, and refuses what cannot be dumped.
func (s *slot) census(ctx context.Context, ref engine.GuestReference) (c census, err error) {
	defer engine.StartSpan(ctx, "census")()
	t := s.now
	e := &engine.Error{Op: "dump " + s.name}
	unknown := func(what, reason string) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e.Err = fmt.Errorf("%w: %s: %s", engine.ErrUnknown, what, reason)
		return e
	}
	if t.self {
		e.Err, e.Hint, e.Findings = fmt.Errorf("%w: %w", engine.ErrUnknown, errSelf), selfHint, unseen()
		return c, e
	}
	o := s.Observe(ctx, engine.AspectEnclosure)
	found, ok := o.Enclosure.Get()
	if !ok {
		return c, unknown("enclosure", o.Enclosure.Reason())
	}
	if len(found) > 0 {
		e.Err = fmt.Errorf("%w: %s %s", engine.ErrRefused, found[0].Subject, found[0].Text)
		e.Hint, e.Findings = found[0].Hint, found
		return c, e
	}
	probe, err := t.client().Probe(ctx)
	if err != nil {
		return c, err
	}
	c.server = engine.Known(probe.ServerSHA256, "guest server /probe", engine.ViewGuest).Fact(engine.ServerDigest)
	if err := t.client().Freeze(ctx, true); err != nil {
		return c, err
	}
	if c.freezer, err = t.freezer(ctx); err != nil {
		return c, err
	}
	o = s.Observe(ctx, engine.AspectMounts, engine.AspectNetwork, engine.AspectLocks, engine.AspectProcesses, engine.AspectState)
	if c.reference.Mounts, ok = o.Mounts.Get(); !ok {
		return c, unknown("mounts", o.Mounts.Reason())
	}
	if c.reference.Network, ok = o.Network.Get(); !ok {
		return c, unknown("network", o.Network.Reason())
	}
	if c.reference.Processes, ok = o.Processes.Get(); !ok {
		return c, unknown("processes", o.Processes.Reason())
	}
	if c.locks, ok = o.Locks.Get(); !ok {
		return c, unknown("locks", o.Locks.Reason())
	}
	if c.state, ok = o.State.Get(); !ok {
		return c, unknown("state", o.State.Reason())
	}
	c.reference.Live, c.reference.Canary = ref.Live, ref.Canary
	c.reference.State, err = canonical.Digest(c.state)
	return c, err
}

// save stops the machine and saves it by the method of the settings. What is
// needed of it is in dir afterwards, and the machine is ended, but for in place.
func (s *slot) save(ctx context.Context, dir string) error {
	t := s.now
	t.told = nil
	if err := t.stop(ctx); err != nil {
		return err
	}
	if s.arm.settings.Snapshot == MethodFile {
		if t.from != nil {
			return s.branch(ctx, dir)
		}
		return s.saveFile(ctx, dir)
	}
	if t.from != nil { // the disk holds the one that the machine was restored from
		if err := t.job(ctx, "snapshot-delete"); err != nil {
			return err
		}
	}
	if err := t.timed(ctx, "snapshot-save", jobEvent, "concluded", &t.told, func() error { return t.job(ctx, "snapshot-save") }); err != nil {
		return err
	}
	if err := t.stop(ctx); err != nil { // writes out what the job left in memory
		return err
	}
	disk := filepath.Join(dir, diskFile)
	if s.arm.settings.Snapshot == MethodInPlace {
		if err := copyFile(t.file(diskFile), disk, 0o400); err != nil {
			return err
		}
		if err := s.arm.hasSnapshot(ctx, disk); err != nil {
			return err
		}
		t.parked = true
		return nil
	}
	if err := s.end(ctx); err != nil {
		return err
	}
	return errors.Join(os.Rename(t.file(diskFile), disk), s.arm.hasSnapshot(ctx, disk))
}

// saveFile saves a stopped machine that shares its memory with a file, and ends it.
func (s *slot) saveFile(ctx context.Context, dir string) error {
	t := s.now
	if err := t.saveState(ctx, "save", ignoreShared, filepath.Join(dir, machineFile)); err != nil {
		return err
	}
	if err := t.saveMemory(ctx, filepath.Join(dir, memoryFile)); err != nil {
		return err
	}
	if err := s.end(ctx); err != nil {
		return err
	}
	return errors.Join(
		os.Rename(t.file(diskFile), filepath.Join(dir, diskFile)),
		s.newFresh(ctx, dir),
	)
}

// newFresh makes the disk that each restored machine starts with. It names the one beside it.
func (s *slot) newFresh(ctx context.Context, dir string) error {
	return s.arm.newDisk(ctx, filepath.Join(dir, freshFile), diskFile, s.root.size)
}

// end ends the machine; the tenancy's folder stays for Vacate.
func (p *place) end(ctx context.Context) error {
	t := p.now
	if t == nil { // a branch that failed between its machines
		return nil
	}
	if err := p.group.Kill(ctx); err != nil {
		return err
	}
	return t.reap(ctx)
}

// seal makes the checkpoint's files read-only and writes the handle.
func (s *slot) seal(ctx context.Context, dir string, p bench.DumpParams, c census, ref engine.GuestReference) (engine.Checkpoint, error) {
	t := s.now
	state, err := json.MarshalIndent(c.state, "", "  ")
	if err != nil {
		return engine.Checkpoint{}, err
	}
	if err := os.WriteFile(filepath.Join(dir, stateFile), append(state, '\n'), 0o400); err != nil {
		return engine.Checkpoint{}, err
	}
	if err := checkpoint.KeepScreen(dir, ref); err != nil {
		return engine.Checkpoint{}, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	for _, e := range entries {
		if err := os.Chmod(filepath.Join(dir, e.Name()), 0o400); err != nil {
			return engine.Checkpoint{}, err
		}
	}
	facts := append(s.arm.Facts(ctx), s.root.boot.facts()...)
	facts = append(facts, t.shape.facts(s.arm.settings.Snapshot)...)
	facts = append(facts, t.told...)
	if !t.self {
		facts = append(facts, engine.Known(c.freezer, "guest server /file", engine.ViewGuest).Fact(factFreezer))
	}
	facts = append(facts, c.server, engine.Known(strconv.Itoa(len(c.reference.Network.Links))+" links, in the machine's own memory", "guest server /observe", engine.ViewGuest).Fact(engine.NetworkPreserved))
	return checkpoint.Seal(ctx, dir, bench.Checkpoint{
		ApiVersion: engine.APIVersion, Arm: Kind, Created: bench.Time(time.Now().UTC().Format(time.RFC3339Nano)),
		Workload: p.Workload, Image: s.root.pin,
		Layers: []string{diskFile}, CopyUp: []string{}, Locks: nonNil(c.locks),
		Reference: c.reference, Facts: facts,
	})
}

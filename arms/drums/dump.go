package drums

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/docker/go-units"

	"github.com/drumsbench/drumsbench/arms/checkpoint"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/locks"
	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Folders and files of a checkpoint.
const (
	imagesDir = "images"
	layerDir  = "layers/0"
	stateFile = "state.json"
)

// Dump implements engine.Slot. While criu holds the tree stopped, the census is
// taken and judged: what it finds vetoes the dump, and the slot runs on. After
// the dump the tree is gone and its upper layer is sealed.
func (s *slot) Dump(ctx context.Context, p bench.DumpParams, ref engine.GuestReference) (engine.Checkpoint, engine.Place, error) {
	cp, err := s.dump(ctx, p, ref)
	if err != nil {
		var e *engine.Error
		if !asError(err, &e) {
			err = &engine.Error{Op: "dump " + s.name, Err: err}
		}
		return engine.Checkpoint{}, nil, err
	}
	return cp, s.place, nil
}

// census is the slot as it was while criu held it stopped.
type census struct {
	reference bench.Reference
	locks     []bench.Lock
	state     bench.StateManifest
	server    bench.Fact
	// attempts says how many dumps it took.
	attempts bench.Fact
}

func (s *slot) dump(ctx context.Context, p bench.DumpParams, ref engine.GuestReference) (cp engine.Checkpoint, err error) {
	t := s.now
	if t == nil || t.pid == 0 {
		return engine.Checkpoint{}, engine.ErrDead
	}
	if t.from != nil {
		return engine.Checkpoint{}, &engine.Error{Op: "dump " + s.name, Err: fmt.Errorf("%w: the slot was itself restored from a checkpoint", engine.ErrRefused),
			Hint: "dump a provisioned slot; chains of checkpoints are not made yet"}
	}
	t.policy, t.exclude = p.Policy, nonNil(p.Exclude)
	ghost, err := units.RAMInBytes(string(p.Policy.GhostLimit))
	if err != nil {
		return engine.Checkpoint{}, err
	}
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
	c, err := s.dumpTree(ctx, dir, criu.DumpOptions{
		Pid: t.pid, ImagesDir: filepath.Join(dir, imagesDir), WorkDir: filepath.Join(dir, "criu"),
		FileLocks: s.arm.settings.Locks != "refuse", TCPClose: p.Policy.EstablishedTCP == "close", GhostLimit: ghost,
	}, ref)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	if c.reference.Processes == nil {
		return engine.Checkpoint{}, errors.New("criu dumped the tree without saying that it was stopped; no census was taken")
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

// census reads the stopped tree and refuses what cannot be dumped.
func (s *slot) census(ctx context.Context, ref engine.GuestReference) (c census, err error) {
	o := s.Observe(ctx, engine.AspectMounts, engine.AspectNetwork, engine.AspectLocks, engine.AspectProcesses, engine.AspectEnclosure, engine.AspectState)
	e := &engine.Error{Op: "dump " + s.name}
	if found, ok := o.Enclosure.Get(); ok && len(found) > 0 {
		e.Err = fmt.Errorf("%w: %s %s", engine.ErrRefused, found[0].Subject, found[0].Text)
		e.Hint, e.Findings = found[0].Hint, found
		return c, e
	}
	if mounts, ok := o.Mounts.Get(); ok {
		if found := engine.MountContract(mounts); len(found) > 0 {
			e.Err = fmt.Errorf("%w: %s %s", engine.ErrRefused, found[0].Subject, found[0].Text)
			e.Hint, e.Findings = found[0].Hint, found
			return c, e
		}
	}
	unknown := func(what, reason string) error {
		e.Err = fmt.Errorf("%w: %s: %s", engine.ErrUnknown, what, reason)
		return e
	}
	var ok bool
	if _, ok = o.Enclosure.Get(); !ok {
		return c, unknown("enclosure", o.Enclosure.Reason())
	}
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
	c.server = serverFact(s.now.pid)
	return c, nil
}

// seal ends what is left of the tree, turns the upper layer into a read-only
// one and writes the handle.
func (s *slot) seal(ctx context.Context, dir string, p bench.DumpParams, c census) (engine.Checkpoint, error) {
	t := s.now
	img := criu.OpenImages(filepath.Join(dir, imagesDir))
	wanted, err := img.Locks()
	if err != nil {
		return engine.Checkpoint{}, err
	}
	// The wanted set is CRIU's own lock image; the kernel's word must agree with it.
	if missing, extra := locks.Diff(wanted, c.locks); len(missing)+len(extra) > 0 {
		e := &engine.Error{Op: "dump " + s.name, Err: fmt.Errorf("criu's lock image and /proc disagree: %d locks only in the image, %d only in fdinfo", len(missing), len(extra))}
		for _, l := range missing {
			e.Findings = append(e.Findings, bench.Finding{Verdict: engine.Fail, Subject: locks.Describe(l), Text: "is in criu's lock image but not in fdinfo"})
		}
		for _, l := range extra {
			e.Findings = append(e.Findings, bench.Finding{Verdict: engine.Fail, Subject: locks.Describe(l), Text: "is in fdinfo but not in criu's lock image"})
		}
		return engine.Checkpoint{}, e
	}
	copyUp, err := img.CopyUp()
	if err != nil {
		return engine.Checkpoint{}, err
	}
	state, err := json.MarshalIndent(c.state, "", "  ")
	if err != nil {
		return engine.Checkpoint{}, err
	}
	if err := os.WriteFile(filepath.Join(dir, stateFile), append(state, '\n'), 0o600); err != nil {
		return engine.Checkpoint{}, err
	}
	if c.reference.State, err = canonical.Digest(c.state); err != nil {
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
	facts := append(s.arm.tool.Facts(), s.arm.host...)
	facts = append(facts, c.server, c.attempts, networkFact(img))
	return checkpoint.Seal(ctx, dir, bench.Checkpoint{
		ApiVersion: engine.APIVersion, Arm: Kind, Created: bench.Time(time.Now().UTC().Format(time.RFC3339Nano)),
		Workload: p.Workload, Image: s.root.sha256,
		Layers: []string{layerDir}, CopyUp: nonNil(copyUp), Locks: nonNil(wanted),
		Reference: c.reference, Facts: facts,
	})
}

// networkFact says whether CRIU dumped the network namespace: it returns 0
// without, for instance when it was told that the namespace is empty.
func networkFact(img criu.Images) bench.Fact {
	f := bench.Fact{Name: engine.NetworkPreserved, View: engine.ViewHost}
	images, err := img.Network()
	if err != nil {
		f.Reason = err.Error()
		return f
	}
	have := map[string]int64{}
	for _, i := range images {
		have[i.Kind] += i.Size
	}
	// A slot whose network is lo alone has no route of its own to save: lo's come
	// with its addresses. The gate on the running slot compares them all.
	for _, kind := range []string{"netdev", "ifaddr", "route", "rule"} {
		if _, ok := have[kind]; !ok {
			f.Reason = fmt.Sprintf("criu wrote no %s image", kind)
			return f
		}
	}
	for _, kind := range []string{"netdev", "ifaddr"} {
		// An image without an entry is its magic numbers only: 8 bytes.
		if have[kind] <= 8 {
			f.Reason = fmt.Sprintf("criu's %s image has no entry", kind)
			return f
		}
	}
	f.Known, f.Value, f.Source = true, fmt.Sprint(have), "criu images, bytes by kind"
	return f
}

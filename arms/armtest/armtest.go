// Package armtest is the conformance suite of arms: what engine.Arm promises,
// as tests that every arm passes, the fake one and the real ones alike.
//
// Always holds: the suite reaches an arm through the interfaces of engine and
// the client of engine/guest alone, and judges with the gates that a run judges
// with; each of its tests ends with everything released, the ledger closed, the
// scratch directory empty, the host as it was and no goroutine left.
package armtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Harness is an arm under test with what it needs.
type Harness struct {
	// New returns a fresh arm, as a run of its own has it.
	New func(t *testing.T) engine.Arm
	// Manifest is a workload that the arm can run. Of it the suite takes image,
	// network, guest, resources, state, readiness, checkpoint and canary; never
	// task, checker or experiment. The guest server must know the programs true,
	// false, sleep, cat, touch, mkdir, mv, test, head and sh.
	Manifest bench.Manifest
	// State is the state directory: images, caches, tools. Absolute.
	State string
	// Base is where the directories of runs are made, absolute; empty is a temporary directory of the test.
	Base string
	// Host lists what of the host must be the same before and after each test, one
	// thing a line; nil lists nothing. Whatever bears the run's claim is looked for in any case.
	Host func() ([]string, error)
	// Cancel are the moments at which a verb is cancelled, counted from its
	// start; empty is a spread from at once to a third of a second.
	Cancel []time.Duration
	// Bound is how long a verb may take to return once it is cancelled; 0 is 15 s.
	Bound time.Duration
	// Resets is how often one slot is reset in a row; 0 is 20.
	Resets int
	// Siblings is how many slots of one checkpoint there are at once, at most; 0 is 4.
	Siblings int
	// LockSubjects are locks that the checkpoint of a prepared slot must hold: each is the end of an engine.LockSubject, without the pid where that varies.
	LockSubjects []string

	// kept is the checkpoint that tests share.
	kept *kept
}

// kept is a checkpoint of a prepared slot, made by a run of its own that is over:
// tests that are about what comes after a dump need none of theirs.
type kept struct {
	dir string
	cp  engine.Checkpoint
}

// checkpoint is the shared one; whoever needs it first makes it. A test that
// damages it comes after all that need it sound.
func (h Harness) checkpoint(t *testing.T) engine.Checkpoint {
	t.Helper()
	if h.kept.cp.Dir != "" {
		return h.kept.cp
	}
	dir, err := os.MkdirTemp(h.kept.dir, "drums-run-")
	if err != nil {
		t.Fatal(err)
	}
	r := in(t, h, dir)
	func() {
		defer r.finish()
		r.mount()
		h.kept.cp, _ = r.dump(r.prepared("slot-0"))
	}()
	if t.Failed() {
		h.kept.cp = engine.Checkpoint{}
		t.FailNow()
	}
	return h.kept.cp
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	if len(h.Cancel) == 0 {
		h.Cancel = []time.Duration{0, time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond,
			100 * time.Millisecond, 150 * time.Millisecond, 300 * time.Millisecond}
	}
	if h.Bound == 0 {
		h.Bound = 15 * time.Second
	}
	if h.Resets == 0 {
		h.Resets = 20
	}
	if h.Siblings == 0 {
		h.Siblings = 4
	}
	base, err := os.MkdirTemp(h.base(t), "drums-kept-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			t.Errorf("remove the shared checkpoint: %v", err)
		}
	})
	h.kept = &kept{dir: base}
	for _, c := range []struct {
		name string
		test func(*testing.T, Harness)
	}{
		{"describe", testDescribe},
		{"facts", testFacts},
		{"mount/pinned", testMount},
		{"mount/wrong pin", testMountWrongPin},
		{"mount/missing image", testMountMissing},
		{"provision", testProvision},
		{"provision/again in the place", testProvisionAgain},
		{"provision/refused", testProvisionRefused},
		{"running", testRunning},
		{"dump", testDump},
		{"dump/refused", testDumpRefused},
		{"memory of a restored slot", testRestoredMemory},
		{"restore in place", testRestoreInPlace},
		{"restore in a row", testResets},
		{"dump what was restored", testChain},
		{"restore siblings", func(t *testing.T, h Harness) { testSiblings(t, h, h.Siblings) }},
		{"restore/foreign checkpoint", testForeign},
		{"restore in a later run", testLaterRun},
		{"vacate and release", testRelease},
		{"survey", testSurvey},
		{"adopt", testAdopt},
		{"cancelled before", testCancelledBefore},
		{"cancelled provision", testCancelProvision},
		{"cancelled dump", testCancelDump},
		{"cancelled restore", testCancelRestore},
		{"open checkpoint", testOpenCheckpoint},
		{"restore/damaged checkpoint", testDamaged},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer leaves(t, h)()
			c.test(t, h)
		})
	}
}

// leaves compares the host and the goroutines before and after a test. Call the
// result when all runs of the test are finished.
func leaves(t *testing.T, h Harness) (check func()) {
	t.Helper()
	before := hostLines(t, h)
	routines := goleak.IgnoreCurrent()
	return func() {
		t.Helper()
		if err := goleak.Find(routines); err != nil {
			t.Errorf("goroutines are left: %v", err)
		}
		diff := ""
		for range 50 {
			if diff = cmp.Diff(before, hostLines(t, h)); diff == "" {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Errorf("the host is not as it was (-before +after):\n%s", diff)
	}
}

func hostLines(t *testing.T, h Harness) []string {
	t.Helper()
	if h.Host == nil {
		return nil
	}
	lines, err := h.Host()
	if err != nil {
		t.Fatalf("look at the host: %v", err)
	}
	slices.Sort(lines)
	return lines
}

// run is one run's worth of an arm.
type run struct {
	t    *testing.T
	h    Harness
	arm  engine.Arm
	ws   *engine.Workspace
	root engine.Root
	dir  string
	// close ends the workspace.
	close func() error
	// before are the traces on the host that were there already.
	before []string
	places []engine.Place
}

// begin starts a run with a mounted image. The test calls finish.
func begin(t *testing.T, h Harness) *run {
	t.Helper()
	r := bare(t, h)
	mounted := false
	defer func() { // also where mount ends the test
		if !mounted {
			r.finish()
		}
	}()
	r.mount()
	mounted = true
	return r
}

// mount mounts the image.
func (r *run) mount() {
	r.t.Helper()
	root, err := r.arm.Mount(r.ctx(), r.ws, bench.MountParams{Image: r.h.Manifest.Image})
	if err != nil {
		r.t.Fatalf("mount: %v", describe(err))
	}
	r.root = root
}

// base is where the directories of runs are made.
func (h Harness) base(t *testing.T) string {
	if h.Base == "" {
		return t.TempDir()
	}
	return h.Base
}

// bare starts a run without an image.
func bare(t *testing.T, h Harness) *run {
	t.Helper()
	dir, err := os.MkdirTemp(h.base(t), "drums-run-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the run: %v", err)
		}
	})
	return in(t, h, dir)
}

// in starts a run in a directory that somebody else removes.
func in(t *testing.T, h Harness, dir string) *run {
	t.Helper()
	ws, done := Workspace(t, dir, h.State)
	r := &run{t: t, h: h, arm: h.New(t), ws: ws, dir: dir, close: done}
	var err error
	if r.before, err = descendants(); err != nil {
		t.Fatal(err)
	}
	return r
}

// ctx is for verbs that the suite does not cancel; its deadline ends a hang.
func (r *run) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	r.t.Cleanup(cancel)
	return ctx
}

// finish releases everything and requires that nothing is left. Each test
// defers it; it also runs after a t.Fatal.
func (r *run) finish() {
	t := r.t
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx()), time.Minute)
	defer cancel()
	for _, p := range slices.Backward(r.places) {
		if err := p.Release(ctx); err != nil {
			t.Errorf("release %s: %v", p.Name(), describe(err))
		}
	}
	if r.root != nil {
		if err := r.root.Release(ctx); err != nil {
			t.Errorf("release image: %v", describe(err))
		}
	}
	if a, ok := r.arm.(engine.Releaser); ok {
		for range 2 {
			if err := a.Release(ctx); err != nil {
				t.Errorf("release arm: %v", describe(err))
			}
		}
	}
	entries, err := os.ReadDir(r.ws.Work)
	if err != nil {
		t.Errorf("read scratch directory: %v", err)
	}
	for _, e := range entries {
		t.Errorf("left in the scratch directory: %s", e.Name())
	}
	if err := r.ws.Release(ctx); err != nil {
		t.Errorf("release workspace: %v", describe(err))
	}
	if err := r.close(); err != nil {
		t.Errorf("close run: %v", err)
	}
	r.nothingLeft()
}

// nothingLeft requires a ledger in which everything is gone, and a host that agrees.
func (r *run) nothingLeft() {
	t := r.t
	t.Helper()
	checkLedger(t, r.dir)
	var found []string
	var err error
	for range 50 { // what the kernel takes away late (a loop device) gets a moment
		if found, err = traces(r.ws.ID, r.dir); err != nil {
			t.Errorf("look for traces on the host: %v", err)
		}
		found = slices.DeleteFunc(found, func(f string) bool { return slices.Contains(r.before, f) })
		if len(found) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	for _, f := range found {
		t.Errorf("left on the host: %s", f)
	}
}

// keep has finish release a place.
func (r *run) keep(p engine.Place) { r.places = append(r.places, p) }

func (r *run) port() int64 { return r.h.Manifest.Guest.Server.Port }

func (r *run) client(s engine.Slot) *guest.Client {
	return guest.New(s.Dial, int(r.port()), guest.Limits{})
}

func (r *run) policy() bench.CheckpointPolicy {
	if p := r.h.Manifest.Checkpoint; p != nil {
		return *p
	}
	return bench.CheckpointPolicy{EstablishedTCP: "refuse", GhostLimit: "64MiB"}
}

func (r *run) exclude() []string {
	out := []string{}
	if s := r.h.Manifest.State; s != nil {
		for _, p := range s.Exclude {
			out = append(out, string(p))
		}
	}
	return out
}

func (r *run) provisionParams(name string) bench.ProvisionParams {
	m := r.h.Manifest
	return bench.ProvisionParams{Slot: bench.Name(name), Network: m.Network, Guest: m.Guest, Resources: m.Resources, Policy: r.policy(), Exclude: r.exclude()}
}

func (r *run) restoreParams(name string) bench.RestoreParams {
	return bench.RestoreParams{Slot: bench.Name(name), Resources: r.h.Manifest.Resources, Policy: r.policy(), Exclude: r.exclude()}
}

// provision makes a cold slot that answers.
func (r *run) provision(name string) engine.Slot {
	r.t.Helper()
	s, err := r.arm.Provision(r.ctx(), r.ws, r.root, nil, r.provisionParams(name))
	if err != nil {
		r.t.Fatalf("provision %s: %v", name, describe(err))
	}
	r.keep(s)
	r.ready(s)
	return s
}

// ready waits until the guest server answers and every service is up.
func (r *run) ready(s engine.Slot) guest.Probe {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.ctx(), 30*time.Second)
	defer cancel()
	for {
		p, err := r.client(s).Probe(ctx)
		if err == nil && r.serving(p) {
			return p
		}
		select {
		case <-ctx.Done():
			r.t.Fatalf("%s does not get ready: %v; %+v", s.Name(), describe(err), p.Services)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (r *run) serving(p guest.Probe) bool {
	for _, want := range r.h.Manifest.Guest.Services {
		if !slices.ContainsFunc(p.Services, func(s guest.ServiceState) bool { return s.Name == string(want.Name) && s.Alive && s.Ready }) {
			return false
		}
	}
	return p.Phase == guest.PhaseRunning
}

// path is a file of the suite in the guest.
func (r *run) path(name string) string { return filepath.Join(r.h.Manifest.Guest.Home, "drums-"+name) }

// write puts a file into a slot.
func (r *run) write(s engine.Slot, path, text string) {
	r.t.Helper()
	if err := r.client(s).WriteFile(r.ctx(), path, []byte(text), 0o644); err != nil {
		r.t.Fatalf("write %s in %s: %v", path, s.Name(), describe(err))
	}
}

// has requires a file's content; the empty text stands for a file that is not there.
func (r *run) has(s engine.Slot, path, want string) {
	r.t.Helper()
	b, err := r.client(s).ReadFile(r.ctx(), path, 1<<16)
	switch {
	case want == "" && errors.Is(err, os.ErrNotExist):
	case err != nil:
		r.t.Errorf("read %s in %s: %v", path, s.Name(), describe(err))
	case string(b) != want:
		r.t.Errorf("%s in %s holds %q, want %q", path, s.Name(), b, want)
	}
}

// answers requires that the guest server answers.
func (r *run) answers(s engine.Slot) guest.Probe {
	r.t.Helper()
	p, err := r.client(s).Probe(r.ctx())
	if err != nil {
		r.t.Errorf("%s does not answer: %v", s.Name(), describe(err))
	}
	return p
}

// dead requires that nobody answers, for a stated reason.
func (r *run) dead(s engine.Slot) {
	r.t.Helper()
	conn, err := s.Dial(r.ctx(), int(r.port()))
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, engine.ErrDead) {
		r.t.Errorf("dial %s: %v, want that it is dead", s.Name(), describe(err))
	}
}

// canaryText is what the suite plants before a dump.
const canaryText = "planted by the conformance suite"

// prepared is a slot as a run has it before the dump.
func (r *run) prepared(name string) engine.Slot {
	r.t.Helper()
	s := r.provision(name)
	r.write(s, string(r.h.Manifest.Canary.File), canaryText)
	r.write(s, r.path("kept"), "as at the dump")
	return s
}

// dumpParams and reference are what the dump step hands over.
func (r *run) dumpParams() bench.DumpParams {
	return bench.DumpParams{Port: r.port(), Policy: r.policy(), Exclude: r.exclude(), Canary: r.h.Manifest.Canary,
		Workload: bench.SHA256(strings.Repeat("0", 64))}
}

func (r *run) reference(s engine.Slot) engine.GuestReference {
	r.t.Helper()
	return engine.GuestReference{Live: r.answers(s).Live, Canary: canaryText}
}

func (r *run) dump(s engine.Slot) (engine.Checkpoint, engine.Place) {
	r.t.Helper()
	cp, place, err := s.Dump(r.ctx(), r.dumpParams(), r.reference(s))
	if err != nil {
		r.t.Fatalf("dump %s: %v", s.Name(), describe(err))
	}
	return cp, place
}

// restore brings a checkpoint back, stopped; in a new place where place is nil.
func (r *run) restore(cp engine.Checkpoint, place engine.Place, name string) engine.Stopped {
	r.t.Helper()
	s, err := r.arm.Restore(r.ctx(), r.ws, r.root, cp, place, r.restoreParams(name))
	if err != nil {
		r.t.Fatalf("restore %s: %v", name, describe(err))
	}
	if place == nil {
		r.keep(s)
	}
	return s
}

func (r *run) resume(s engine.Stopped) engine.Slot {
	r.t.Helper()
	slot, err := s.Resume(r.ctx())
	if err != nil {
		r.t.Fatalf("resume %s: %v", s.Name(), describe(err))
	}
	return slot
}

// describe is an error with its hint, its log and its findings.
func describe(err error) string {
	if err == nil {
		return "no error"
	}
	text := err.Error()
	var e *engine.Error
	if errors.As(err, &e) {
		for _, f := range e.Findings {
			text += fmt.Sprintf("\n  %s %s: %s (want %q, have %q)", f.Verdict, f.Subject, f.Text, f.Want, f.Have)
		}
		if e.Hint != "" {
			text += "\n  hint: " + e.Hint
		}
		if e.Log != "" {
			text += "\n  log: " + e.Log
			if b, rerr := os.ReadFile(e.Log); rerr == nil {
				text += "\n" + string(b[max(0, len(b)-4000):])
			}
		}
	}
	return text
}

package armtest

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps/gate"
)

func testDump(t *testing.T, h Harness) {
	r := begin(t, h)
	defer r.finish()
	s := r.prepared("slot-0")
	r.judgeCold(s)
	ref := r.reference(s)
	cp, place, err := s.Dump(r.ctx(), r.dumpParams(), ref)
	if err != nil {
		t.Fatalf("dump: %v", describe(err))
	}

	// The tree is gone, the place is not.
	r.dead(s)
	if place == nil || place.Name() != "slot-0" {
		t.Fatalf("the place after the dump: %v", place)
	}
	if _, ok := s.Observe(r.ctx(), engine.AspectProcesses).Processes.Get(); ok {
		t.Error("the processes of a dumped slot are known")
	}
	if _, _, err := s.Dump(r.ctx(), r.dumpParams(), ref); err == nil {
		t.Error("a slot was dumped twice")
	}

	// The handle is of the schema, complete, and what the checkpoint's folder holds.
	b, err := json.Marshal(cp.Handle)
	if err != nil {
		t.Fatal(err)
	}
	if err := compile.Validate("Checkpoint", b); err != nil {
		t.Errorf("the handle is not of the schema: %v", err)
	}
	r.passes(gate.Checkpoint, "handle", gate.JudgeCheckpoint(cp.Handle))
	checkFacts(t, cp.Handle.Facts)
	if cp.Handle.Arm != r.arm.Describe().Kind || cp.Handle.Image != h.Manifest.Image.Sha256 {
		t.Errorf("the handle is of arm %q and image %s", cp.Handle.Arm, cp.Handle.Image)
	}
	if cp.Handle.Reference.Live != ref.Live || cp.Handle.Reference.Canary != ref.Canary {
		t.Errorf("the handle's live state and canary are %+v and %q, want %+v", cp.Handle.Reference.Live, cp.Handle.Reference.Canary, ref)
	}
	for _, want := range h.LockSubjects {
		if !slices.ContainsFunc(cp.Handle.Locks, func(l bench.Lock) bool { return strings.HasSuffix(engine.LockSubject(l), want) }) {
			t.Errorf("the checkpoint lacks the lock %q; it has %v", want, cp.Handle.Locks)
		}
	}
	if rel, err := filepath.Rel(r.ws.Run, cp.Dir); err != nil || !filepath.IsLocal(rel) {
		t.Errorf("the checkpoint %s is not below the run %s", cp.Dir, r.ws.Run)
	}
	if hashed, err := checkpoint.Verify(r.ctx(), cp); err != nil || hashed != 0 {
		t.Errorf("verify: %v; %d files were hashed again", describe(err), hashed)
	}
	opened, err := checkpoint.Open(cp.Dir)
	if err != nil {
		t.Fatalf("open: %v", describe(err))
	}
	a, errA := checkpoint.Digest(cp.Handle)
	c, errC := checkpoint.Digest(opened.Handle)
	if errA != nil || errC != nil || a != c {
		t.Errorf("the handle on disk is another one: %s %v, %s %v", a, errA, c, errC)
	}
	if d, err := canonical.Digest(r.state(cp)); err != nil || d != cp.Handle.Reference.State {
		t.Errorf("state.json has digest %s (%v), the handle says %s", d, err, cp.Handle.Reference.State)
	}
	kept := r.path("kept")
	if !slices.ContainsFunc(r.state(cp).Entries, func(e bench.StateEntry) bool { return e.Path == kept }) {
		t.Errorf("the state manifest lacks %s", kept)
	}

	// The place can be used again, and be given up.
	r.resume(r.restore(cp, place, "slot-0"))
}

// Case 14, 3: what cannot be dumped is refused with a finding and a remedy, and the slot runs on.
func testDumpRefused(t *testing.T, h Harness) {
	strict := h
	strict.Manifest.Checkpoint = &bench.CheckpointPolicy{EstablishedTCP: "refuse", GhostLimit: "64MiB"}
	r := begin(t, strict)
	defer r.finish()
	s := r.prepared("slot-0")
	ref := r.reference(s)
	conn, err := s.Dial(r.ctx(), int(r.port()))
	if err != nil {
		t.Fatalf("dial: %v", describe(err))
	}
	_, _, err = s.Dump(r.ctx(), r.dumpParams(), ref)
	if tcp, ok := conn.(interface{ SetLinger(int) error }); ok {
		tcp.SetLinger(0) // a reset leaves nothing of the connection behind
	}
	conn.Close()
	findings := 0
	for _, e := range engine.Within(err) {
		findings += len(e.Findings)
	}
	switch {
	case !errors.Is(err, engine.ErrRefused):
		t.Fatalf("dump with an open connection: %v, want a refusal", describe(err))
	case findings == 0 || engine.Failure(err).Hint == "":
		t.Errorf("the refusal has no finding or no remedy: %v", describe(err))
	}
	noCheckpoints(t, r)
	if r.answers(s).Live.Token != ref.Live.Token {
		t.Error("the slot did not run on")
	}
	r.has(s, r.path("kept"), "as at the dump")
	r.enclosed(s)
	cp, place := r.dump(s)
	r.judgeStopped(r.restore(cp, place, "slot-0"), cp)
}

// enclosed waits until nothing ties a slot to the outside: its server sees a closed connection a little later than we do.
func (r *run) enclosed(s engine.Slot) {
	r.t.Helper()
	var j engine.Judgement
	for range 100 {
		if j = gate.JudgeEnclosure(s.Observe(r.ctx(), engine.AspectEnclosure).Enclosure); j.Verdict() == engine.Pass {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	r.passes(gate.Enclosure, s.Name(), j)
}

// noCheckpoints requires that a dump that failed left no folder behind.
func noCheckpoints(t *testing.T, r *run) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.ws.Run, "checkpoints"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	for _, e := range entries {
		t.Errorf("a failed dump left the checkpoint %s behind", e.Name())
	}
}

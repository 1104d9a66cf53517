// Package treetest are the tests that the arms on process trees pass beside the
// conformance suite: whole plans with many resets, and slots that another arm
// takes over.
//
// Always holds: each test ends with everything released and the ledger closed.
package treetest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/arms/hostview"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps"
)

// Arm is what such an arm implements.
type Arm interface {
	engine.Arm
	engine.Adopter
	engine.Releaser
}

// Harness is an arm under test.
type Harness struct {
	// State is the state directory. Absolute.
	State string
	// New returns a fresh arm for a manifest.
	New func(t testing.TB, m bench.Manifest) Arm
	// Manifest is manifests/locks with tags, pinned, for the arm.
	Manifest func(t testing.TB, tags ...string) bench.Manifest
}

// Manifest is manifests/locks with the pins of the image that scripts/prepare built.
func Manifest(t testing.TB, state string, tags ...string) bench.Manifest {
	t.Helper()
	m, err := compile.Load(compile.Options{Path: filepath.Join(state, "manifests", "manifests", "locks"), Tags: tags})
	if err != nil {
		t.Fatalf("%v\nscripts/prepare builds the image and its pins; scripts/test calls it", err)
	}
	return m.Manifest
}

// Workspace of a run in a folder of the test's, on the state directory's file system.
func (h Harness) Workspace(t testing.TB) (*engine.Workspace, *record.Dir) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(h.State, "work"), 0o755); err != nil {
		t.Fatal(err)
	}
	base, err := os.MkdirTemp(filepath.Join(h.State, "work"), "drums-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
	dir, err := record.Create(filepath.Join(base, "run"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	var claim [6]byte
	rand.Read(claim[:])
	ws := &engine.Workspace{Run: dir.Path, Work: filepath.Join(base, "work"), State: h.State, ID: hex.EncodeToString(claim[:]),
		Ledger: dir.Ledger, Evidence: dir.Evidence, Log: slog.New(slog.DiscardHandler)}
	if err := ws.MakeWork(); err != nil {
		t.Fatal(err)
	}
	return ws, dir
}

// Execute runs the manifest's plan on an arm and returns the outcomes by step. The
// host is compared before and after: mounts, namespaces, cgroups, loop devices, processes.
func (h Harness) Execute(t testing.TB, arm engine.Arm, m bench.Manifest, reset string) (engine.Result, map[string]bench.StepOutcome, bench.Record) {
	t.Helper()
	workload, err := compile.Workload(m)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := steps.Block(m, workload, reset)
	if err != nil {
		t.Fatal(err)
	}
	ws, dir := h.Workspace(t)
	digest, err := dir.WriteManifest(m)
	if err != nil {
		t.Fatal(err)
	}
	host, err := dir.WriteHost(bench.HostFacts{ApiVersion: engine.APIVersion, Facts: arm.Facts(context.Background())})
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.WritePlan(plan); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	scope := hostview.Scope{ID: ws.ID, Paths: []string{filepath.Dir(ws.Work)}}
	before, err := hostview.Take(ctx, scope)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		after, err := hostview.Take(context.Background(), scope)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range hostview.Diff(before, after) {
			if f.Verdict == engine.Fail {
				t.Errorf("the host is not as it was: %s %s (want %s, have %s)", f.Subject, f.Text, f.Want, f.Have)
			}
		}
	}()
	res, err := (&engine.Executor{Plan: plan, Bindings: steps.Bindings(), Arm: arm, Workspace: ws, Sink: dir.Events,
		Digests: map[string]bench.SHA256{"manifest": digest, "host": host}}).Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]bench.StepOutcome{}
	for _, o := range res.Outcomes {
		by[o.Step] = o
	}
	r, err := record.Build(dir.Path, record.Header{Run: "test/" + t.Name(), Arm: arm.Describe().Kind, Engine: bench.EngineVersion{Version: "test", Sha256: digest, Go: "test", Schema: engine.APIVersion}})
	if err != nil {
		t.Fatal(err)
	}
	if len(dir.Ledger.Open()) > 0 {
		t.Errorf("the ledger still owns %+v", dir.Ledger.Open())
	}
	receipts, _, err := record.ReadEvents(dir.Path)
	if err != nil {
		t.Fatal(err)
	}
	told(t, receipts)
	return res, by, r
}

// told requires that criu's own time of each dump and restore is known, and no
// longer than the step in which it ran.
func told(t testing.TB, receipts []bench.Receipt) {
	t.Helper()
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Errorf("%q is no number: %v", text, err)
		}
		return n
	}
	took := map[string]int64{} // of dump, and of the restore before each resume
	for _, e := range receipts {
		fact := map[string]string{"dump": "tool.criu.frozen-ns", "resume": "tool.criu.restore-ns"}[e.Kind]
		if e.Event != "step" || e.Verdict != engine.Pass {
			continue
		}
		prefix, _, _ := strings.Cut(e.Step, "/")
		if e.Kind == "dump" || e.Kind == "restore" {
			took[prefix] = number(string(e.End)) - number(string(e.Start))
		}
		if fact == "" {
			continue
		}
		i := slices.IndexFunc(e.Facts, func(f bench.Fact) bool { return f.Name == fact })
		if i < 0 || !e.Facts[i].Known {
			t.Errorf("%s: criu's %s is not known: %+v", e.Step, fact, e.Facts)
			continue
		}
		if own := number(e.Facts[i].Value); own <= 0 || own > took[prefix] {
			t.Errorf("%s: criu took %d ns by its own account, the step %d", e.Step, own, took[prefix])
		}
	}
}

// TwentyResets runs the whole plan with twenty resets.
func (h Harness) TwentyResets(t *testing.T) {
	m := h.Manifest(t, "rollouts=18") // and the two controls
	res, _, r := h.Execute(t, h.New(t, m), m, "restore")
	if res.Verdict != engine.RunPassed {
		t.Fatalf("%s: %s", res.Verdict, res.Reason)
	}
	if len(r.Rollouts) != 20 {
		t.Fatalf("%d rollouts", len(r.Rollouts))
	}
	for _, o := range r.Rollouts {
		if o.Control == "none" {
			continue
		}
		if o.Class != "success" || o.Before == nil || *o.Before != 0 || o.After == nil || *o.After != 1 {
			t.Errorf("rollout %d: %+v", o.Index, o)
		}
	}
}

// Siblings share one checkpoint and reset at the same time, in one window.
func (h Harness) Siblings(t *testing.T) {
	m := h.Manifest(t, "rollouts=6", "slots=3")
	for _, reset := range []string{"restore", "cold"} {
		res, _, r := h.Execute(t, h.New(t, m), m, reset)
		if res.Verdict != engine.RunPassed || len(r.Rollouts) != 8 {
			t.Errorf("%s: %s: %s, %d rollouts", reset, res.Verdict, res.Reason, len(r.Rollouts))
		}
	}
}

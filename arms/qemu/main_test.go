package qemu

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/arms/hostfacts"
	"github.com/drumsbench/drumsbench/arms/hostview"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps"
)

func stateDir() string {
	if s := os.Getenv("DRUMSBENCH_STATE"); s != "" {
		return s
	}
	return "/var/lib/drumsbench"
}

// manifest is manifests/locks with the pins of the image that scripts/prepare built.
func manifest(t testing.TB, tags ...string) bench.Manifest {
	t.Helper()
	m, err := compile.Load(compile.Options{Path: filepath.Join(stateDir(), "manifests", "manifests", "locks"), Tags: tags})
	if err != nil {
		t.Fatalf("%v\nscripts/prepare builds the image and its pins; scripts/test calls it", err)
	}
	return m.Manifest
}

// newArm is the arm with a method, under emulation: what every host can do.
func newArm(t testing.TB, method string) *Arm {
	t.Helper()
	tool, accel := located(t)
	return armOf(tool, accel, method)
}

func armOf(tool Tool, accel engine.Reading[string], method string) *Arm {
	program := bench.Fact{Name: engine.EngineDigest, Known: true, Value: "this test", Source: "test"}
	return New(bench.QEMUSettings{Accel: "tcg", Snapshot: method, Headroom: "512MiB"}, tool, accel, append(hostfacts.Read(), program))
}

// found is what the host has; it is tried once.
var found = sync.OnceValues(func() (*Arm, error) {
	tool, err := Locate(context.Background(), "")
	return &Arm{tool: tool, accel: tool.Accelerator(context.Background(), "tcg")}, err
})

func located(t testing.TB) (Tool, engine.Reading[string]) {
	t.Helper()
	a, err := found()
	if err != nil {
		t.Fatalf("%v\nscripts/setup installs qemu-system-x86", err)
	}
	if have, known := a.accel.Get(); !known || have != "tcg" {
		t.Fatalf("accelerator: %q %s", have, a.accel.Reason())
	}
	return a.tool, a.accel
}

// newer is a QEMU of 9.0 or newer.
func newer(t testing.TB) (Tool, engine.Reading[string]) {
	t.Helper()
	path, err := filepath.EvalSymlinks(filepath.Join(stateDir(), "qemu", "current", "bin", program))
	if err != nil {
		t.Fatalf("%v\nscripts/setup puts a private QEMU there", err)
	}
	tool, err := ask(t.Context(), path, Variable)
	if err != nil || !tool.since(9, 0) {
		t.Fatalf("%+v %v", tool, err)
	}
	return tool, tool.Accelerator(t.Context(), "tcg")
}

// workspace of a run in a folder of the test's, on the state directory's file system.
func workspace(t testing.TB) (*engine.Workspace, *record.Dir) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(stateDir(), "work"), 0o755); err != nil {
		t.Fatal(err)
	}
	base, err := os.MkdirTemp(filepath.Join(stateDir(), "work"), "drums-test-")
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
	id := hex.EncodeToString(claim[:])
	// As a run has it: a sweep knows a scratch directory by its name.
	ws := &engine.Workspace{Run: dir.Path, Work: filepath.Join(stateDir(), "work", id), State: stateDir(), ID: id,
		Ledger: dir.Ledger, Evidence: dir.Evidence, Log: slog.New(slog.DiscardHandler)}
	if err := ws.MakeWork(); err != nil {
		t.Fatal(err)
	}
	return ws, dir
}

// execute runs the manifest's plan on an arm and returns the outcomes by step. Its test
// is alone in its process: whatever network namespace that holds is taken for the run's.
func execute(t testing.TB, arm engine.Arm, m bench.Manifest, reset string) (engine.Result, map[string]bench.StepOutcome, bench.Record) {
	t.Helper()
	workload, err := compile.Workload(m)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := steps.Block(m, workload, reset)
	if err != nil {
		t.Fatal(err)
	}
	ws, dir := workspace(t)
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
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	scope := hostview.Scope{ID: ws.ID, Paths: []string{ws.Work, ws.Run}}
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
	r, err := record.Build(dir.Path, record.Header{Run: "test/" + t.Name(), Arm: Kind, Engine: bench.EngineVersion{Version: "test", Sha256: digest, Go: "test", Schema: engine.APIVersion}})
	if err != nil {
		t.Fatal(err)
	}
	if len(dir.Ledger.Open()) > 0 {
		t.Errorf("the ledger still owns %+v", dir.Ledger.Open())
	}
	return res, by, r
}

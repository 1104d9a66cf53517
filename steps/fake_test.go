package steps

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drumsbench/drumsbench/arms/fake"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const imageText = "an image that nobody reads\n"

// workload is the rename task on the fake arm.
func workload() bench.Manifest {
	sum := sha256.Sum256([]byte(imageText))
	exec := func(argv ...string) bench.Command { return bench.Command{Exec: argv, Timeout: "5s"} }
	m := bench.Manifest{
		ApiVersion: engine.APIVersion, Name: "rename-directory",
		Image: bench.Image{File: "fake.qcow2", Sha256: bench.SHA256(hex.EncodeToString(sum[:]))}, Network: "none",
		Guest: bench.Guest{User: "root", Home: "/root",
			Services: []bench.Service{{Name: "holder", Exec: []string{"/usr/bin/holder", "--lock"}, Ready: "/run/holder.ready"}},
			Server:   bench.Server{Port: 5000, Sha256: fake.ServerSHA256(), Exec: []string{"/usr/local/bin/guestd", "init"}}},
		Resources: bench.Resources{Vcpus: 2, Memory: "256MiB", Swap: "0", Pids: 64},
		Task: bench.Task{Id: "rename-directory", Setup: []bench.Command{exec("mkdir", "-p", "/root/Desktop/todo")},
			Oracle: []bench.Command{exec("mv", "/root/Desktop/todo", "/root/Desktop/done")}},
		Checker:    bench.Checker{Exec: []string{"test", "-d", "/root/Desktop/done"}, Timeout: "5s"},
		Canary:     bench.Canary{File: "/root/.canary"},
		Readiness:  bench.Readiness{Server: true, Windows: []bench.Window{}, Probes: []bench.Command{exec("true")}, Period: "10ms", Deadline: "10s"},
		Arms:       bench.Arms{Fake: &bench.FakeSettings{Faults: []string{}}},
		Experiment: bench.Experiment{Reset: []string{"restore"}, Rollouts: 2, Blocks: 1, Order: "abba", Reuse: "post_setup", Slots: 1},
	}
	m.Checker.Failure.Exit = 1
	return m
}

// plan compiles a manifest for one way of resetting.
func plan(t *testing.T, m bench.Manifest, reset string) *engine.Plan {
	t.Helper()
	digest, err := compile.Workload(m)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Block(m, digest, reset)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ran is what a run on the fake arm came to.
type ran struct {
	dir    string
	plan   *engine.Plan
	result engine.Result
	record bench.Record
	open   []record.Owned
	left   []string
}

// grace is how long a step may take to return once its time is up; less than fake.Overrun.
const grace = time.Second

// execute runs a manifest on the fake arm with the faults that it names. Time is
// that of a bubble: deadlines of minutes pass at once.
func execute(t *testing.T, m bench.Manifest, reset string) (r ran) {
	t.Helper()
	return executeUntil(t, m, reset, 0)
}

// beforehand interrupts a run before it has begun.
const beforehand = -1

// pages stands for the host's page cache where a test sets it; a test that does runs alone.
var pages engine.PageCache

// executeUntil interrupts the run after a while; 0 does not.
func executeUntil(t *testing.T, m bench.Manifest, reset string, interrupt time.Duration) (r ran) {
	t.Helper()
	arm, err := fake.New(*m.Arms.Fake)
	if err != nil {
		t.Fatal(err)
	}
	return executeOn(t, arm, m, reset, interrupt)
}

func executeOn(t *testing.T, arm engine.Arm, m bench.Manifest, reset string, interrupt time.Duration) (r ran) {
	t.Helper()
	return executeIn(t, arm, m, reset, interrupt, "")
}

// executeIn runs a manifest that lies in a folder.
func executeIn(t *testing.T, arm engine.Arm, m bench.Manifest, reset string, interrupt time.Duration, folder string) (r ran) {
	t.Helper()
	return executePlan(t, arm, m, plan(t, m, reset), interrupt, folder, nil)
}

// executeBranches runs a manifest that branches, with a program that holds canaries.
func executeBranches(t *testing.T, arm engine.Arm, m bench.Manifest, reset, canary string, parallel int) ran {
	t.Helper()
	return executeWorkspace(t, arm, m, plan(t, m, reset), 0, parallel, func(ws *engine.Workspace) { ws.Canary = canary })
}

// executePlan runs a plan of the manifest, with somebody who measures the host.
func executePlan(t *testing.T, arm engine.Arm, m bench.Manifest, p *engine.Plan, interrupt time.Duration, folder string, prober engine.HostProber) (r ran) {
	t.Helper()
	return executeWorkspace(t, arm, m, p, interrupt, 4, func(ws *engine.Workspace) { ws.Manifest, ws.Prober = folder, prober })
}

// executeWorkspace runs a plan of the manifest in a workspace that set completes.
func executeWorkspace(t *testing.T, arm engine.Arm, m bench.Manifest, p *engine.Plan, interrupt time.Duration, parallel int, set func(*engine.Workspace)) (r ran) {
	t.Helper()
	r.plan = p
	base := t.TempDir()
	state, work := filepath.Join(base, "state"), filepath.Join(base, "work")
	if err := os.MkdirAll(filepath.Join(state, "images"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "images", "fake.qcow2"), []byte(imageText), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := record.Create(filepath.Join(base, "run"))
	if err != nil {
		t.Fatal(err)
	}
	ws := &engine.Workspace{Run: dir.Path, Work: work, State: state, ID: "0123456789ab", Ledger: dir.Ledger, Evidence: dir.Evidence, Log: slog.New(slog.DiscardHandler), Cache: pages}
	set(ws)
	r.dir = dir.Path
	if err := ws.MakeWork(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		switch {
		case interrupt == beforehand:
			cancel()
		case interrupt > 0:
			defer time.AfterFunc(interrupt, cancel).Stop()
		}
		e := engine.Executor{Plan: r.plan, Bindings: Bindings(), Arm: arm, Workspace: ws, Sink: dir.Events, Grace: grace, Parallel: parallel}
		var err error
		if r.result, err = e.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
		time.Sleep(2 * fake.Overrun) // what does not heed its context ends in here too
	})
	if t.Failed() {
		t.FailNow()
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = dir.WriteManifest(m)
	must(err)
	_, err = dir.WriteHost(bench.HostFacts{ApiVersion: engine.APIVersion, Facts: arm.Facts(t.Context())})
	must(err)
	must(dir.WritePlan(r.plan))
	must(dir.Close())
	d := arm.Describe()
	r.record, err = record.Build(dir.Path, record.Header{Run: "test", Arm: d.Kind, Settings: d.Settings, Differences: d.Differences,
		Engine: bench.EngineVersion{Version: "test", Sha256: fake.ServerSHA256(), Go: "go", Schema: engine.APIVersion}})
	must(err)
	if r.record.Verdict != r.result.Verdict {
		t.Errorf("the record says %s, the executor said %s", r.record.Verdict, r.result.Verdict)
	}
	r.open, _, err = record.ReadLedger(filepath.Join(dir.Path, record.LedgerFile))
	must(err)
	entries, err := os.ReadDir(work)
	if !errors.Is(err, fs.ErrNotExist) { // a released workspace has none
		must(err)
	}
	for _, e := range entries {
		r.left = append(r.left, e.Name())
	}
	return r
}

// verdict of a step.
func (r ran) outcome(t *testing.T, id string) bench.StepOutcome {
	t.Helper()
	for _, o := range r.result.Outcomes {
		if o.Step == id {
			return o
		}
	}
	t.Fatalf("the plan has no step %s", id)
	return bench.StepOutcome{}
}

// dependants of a step, as far as they are not release steps.
func (r ran) dependants(id string) map[string]bool {
	found := map[string]bool{id: true}
	for _, s := range r.plan.Steps { // in topological order
		for _, n := range s.Needs {
			if found[n.Step] && !s.Release {
				found[s.Id] = true
			}
		}
	}
	delete(found, id)
	return found
}

package steps

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/arms/fake"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/planfmt"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// runPlan executes a plan on a fake arm below base and returns what it came to.
func runPlan(t *testing.T, base, name string, m bench.Manifest, p *engine.Plan) engine.Result {
	t.Helper()
	state := filepath.Join(base, "state")
	err := errors.Join(os.MkdirAll(filepath.Join(state, "images"), 0o755),
		os.WriteFile(filepath.Join(state, "images", "fake.qcow2"), []byte(imageText), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := record.Create(filepath.Join(base, name))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	arm, err := fake.New(*m.Arms.Fake)
	if err != nil {
		t.Fatal(err)
	}
	ws := &engine.Workspace{Run: dir.Path, Work: filepath.Join(base, name+".work"), State: state, ID: "0123456789ab",
		Ledger: dir.Ledger, Evidence: dir.Evidence, Log: slog.New(slog.DiscardHandler)}
	if err := ws.MakeWork(); err != nil {
		t.Fatal(err)
	}
	var res engine.Result
	synctest.Test(t, func(t *testing.T) {
		var err error
		if res, err = (&engine.Executor{Plan: p, Bindings: Bindings(), Arm: arm, Workspace: ws, Sink: dir.Events}).Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if err := ws.Release(t.Context()); err != nil { // a plan that mounts has done it
		t.Error(err)
	}
	if open := dir.Ledger.Open(); len(open) > 0 {
		t.Errorf("%s still owns %+v", name, open)
	}
	return res
}

// fromParams are the parameters for a checkpoint that lies in a folder.
func fromParams(t *testing.T, dir string, m bench.Manifest) bench.CheckpointParams {
	t.Helper()
	cp, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	digest, derr := checkpoint.Digest(cp.Handle)
	workload, werr := compile.Workload(m)
	if err := errors.Join(derr, werr); err != nil {
		t.Fatal(err)
	}
	return bench.CheckpointParams{Checkpoint: bench.CheckpointReference{Dir: dir, Sha256: digest}, Workload: workload, Server: m.Guest.Server.Sha256}
}

// A checkpoint of one run serves the rollouts of another, whose plan has no dump.
func TestBlockFrom(t *testing.T) {
	base := t.TempDir()
	m := workload()
	if r := runPlan(t, base, "first", m, plan(t, m, "restore")); r.Verdict != engine.RunPassed {
		t.Fatalf("first: %s: %s", r.Verdict, r.Reason)
	}
	dir := filepath.Join(base, "first", "checkpoints", "slot-0")
	m.Experiment.Rollouts, m.Experiment.Slots = 5, 2
	params := fromParams(t, dir, m)
	p, err := BlockFrom(m, params)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range p.Steps {
		if s.Kind == KindDump || s.Kind == KindProvision || s.Kind == KindPrepare {
			t.Errorf("the plan has the step %s", s.Id)
		}
	}
	if p.Digest() == plan(t, m, "restore").Digest() {
		t.Error("it has the digest of a run that dumps")
	}
	r := runPlan(t, base, "second", m, p)
	if r.Verdict != engine.RunPassed {
		t.Fatalf("second: %s: %s", r.Verdict, r.Reason)
	}

	// What the checkpoint is not of is refused before anything is restored.
	for name, c := range map[string]struct {
		change func(*bench.CheckpointParams)
		text   string
	}{
		"digest":   {func(p *bench.CheckpointParams) { p.Checkpoint.Sha256 = p.Workload }, "another one lies in the folder"},
		"workload": {func(p *bench.CheckpointParams) { p.Workload = p.Server }, "of another workload"},
		"server":   {func(p *bench.CheckpointParams) { p.Server = p.Workload }, "guest server is another"},
		"nothing":  {func(p *bench.CheckpointParams) { p.Checkpoint.Dir = base }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			params := params
			c.change(&params)
			p, err := BlockFrom(m, params)
			if err != nil {
				t.Fatal(err)
			}
			r := runPlan(t, base, "refused-"+name, m, p)
			if r.Verdict != engine.RunFailed || !strings.Contains(r.Reason, c.text) || !strings.Contains(r.Reason, "base/checkpoint") {
				t.Errorf("%s: %s", r.Verdict, r.Reason)
			}
			for _, o := range r.Outcomes {
				if o.Kind == KindRestore && o.Verdict != engine.NotRun {
					t.Errorf("%s: %s", o.Step, o.Verdict)
				}
			}
		})
	}
}

// An arm whose slots end with the program refuses to take one over.
func TestAdoptNeedsAnArmThatLasts(t *testing.T) {
	m := workload()
	params := fromHandle()
	digest, err := compile.Workload(m)
	if err != nil {
		t.Fatal(err)
	}
	p, err := HandDump(m, digest, params)
	if err != nil {
		t.Fatal(err)
	}
	r := runPlan(t, t.TempDir(), "run", m, p)
	if r.Verdict != engine.RunFailed || !strings.Contains(r.Reason, "ends with the program that made it") {
		t.Errorf("%s: %s", r.Verdict, r.Reason)
	}
}

func fromHandle() bench.AdoptParams {
	return bench.AdoptParams{Image: workload().Image, Owned: []bench.OwnedThing{}, Place: bench.PlaceHandle{
		Name: "slot-0", State: "running", Tenancies: 1, Image: "/image", Ownership: "/groups", Tools: "/groups/tools", Group: "/groups/slot-0",
	}}
}

// The plans of commands on slots by hand have a run's steps and gates, in its order.
func TestHandPlans(t *testing.T) {
	m := workload()
	digest, err := compile.Workload(m)
	if err != nil {
		t.Fatal(err)
	}
	cp := bench.CheckpointParams{Checkpoint: bench.CheckpointReference{Dir: "/checkpoint", Sha256: digest}, Workload: digest, Server: m.Guest.Server.Sha256}
	for name, make := range map[string]func() (*engine.Plan, error){
		"provision":    func() (*engine.Plan, error) { return HandProvision(m, digest) },
		"dump":         func() (*engine.Plan, error) { return HandDump(m, digest, fromHandle()) },
		"reset":        func() (*engine.Plan, error) { return HandReset(m, fromHandle(), cp) },
		"restore-from": func() (*engine.Plan, error) { return HandRestore(m, cp) },
		"exec":         func() (*engine.Plan, error) { return HandExecute(m, digest, fromHandle(), m.Task.Setup[0]) },
		"run-from": func() (*engine.Plan, error) {
			one := m
			one.Experiment.Rollouts = 1
			return BlockFrom(one, cp)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := make()
			if err != nil {
				t.Fatal(err)
			}
			if err := Bindings().Check(p); err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", "hand-"+name+".txt")
			// Digests change with the manifest; the steps are what is compared.
			_, have, _ := strings.Cut(planfmt.Text(p), "\n\n")
			if *update {
				if err := os.WriteFile(golden, []byte(have), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), have); d != "" {
				t.Errorf("go test ./steps -update rewrites it\n%s", d)
			}
		})
	}
}

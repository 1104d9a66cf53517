package steps

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/planfmt"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

var update = flag.Bool("update", false, "rewrite the golden plans in testdata")

func TestRunsPass(t *testing.T) {
	for _, reset := range []string{"restore", "cold"} {
		for _, slots := range []int64{1, 3} {
			t.Run(fmt.Sprintf("%s/%d slots", reset, slots), func(t *testing.T) {
				m := workload()
				m.Experiment.Rollouts, m.Experiment.Warmup, m.Experiment.Slots = 5, 1, slots
				r := execute(t, m, reset)
				requirePassed(t, r)
				if n := len(r.record.Rollouts); n != 8 {
					t.Fatalf("%d rollouts, want two controls, a warm-up and five", n)
				}
				for i, who := range Controls {
					if x := r.record.Rollouts[i]; x.Control != who || x.Warmup || x.Slot != "slot-0" {
						t.Errorf("control %d: %+v", i, x)
					}
				}
				for i, x := range r.record.Rollouts[len(Controls):] {
					if x.Warmup != (i == 0) || x.Slot != fmt.Sprintf("slot-%d", int64(i)%slots) {
						t.Errorf("rollout %d: %+v", i, x)
					}
					if x.Clocks == nil || x.Clocks.Mechanism == "" || x.Clocks.Answer == "" || x.Clocks.Ready == "" || x.Clocks.Usable == "" {
						t.Errorf("rollout %d: clocks %+v", i, x.Clocks)
					}
				}
				b, err := json.Marshal(r.record)
				if err != nil {
					t.Fatal(err)
				}
				if err := compile.Validate("Record", b); err != nil {
					t.Errorf("the record is not of the schema: %v", err)
				}
				if (r.record.Checkpoint != "") != (reset == "restore") {
					t.Errorf("checkpoint %q in mode %s", r.record.Checkpoint, reset)
				}
			})
		}
	}
}

// Fewer rollouts than slots: the slots without a rollout are never made.
func TestMoreSlotsThanRollouts(t *testing.T) {
	for _, reset := range []string{"restore", "cold"} {
		m := workload()
		m.Experiment.Rollouts, m.Experiment.Slots = 2, 4
		requirePassed(t, execute(t, m, reset))
	}
}

// The negative control: nobody acts, and the score stays 0.
func TestNobodyActs(t *testing.T) {
	for _, reset := range []string{"restore", "cold"} {
		m := workload()
		m.Policy = &bench.Policy{None: &bench.NonePolicy{}}
		r := execute(t, m, reset)
		if r.result.Verdict != engine.RunPassed {
			t.Errorf("the run %s: %s", r.result.Verdict, r.result.Reason)
		}
		for _, x := range r.record.Rollouts {
			if x.Control == "oracle" {
				continue
			}
			if x.Class != "failed_valid" || x.Before == nil || *x.Before != 0 || x.After == nil || *x.After != 0 {
				t.Errorf("rollout %+v", x)
			}
		}
	}
}

// A checker that cannot tell the start from the end is found by the controls.
func TestControlsFindABlindChecker(t *testing.T) {
	for name, exec := range map[string][]string{"always success": {"true"}, "always failure": {"false"}} {
		m := workload()
		m.Checker.Exec = exec
		r := execute(t, m, "restore")
		step := map[string]string{"always success": "r0/evaluate-before", "always failure": "r1/evaluate-after"}[name]
		if o := r.outcome(t, step); o.Verdict != engine.Fail || len(o.Findings) == 0 || o.Findings[0].Want == o.Findings[0].Have {
			t.Errorf("%s: step %s is %+v", name, step, o)
		}
		if r.result.Verdict != engine.RunFailed {
			t.Errorf("%s: the run %s", name, r.result.Verdict)
		}
		if !strings.HasPrefix(r.record.Reason, "task quarantined: ") {
			t.Errorf("%s: the reason is %q", name, r.record.Reason)
		}
		requireReleased(t, r)
	}
}

// A setup that leaves the task solved is no start.
func TestSetupFails(t *testing.T) {
	m := workload()
	m.Task.Setup[0].Exec = []string{"false"}
	r := execute(t, m, "restore")
	if o := r.outcome(t, "base/prepare"); o.Verdict != engine.Fail || !strings.Contains(o.Error.Text, "exited with 1, not 0") {
		t.Errorf("%+v", o)
	}
	requireReleased(t, r)
}

func TestUnknownReset(t *testing.T) {
	if _, err := Block(workload(), "", "warm"); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("%v, want engine.ErrUsage", err)
	}
}

func TestGolden(t *testing.T) {
	for _, reset := range []string{"restore", "cold"} {
		m := workload()
		m.Experiment.Rollouts, m.Experiment.Slots, m.Experiment.Warmup = 3, 2, 1
		p := plan(t, m, reset)
		path := filepath.Join("testdata", reset+".txt")
		got := planfmt.Text(p)
		if *update {
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s plan (go test ./steps -update accepts it):\n%s", reset, diff)
		}
		if err := compile.Validate("Plan", p.JSON()); err != nil {
			t.Errorf("the %s plan is not of the schema: %v", reset, err)
		}
	}
}

// What holds for every plan, whatever the experiment is.
func TestPlans(t *testing.T) {
	m := workload()
	digest, err := compile.Workload(m)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		m := m
		m.Experiment.Rollouts = rapid.Int64Range(1, 12).Draw(t, "rollouts")
		m.Experiment.Warmup = rapid.Int64Range(0, 3).Draw(t, "warmup")
		m.Experiment.Slots = rapid.Int64Range(1, 5).Draw(t, "slots")
		m.Experiment.Pool = rapid.Int64Range(0, 3).Draw(t, "pool")
		reset := rapid.SampledFrom([]string{"restore", "cold"}).Draw(t, "reset")
		p, err := Block(m, digest, reset)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Block(m, digest, reset)
		if err != nil || again.Digest() != p.Digest() {
			t.Errorf("two digests of one plan: %s, %s (%v)", p.Digest(), again.Digest(), err)
		}
		if err := Bindings().Check(p); err != nil {
			t.Errorf("the plan cannot be run: %v", err)
		}
		count := map[string]int{}
		for _, s := range p.Steps {
			count[s.Kind]++
			if s.Kind == KindRelease && (!s.Release || s.Window != "") {
				t.Errorf("release step %s: %+v", s.Id, s)
			}
			if (s.Rollout == nil) == strings.HasPrefix(s.Id, "r") && !strings.HasPrefix(s.Id, "release") {
				t.Errorf("step %s has rollout %v", s.Id, s.Rollout)
			}
			if s.Optional != (s.Kind == KindGate) {
				t.Errorf("step %s: optional is %v", s.Id, s.Optional)
			}
		}
		// The host is looked at before and after everything else.
		first, last := p.Steps[0], p.Steps[len(p.Steps)-1]
		if first.Kind != KindSurvey || len(first.Needs) > 0 || first.Window != "" {
			t.Errorf("the first step is %+v", first)
		}
		if last.Id != "gate-cleanup" || !last.Release || last.Window != "" {
			t.Errorf("the last step is %+v", last)
		}
		for id, side := range map[string]map[string]bool{first.Id: descendants(p, first.Id), last.Id: ancestors(p, last.Id)} {
			for _, s := range p.Steps {
				if s.Id != id && !side[s.Id] {
					t.Errorf("step %s is not ordered with %s", s.Id, id)
				}
			}
		}
		n := int(m.Experiment.Rollouts+m.Experiment.Warmup) + len(Controls)
		want := map[string]int{KindSurvey: 1, KindMount: 1, KindAct: n, KindMeasure: n, KindInspect: n, KindEvaluate: 2 * n, KindRelease: int(m.Experiment.Slots+m.Experiment.Pool) + 1}
		if m.Experiment.Pool > 0 {
			want[KindTake] = n - len(Controls)
		}
		if reset == "restore" {
			want[KindProvision], want[KindDump], want[KindRestore], want[KindResume], want[KindReseed], want[KindPrepare], want[KindReadiness] = 1, 1, n, n, n, 1, n+1
		} else {
			want[KindProvision], want[KindPrepare], want[KindReadiness] = n, n, n
		}
		count[KindGate] = 0
		want[KindGate] = 0
		if diff := cmp.Diff(want, count); diff != "" {
			t.Errorf("steps by kind:\n%s", diff)
		}
	})
}

// descendants are the steps that wait for a step, ancestors those that it waits for.
func descendants(p *engine.Plan, id string) map[string]bool {
	found := map[string]bool{id: true}
	for _, s := range p.Steps { // in topological order
		for _, n := range s.Needs {
			found[s.Id] = found[s.Id] || found[n.Step]
		}
	}
	return found
}

func ancestors(p *engine.Plan, id string) map[string]bool {
	found := map[string]bool{id: true}
	for _, s := range slices.Backward(p.Steps) {
		if found[s.Id] {
			for _, n := range s.Needs {
				found[n.Step] = true
			}
		}
	}
	return found
}

// The plan is of the workload, not of the arm: settings of an arm change neither digest.
func TestArmSettingsAreOutsideThePlan(t *testing.T) {
	a, b := workload(), workload()
	b.Arms.Fake.Faults = []string{"lock-lost"}
	if plan(t, a, "restore").Digest() != plan(t, b, "restore").Digest() {
		t.Error("a setting of the arm changes the plan")
	}
}

package planfmt

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func small(t *testing.T, workload string, deadline time.Duration, gate string, rollouts ...string) *engine.Plan {
	t.Helper()
	b := engine.NewBuilder()
	root := engine.Add[engine.Root](b, engine.StepSpec{ID: "mount", Kind: "mount", Params: bench.ReleaseParams{}, Deadline: deadline})
	engine.Add[engine.Judged](b, engine.StepSpec{ID: "gate", Kind: "gate", Params: bench.GateParams{Gate: gate}, Deadline: time.Second}, engine.Read(root))
	for _, r := range rollouts {
		for _, s := range []string{"restore", "act"} {
			engine.Add[engine.Judged](b, engine.StepSpec{ID: r + "/" + s, Kind: s, Params: bench.ReleaseParams{}, Deadline: time.Second}, engine.Read(root))
		}
	}
	p, err := b.Build(canonical.Sum([]byte(workload)), "restore")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDiff(t *testing.T) {
	a := small(t, "w", time.Second, "locks", "r0", "r1", "r2")
	b := small(t, "w", time.Minute, "mounts", "r0")
	d, err := Diff("one", a, "two", b)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(d)
	if err == nil {
		err = compile.Validate("PlanDifference", data)
	}
	if err != nil {
		t.Error(err)
	}
	want := []bench.PlanField{{Step: "mount", Path: "deadline", A: `"1s"`, B: `"1m"`}, {Step: "gate", Path: "params.gate", A: `"locks"`, B: `"mounts"`}}
	if diff := cmp.Diff(want, d.Fields); diff != "" {
		t.Error(diff)
	}
	if len(d.OnlyA) != 4 || d.OnlyA[0] != (bench.PlanStep{Step: "r1/restore", Kind: "restore"}) || len(d.OnlyB) != 0 || Equal(d) {
		t.Errorf("%+v", d)
	}
	text := DiffText(d)
	for _, want := range []string{"only in A\n  r1 to r2, each: restore, act\n", "  gate  params.gate\n    A \"locks\"\n    B \"mounts\"\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	back, err := Diff("two", b, "one", a)
	if err != nil || len(back.OnlyB) != 4 || len(back.OnlyA) != 0 || len(back.Fields) != 2 || back.Fields[0].A != `"1m"` {
		t.Errorf("the other way round: %+v, %v", back, err)
	}
}

func TestDiffOfEqualPlans(t *testing.T) {
	a, b := small(t, "w", time.Second, "locks", "r0"), small(t, "w", time.Second, "locks", "r0")
	d, err := Diff("one", a, "two", b)
	if err != nil || !Equal(d) || len(d.Fields)+len(d.OnlyA)+len(d.OnlyB) != 0 || !strings.Contains(DiffText(d), "the plans are equal") {
		t.Errorf("%+v, %v", d, err)
	}
	// Of another workload, with no step that says so: not equal all the same.
	d, err = Diff("one", a, "two", small(t, "another", time.Second, "locks", "r0"))
	if err != nil || Equal(d) || !strings.Contains(DiffText(d), "the steps are equal; ") {
		t.Errorf("%+v, %v", d, err)
	}
}

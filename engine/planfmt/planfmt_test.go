package planfmt

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// plan has everything that a plan can have: a step before the rollouts, windows
// with siblings, a warm-up, a pair, an optional gate, release steps.
func plan(t *testing.T) *engine.Plan {
	t.Helper()
	b := engine.NewBuilder()
	spec := func(id, kind string, d time.Duration) engine.StepSpec {
		return engine.StepSpec{ID: id, Kind: kind, Deadline: d, Params: bench.ReleaseParams{}}
	}
	root := engine.Add[engine.Root](b, spec("mount", "mount", 10*time.Minute))
	base := engine.Add[engine.Slot](b, spec("base/provision", "provision", time.Minute), engine.Read(root), engine.Move(engine.Promise[engine.Place]{}))
	ready := engine.Add[engine.Ready](b, spec("base/readiness", "readiness", 1500*time.Millisecond), engine.Use(base))
	dump := engine.Add[engine.Pair[engine.Checkpoint, engine.Place]](b, spec("base/dump", "dump", 3*time.Minute), engine.Move(base), engine.After(ready))
	places := []engine.Promise[engine.Place]{engine.Second(dump), {}}
	var ends []engine.Input
	last := make([]engine.Promise[engine.Acted], len(places))
	for i := int64(0); i < 4; i++ {
		k := i % 2
		at := func(name, kind string) engine.StepSpec {
			s := spec(fmt.Sprintf("r%d/%s", i, name), kind, 30*time.Second)
			s.Rollout, s.Slot, s.Warmup = &i, fmt.Sprintf("slot-%d", k), i < 2
			s.Window = fmt.Sprintf("reset-%d", i/2)
			return s
		}
		stopped := engine.Add[engine.Stopped](b, at("restore", "restore"), engine.Read(root), engine.Read(engine.First(dump)), engine.Move(places[k]), engine.After(last[k]))
		gate := at("gate-locks", "gate")
		gate.Optional = true
		judged := engine.Add[engine.Judged](b, gate, engine.Read(stopped), engine.Read(engine.First(dump)))
		slot := engine.Add[engine.Slot](b, at("resume", "resume"), engine.Move(stopped), engine.After(judged))
		act := at("act", "act")
		act.Window = ""
		last[k] = engine.Add[engine.Acted](b, act, engine.Use(slot))
		ends = append(ends, engine.After(last[k]))
		places[k] = engine.AsPlace(slot)
	}
	for k, place := range places {
		s := spec(fmt.Sprintf("release/slot-%d", k), "release", time.Minute)
		s.Release, s.Slot = true, fmt.Sprintf("slot-%d", k)
		engine.Add[engine.Released](b, s, append(ends, engine.Move(place))...)
	}
	p, err := b.Build(canonical.Sum([]byte("workload")), "restore")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestGolden(t *testing.T) {
	p := plan(t)
	for name, text := range map[string]string{"plan.txt": Text(p), "plan.json": string(JSON(p)), "plan.mmd": Mermaid(p)} {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), text); diff != "" {
			t.Errorf("%s (go test -update rewrites it):\n%s", name, diff)
		}
	}
}

func TestJSONIsAPlanAndHasItsDigest(t *testing.T) {
	p := plan(t)
	if err := compile.Validate("Plan", JSON(p)); err != nil {
		t.Error(err)
	}
	if canonical.Sum(JSON(p)) != p.Digest() {
		t.Error("the digest of the JSON is not the plan's")
	}
}

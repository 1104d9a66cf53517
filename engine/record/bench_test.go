package record

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// noopPlan wires rollouts of ten steps, one after the other on one slot:
// restore, four gates beside each other, resume, readiness, act, evaluate, canary.
func noopPlan(tb testing.TB, steps int, windows bool) *engine.Plan {
	b := engine.NewBuilder()
	var place, ended engine.Promise[int]
	for i := int64(0); i < int64(steps)/10; i++ {
		step := func(name string, in ...engine.Input) engine.Promise[int] {
			s := engine.StepSpec{ID: fmt.Sprintf("r%d/%s", i, name), Kind: "noop", Deadline: time.Minute, Rollout: &i, Slot: "slot-0",
				Params: bench.GateParams{Gate: "noop", Port: 5000, Resources: &bench.Resources{Vcpus: 2, Memory: "1GiB", Swap: "0", Pids: 512}}}
			if measured := name != "act" && name != "evaluate" && name != "canary"; windows && measured {
				s.Window = fmt.Sprintf("reset-%d", i)
			}
			return engine.Add[int](b, s, in...)
		}
		stopped := step("restore", engine.Move(place), engine.After(ended))
		resume := []engine.Input{engine.Move(stopped)}
		for _, gate := range []string{"locks", "mounts", "limits", "processes"} {
			resume = append(resume, engine.After(step("gate-"+gate, engine.Read(stopped))))
		}
		place = step("resume", resume...)
		ready := step("readiness", engine.Use(place))
		acted := step("act", engine.Use(place), engine.After(ready))
		scored := step("evaluate", engine.Use(place), engine.After(acted))
		ended = step("canary", engine.Use(place), engine.After(scored))
	}
	p, err := b.Build(noDigest, "restore")
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// The engine's own cost of a step: scheduling, a goroutine with its deadline,
// the receipt, its digest and its line in a real file, not synced.
func BenchmarkNoopPlan(b *testing.B) {
	bindings := engine.Bindings{}.Add(engine.Bind("noop", func(context.Context, *engine.Exec, bench.GateParams) (int, error) { return 0, nil }))
	for _, windows := range []bool{false, true} {
		for _, n := range []int{1000, 10000, 20000} {
			b.Run(fmt.Sprintf("windows=%v/steps=%d", windows, n), func(b *testing.B) {
				p := noopPlan(b, n, windows)
				for i := 0; b.Loop(); i++ {
					events, err := createEvents(filepath.Join(b.TempDir(), fmt.Sprint(i)))
					if err != nil {
						b.Fatal(err)
					}
					e := engine.Executor{Plan: p, Bindings: bindings, Sink: events}
					r, err := e.Run(context.Background())
					if err != nil || r.Verdict != engine.RunPassed {
						b.Fatal(err, r.Verdict, r.Reason)
					}
					b.StopTimer()
					if err := events.Close(); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/step")
			})
		}
	}
}

func BenchmarkBuildPlan(b *testing.B) {
	for _, n := range []int{1000, 10000, 100000} {
		b.Run(fmt.Sprintf("steps=%d", n), func(b *testing.B) {
			for b.Loop() {
				noopPlan(b, n, true)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/step")
		})
	}
}

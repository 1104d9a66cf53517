package steps

import (
	"strconv"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// With a pool a slot is made ready before its rollout takes it: that time is in
// no clock, and is said apart.
func TestPool(t *testing.T) {
	for _, reset := range []string{"restore", "cold"} {
		t.Run(reset, func(t *testing.T) {
			m := workload()
			m.Experiment.Rollouts, m.Experiment.Pool = 5, 2
			m.Arms.Fake.Faults = []string{"slow"} // a reset that takes its time
			r := execute(t, m, reset)
			requirePassed(t, r)
			slots := map[string]bool{}
			for _, x := range r.record.Rollouts {
				if x.Control != "" {
					if x.Prepared != "" {
						t.Errorf("control %+v was taken from a pool", x)
					}
					continue
				}
				slots[x.Slot] = true
				if x.Clocks.Mechanism != "" || x.Clocks.Ready == "" || x.Clocks.Usable == "" || x.Clocks.Answer == "" {
					t.Errorf("rollout %d has the clocks %+v", x.Index, *x.Clocks)
				}
				if prepared, usable := ns(t, x.Prepared), ns(t, x.Clocks.Usable); prepared <= usable {
					t.Errorf("rollout %d: prepared in %d ns, usable after %d", x.Index, prepared, usable)
				}
			}
			if len(slots) != 3 {
				t.Errorf("slots %v, want the one that acts and two of the pool", slots)
			}
			// One acts at a time: each takes its slot after the one before has ended.
			for _, s := range r.plan.Steps {
				if s.Kind == KindTake && s.Window == "" {
					t.Errorf("%s is in no window", s.Id)
				}
			}
			for n := 3; n < 7; n++ {
				taken, before := "r"+strconv.Itoa(n)+"/take", "r"+strconv.Itoa(n-1)+"/gate-canary"
				if !ancestors(r.plan, taken)[before] {
					t.Errorf("%s does not wait for %s", taken, before)
				}
			}
		})
	}
}

// A slot of the pool that is not ready is not handed over.
func TestPoolHandsOverNothingBroken(t *testing.T) {
	m := workload()
	m.Experiment.Pool = 1
	m.Arms.Fake.Faults = []string{"service-dead@4"} // the base, two controls, the first to be made ready
	r := execute(t, m, "restore")
	if r.result.Verdict != engine.RunFailed {
		t.Errorf("the run %s", r.result.Verdict)
	}
	if a, b := r.outcome(t, "r2/take"), r.outcome(t, "r3/take"); a.Verdict == engine.Pass && b.Verdict == engine.Pass {
		t.Errorf("it was handed over: %+v %+v", a, b)
	}
}

func ns(t *testing.T, v bench.Int64) int64 {
	t.Helper()
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

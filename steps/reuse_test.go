package steps

import (
	"encoding/json"
	"testing"

	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// With reuse none the checkpoint holds nothing of the task: each rollout does the
// set-up after its restore, and is usable once that is done.
func TestReuse(t *testing.T) {
	setups := func(reuse, reset string) map[string]int {
		m := workload()
		m.Experiment.Rollouts, m.Experiment.Reuse = 3, reuse
		r := execute(t, m, reset)
		requirePassed(t, r)
		found := map[string]int{}
		for _, s := range r.plan.Steps {
			if s.Kind != KindPrepare {
				continue
			}
			var p bench.PrepareParams
			if err := json.Unmarshal([]byte(s.Params), &p); err != nil {
				t.Fatal(err)
			}
			found[s.Id] = len(p.Setup)
		}
		for _, x := range r.record.Rollouts {
			if x.Clocks == nil || x.Control == "" && ns(t, x.Clocks.Usable) < ns(t, x.Clocks.Ready) {
				t.Errorf("reuse %s: rollout %d has the clocks %+v", reuse, x.Index, x.Clocks)
			}
		}
		return found
	}
	all := len(workload().Task.Setup)
	if all == 0 {
		t.Fatal("the workload has no set-up")
	}
	if have := setups("post_setup", "restore"); len(have) != 1 || have["base/prepare"] != all {
		t.Errorf("post_setup prepares %v", have)
	}
	have := setups("none", "restore")
	if len(have) != 6 || have["base/prepare"] != 0 {
		t.Errorf("none prepares %v, want once without set-up and five times with", have)
	}
	for id, n := range have {
		if id != "base/prepare" && n != all {
			t.Errorf("%s does %d of %d commands", id, n, all)
		}
	}
	// A cold slot has no checkpoint: the plans are one.
	m := workload()
	digest := func(reuse string) bench.SHA256 {
		m.Experiment.Reuse = reuse
		workload, err := compile.Workload(m)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Block(m, workload, "cold")
		if err != nil {
			t.Fatal(err)
		}
		return p.Digest()
	}
	if digest("none") != digest("post_setup") {
		t.Error("what a checkpoint holds changes the plan of a cold run")
	}
}

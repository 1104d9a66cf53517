package steps

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The last slot of a run is read once more, after its rest and before anybody acts; without memoryAfter nobody is. A
// checkpoint that settles is dumped after that.
func TestMemoryOnceMore(t *testing.T) {
	m := workload()
	m.Experiment.Rollouts = 2
	steps := func() (later []string) {
		p, err := Block(m, "", "restore")
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range p.Steps {
			if strings.HasSuffix(s.Id, "/measure-later") {
				later = append(later, s.Id)
			}
		}
		return later
	}
	if have := steps(); len(have) != 0 {
		t.Errorf("not asked for, there is %v", have)
	}
	m.Experiment.MemoryAfter = "20ms"
	if have := steps(); !slices.Equal(have, []string{"r3/measure-later"}) {
		t.Errorf("there is %v", have)
	}
	m.Checkpoint = &bench.CheckpointPolicy{EstablishedTCP: "refuse", GhostLimit: "64MiB", Settle: "30ms"}
	r := execute(t, m, "restore")
	least := map[string]int64{"r3/measure-later": 20e6, "base/dump": 30e6}
	for _, s := range r.record.Steps {
		if want, waits := least[s.Step]; waits {
			if took, err := strconv.ParseInt(string(s.Nanoseconds), 10, 64); err != nil || took < want || s.Verdict != engine.Pass {
				t.Errorf("%s: %s after %s ns", s.Step, s.Verdict, s.Nanoseconds)
			}
			delete(least, s.Step)
		}
	}
	if len(least) != 0 {
		t.Errorf("not in the record: %v", least)
	}
	for _, o := range r.record.Rollouts {
		if (o.Later != nil) != (o.Index == 3) || o.Memory == nil {
			t.Errorf("rollout %d: memory %v, later %v", o.Index, o.Memory, o.Later)
		}
	}
}

package planfmt

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func step(id, kind string, rollout int64, needs ...string) bench.Step {
	s := bench.Step{Id: id, Kind: kind}
	if rollout >= 0 {
		s.Rollout = &rollout
	}
	for _, n := range needs {
		s.Needs = append(s.Needs, bench.Edge{Step: n, Mode: engine.ModeAfter})
	}
	return s
}

func TestOverview(t *testing.T) {
	control, warm := step("r0/restore", "restore", 0, "mount"), step("r1/restore", "restore", 1, "r0/restore")
	control.Control, warm.Warmup = "none", true
	release := step("release/root", "release", -1, "gate-image", "r2/act", "mount")
	release.Release = true
	got := Overview(&engine.Plan{Plan: bench.Plan{Steps: []bench.Step{
		step("mount", "mount", -1), step("base/dump", "dump", -1, "mount"),
		control, warm,
		step("r2/restore", "restore", 2, "r1/restore", "mount"),
		// Two wait for the same steps; the third waits for one of them, too.
		step("r2/gate-stopped-locks", "gate", 2, "r2/restore"), step("r2/gate-stopped-mounts", "gate", 2, "r2/restore"),
		step("r2/gate-live", "gate", 2, "r2/restore", "r2/gate-stopped-locks"),
		step("r2/act", "act", 2, "r2/gate-live", "r2/gate-stopped-locks", "r2/gate-stopped-mounts", "r2/restore"),
		step("r3/restore", "restore", 3, "r2/act"),
		step("gate-image", "gate", -1, "r3/restore"), release,
	}}})
	want := `flowchart LR
  subgraph part0["once"]
    direction TB
    p0b0["mount"]
    p0b1["dump"]
    p0b0 --> p0b1
  end
  part0 ==> part1
  subgraph part1["each rollout; in the first nobody acts, in the second the oracle"]
    direction TB
    p1b0["restore"]
    p1b1["gates, stopped: locks, mounts"]
    p1b2["gate: live"]
    p1b3["act"]
    p1b0 --> p1b1 --> p1b2 --> p1b3
  end
  part1 ==> part2
  subgraph part2["at the end; releases whatever happened"]
    direction TB
    p2b0["gate: image"]
    p2b1["release/root"]
    p2b0 --> p2b1
  end
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A plan of a warm-up alone still shows a rollout, and each of its steps that is drawn is drawn once.
func TestOverviewOfAnyPlan(t *testing.T) {
	p := plan(t)
	got := Overview(p)
	for _, s := range p.Steps {
		if s.Rollout == nil && s.Kind != "gate" {
			_, name, found := strings.Cut(s.Id, "/")
			if !found || s.Kind == "release" {
				name = s.Id
			}
			if strings.Count(got, "[\""+name+"\"]") != 1 {
				t.Errorf("%s is not drawn once in\n%s", s.Id, got)
			}
		}
	}
	if !strings.Contains(got, `part1["each rollout"]`) {
		t.Errorf("controls where there are none:\n%s", got)
	}
	warm := &engine.Plan{Plan: bench.Plan{Steps: slices.DeleteFunc(slices.Clone(p.Steps), func(s bench.Step) bool { return s.Rollout != nil && !s.Warmup })}}
	if got := Overview(warm); strings.Count(got, `["restore"]`) != 1 {
		t.Errorf("not one rollout:\n%s", got)
	}
}

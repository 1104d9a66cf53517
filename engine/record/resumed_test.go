package record

import (
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// What nobody likes is not dropped by a resume, and nothing is put together of two attempts.
func TestResumeVoidsNothingFinished(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	plan := bench.Plan{Steps: []bench.Step{
		{Id: "mount", Kind: "mount"}, {Id: "base/dump", Kind: "dump"},
		{Id: "r0/restore", Kind: "restore", Rollout: n(0)}, {Id: "r0/act", Kind: "act", Rollout: n(0)},
		{Id: "r1/restore", Kind: "restore", Rollout: n(1), Slot: "slot-0"}, {Id: "r1/act", Kind: "act", Rollout: n(1)},
	}}
	kinds := map[string]string{}
	for _, s := range plan.Steps {
		kinds[s.Id] = s.Kind
	}
	chain := func(lines ...string) (list []bench.Receipt) {
		list = []bench.Receipt{{Event: "run_start"}}
		for _, l := range lines {
			r := bench.Receipt{Seq: int64(len(list)), Event: "step", Step: l, Kind: kinds[l], Verdict: engine.Pass}
			if void, ok := strings.CutPrefix(l, "resume "); ok {
				r = bench.Receipt{Seq: r.Seq, Event: "resume", Void: strings.Fields(void), Time: "2026-01-01T00:00:00Z"}
			}
			list = append(list, r)
		}
		return list
	}
	begun := []string{"mount", "base/dump", "r0/restore", "r0/act", "r1/restore"}
	with := func(more ...string) []string { return append(append([]string{}, begun...), more...) }
	for name, c := range map[string]struct {
		lines []string
		wrong string
		lost  int // lines of what was interrupted
	}{
		"as it is made":               {with("resume mount r1/restore", "mount", "r1/restore", "r1/act"), "", 1},
		"twice":                       {with("resume mount r1/restore", "mount", "r1/restore", "resume mount r1/restore", "mount", "r1/restore", "r1/act"), "", 2},
		"nothing had ended since":     {with("resume mount r1/restore", "resume "), "", 2},
		"the checkpoint is made anew": {[]string{"mount", "base/dump", "resume mount base/dump", "mount", "base/dump"}, "", 1},
		"a finished rollout":          {with("resume mount r1/restore r0/restore r0/act"), "of a rollout that was finished", 0},
		"half of one":                 {with("r1/act", "resume mount r1/act"), "of a rollout that was finished", 0},
		"one that goes on":            {with("resume mount", "mount", "r1/act"), "of a rollout that was not finished", 0},
		"what has no receipt":         {with("resume mount r1/restore r1/act"), "has no receipt", 0},
		"what is not planned":         {with("resume mount r1/restore r2/act"), "has no receipt", 0},
		"one step twice":              {with("resume mount mount r1/restore"), "has no receipt", 0},
		"run again without a resume":  {with("r1/restore"), "are both of step", 0},
	} {
		_, lost, err := join(plan, chain(c.lines...))
		switch {
		case c.wrong == "" && err != nil, c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%s: %v, want %q", name, err, c.wrong)
		case err == nil && len(lost) != c.lost:
			t.Errorf("%s: interrupted: %+v", name, lost)
		case err == nil && (lost[0].Class != string(Invalid) || lost[0].Reason == "" || lost[0].Attempt != 1):
			t.Errorf("%s: %+v", name, lost[0])
		}
	}
	steps, lost, err := join(plan, chain(with("resume mount r1/restore")...))
	if err != nil || steps[4].receipt.Verdict != engine.NotRun || steps[3].receipt.Verdict != engine.Pass {
		t.Fatalf("%+v, %v", steps, err)
	}
	if l := lost[0]; l.Rollout == nil || *l.Rollout != 1 || l.Slot != "slot-0" || l.After != 5 || !strings.Contains(l.Reason, "r1/restore") {
		t.Errorf("%+v", l)
	}
	if list := counted(chain(with("resume mount r1/restore", "mount")...)); len(list) != 6 || list[4].Event != "resume" || list[5].Step != "mount" {
		t.Errorf("counted: %+v", list)
	}
}

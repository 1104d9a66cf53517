package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// An estimate comes of passed runs of the same workload only, and one above the budget is refused.
func TestBudget(t *testing.T) {
	state := t.TempDir()
	put := func(name, verdict, workload, ended string) {
		dir := filepath.Join(state, "runs", "e", name)
		text := `{"arm":"fake","reset":"restore","verdict":"` + verdict + `","started":"2026-11-30T00:00:00Z","ended":"2026-11-30T` + ended +
			`Z","digests":{"workload":"` + workload + `"},"rollouts":[{},{}]}`
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, record.RecordFile), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	put("failed", "failed", "w", "09:00:00")
	put("other", "passed", "v", "09:00:00")
	e := bench.Experiment{Rollouts: 5, Warmup: 1, Blocks: 2, Budget: &bench.Budget{Time: "2m"}}
	turns := register.Schedule([]string{"fake"}, []string{"restore"}, e)
	try := func() (string, error) {
		var out bytes.Buffer
		_, err := (&runCmd{Out: filepath.Join(state, "runs", "new")}).budget(&globals{State: state, Stderr: &out}, bench.Manifest{Experiment: e}, "w", turns)
		return out.String(), err
	}
	if text, err := try(); err != nil || !strings.Contains(text, "unknown") {
		t.Errorf("%q %v", text, err)
	}
	put("passed", "passed", "w", "00:00:20") // 10 s a rollout, 12 rollouts: 2 minutes
	if text, err := try(); err != nil || !strings.Contains(text, "estimate: 2m0s for 2 runs") {
		t.Errorf("%q %v", text, err)
	}
	e.Budget.Time = "119s"
	if _, err := try(); !errors.Is(err, engine.ErrUsage) || codeOf(err) != codeUsage {
		t.Errorf("%v", err)
	}
}

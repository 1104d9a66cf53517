package gate

import (
	"slices"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Case 25, 26: what a run leaves fails by name, what others do is listed.
func TestCleanup(t *testing.T) {
	foreign := bench.Finding{Verdict: engine.Pass, Subject: "mount /mnt/stick", Text: "is there and was not (foreign)", Have: "vfat"}
	left := bench.Finding{Verdict: engine.Fail, Subject: "process 7", Text: "is there and was not", Have: "criu", Hint: "end it"}
	requireVerdict(t, JudgeCleanup(known1([]bench.Finding{})), engine.Pass)
	requireUnknownReading(t, JudgeCleanup(unknown1[[]bench.Finding]()))
	var never engine.Reading[[]bench.Finding]
	requireVerdict(t, JudgeCleanup(never), engine.VerdictUnknown)

	j := JudgeCleanup(known1([]bench.Finding{foreign}))
	requireVerdict(t, j, engine.Pass)
	if requireFinding(t, j, foreign.Subject) != foreign {
		t.Errorf("a foreign change is not passed on: %+v", j.Findings)
	}
	j = JudgeCleanup(known1([]bench.Finding{foreign, left}))
	requireVerdict(t, j, engine.Fail)
	if requireFinding(t, j, left.Subject) != left {
		t.Errorf("what is left is not passed on: %+v", j.Findings)
	}
	for name, want := range map[string]string{"host-differences": "1", "host-differences-foreign": "1"} {
		if !slices.ContainsFunc(j.Facts, func(f bench.Fact) bool { return f.Name == name && f.Value == want }) {
			t.Errorf("no fact %s %s in %+v", name, want, j.Facts)
		}
	}
	unread := bench.Finding{Verdict: engine.VerdictUnknown, Subject: "firewall nftables", Text: "could not be read", Have: "operation not permitted"}
	requireVerdict(t, JudgeCleanup(known1([]bench.Finding{foreign, unread})), engine.VerdictUnknown)
	left.Verdict = "" // nobody's verdict
	if JudgeCleanup(known1([]bench.Finding{left})).Verdict() != engine.Fail {
		t.Error("a finding without a verdict passes")
	}
}

package steps

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/arms/fake"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The foreign change is in the receipt, and the run passes.
func TestForeignChangesAreListed(t *testing.T) {
	m := workload()
	m.Arms.Fake.Faults = []string{"host-busy"}
	r := execute(t, m, "restore")
	requirePassed(t, r)
	o := r.outcome(t, "gate-cleanup")
	if len(o.Findings) != 1 || o.Findings[0].Subject != "mount /mnt/stick" || o.Findings[0].Verdict != engine.Pass {
		t.Errorf("findings %+v", o.Findings)
	}
}

// What is left counts, and is named, also where the run failed for another reason.
func TestCleanupOfARunThatFailed(t *testing.T) {
	for _, fault := range []string{"mount-refused", "provision-error", "restore-hang", "token-lost"} {
		m := workload()
		m.Arms.Fake.Faults = []string{fault}
		if o := execute(t, m, "restore").outcome(t, "gate-cleanup"); o.Verdict != engine.Pass {
			t.Errorf("%s: what a failed step made is left when the gate looks: %+v", fault, o)
		}
	}
	m := workload()
	m.Arms.Fake.Faults = []string{"token-lost", "leaves-process"}
	r := execute(t, m, "restore")
	for _, step := range []string{"r0/gate-live", "gate-cleanup"} {
		if o := r.outcome(t, step); o.Verdict != engine.Fail {
			t.Errorf("step %s: %+v", step, o)
		}
	}
}

// A folder that a release leaves is named by the gate, beside the release's own error.
func TestCleanupNamesWhatAReleaseLeft(t *testing.T) {
	m := workload()
	m.Arms.Fake.Faults = []string{"release-error"}
	o := execute(t, m, "cold").outcome(t, "gate-cleanup")
	if o.Verdict != engine.Fail || !slices.ContainsFunc(o.Findings, func(f bench.Finding) bool { return strings.HasPrefix(f.Subject, "file slot-0.") }) {
		t.Errorf("%+v", o)
	}
}

// A run that ends before it has begun leaves nothing, and knows nothing of the host.
func TestInterruptedBeforehand(t *testing.T) {
	r := executeUntil(t, workload(), "restore", beforehand)
	if r.result.Verdict != engine.RunBlocked {
		t.Errorf("the run %s", r.result.Verdict)
	}
	for step, want := range map[string]bench.Verdict{"survey": engine.NotRun, "mount": engine.NotRun, "release/root": engine.Pass, "gate-cleanup": engine.VerdictUnknown} {
		if o := r.outcome(t, step); o.Verdict != want {
			t.Errorf("step %s: %+v, want %s", step, o, want)
		}
	}
	requireReleased(t, r)
}

// blind is an arm that looks at nothing and does not declare it.
type blind struct{ engine.Arm }

func TestArmThatSurveysNothing(t *testing.T) {
	arm, err := fake.New(bench.FakeSettings{})
	if err != nil {
		t.Fatal(err)
	}
	r := executeOn(t, blind{arm}, workload(), "restore", 0)
	if r.result.Verdict != engine.RunBlocked {
		t.Errorf("the run %s: %s", r.result.Verdict, r.result.Reason)
	}
	for step, want := range map[string]bench.Verdict{"survey": engine.VerdictUnknown, "mount": engine.NotRun, "gate-cleanup": engine.VerdictUnknown} {
		if o := r.outcome(t, step); o.Verdict != want {
			t.Errorf("step %s: %+v, want %s", step, o, want)
		}
	}
	requireReleased(t, r)
}

// late is an arm whose host settles only after some looks.
type late struct {
	*fake.Arm
	looks []error // of each look; the last one for all that follow, errLeft for something that is left
}

var errLeft = errors.New("left")

func (a *late) Survey(ctx context.Context, ws *engine.Workspace) (engine.Survey, error) {
	s, err := a.Arm.Survey(ctx, ws)
	return &lateSurvey{s, a.looks}, err
}

type lateSurvey struct {
	engine.Survey
	looks []error
}

func (s *lateSurvey) Compare(ctx context.Context) ([]bench.Finding, error) {
	now := s.looks[0]
	if len(s.looks) > 1 {
		s.looks = s.looks[1:]
	}
	if errors.Is(now, errLeft) {
		return []bench.Finding{{Verdict: engine.Fail, Subject: "loop device loop7", Text: "is there and was not", Have: "image"}}, nil
	}
	if now != nil {
		return nil, now
	}
	return s.Survey.Compare(ctx)
}

// The kernel may take its time; what stays fails, and what cannot be read blocks.
func TestHostSettles(t *testing.T) {
	unread := errors.New("it changes too fast")
	for name, c := range map[string]struct {
		looks   []error
		want    bench.Verdict
		subject string
	}{
		"at once":   {[]error{nil}, engine.Pass, ""},
		"late":      {[]error{errLeft, unread, errLeft, nil}, engine.Pass, ""},
		"never":     {[]error{errLeft}, engine.Fail, "loop device loop7"},
		"not known": {[]error{errLeft, unread}, engine.VerdictUnknown, "host"},
	} {
		arm, err := fake.New(bench.FakeSettings{})
		if err != nil {
			t.Fatal(err)
		}
		o := executeOn(t, &late{arm, c.looks}, workload(), "cold", 0).outcome(t, "gate-cleanup")
		if o.Verdict != c.want || c.subject != "" && (len(o.Findings) == 0 || o.Findings[0].Subject != c.subject) {
			t.Errorf("%s: %+v, want %s %s", name, o, c.want, c.subject)
		}
	}
}

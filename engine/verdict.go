package engine

import "github.com/drumsbench/drumsbench/schemas/bench"

// Verdicts of gates and steps.
const (
	Pass           bench.Verdict = "pass"
	Fail           bench.Verdict = "fail"
	VerdictUnknown bench.Verdict = "unknown"
	NotRun         bench.Verdict = "not_run"
	NotApplicable  bench.Verdict = "not_applicable"
	Review         bench.Verdict = "review_required"
)

// Verdicts of runs.
const (
	RunPassed  bench.RunVerdict = "passed"
	RunFailed  bench.RunVerdict = "failed"
	RunBlocked bench.RunVerdict = "blocked"
	RunReview  bench.RunVerdict = "review"
)

// severity orders verdicts: the worst finding decides.
//
//	pass < not_applicable < review_required < not_run < unknown < fail
var severity = map[bench.Verdict]int{Pass: 0, NotApplicable: 1, Review: 2, NotRun: 3, VerdictUnknown: 4, Fail: 5}

// Worst returns the verdict that decides among vs; Pass when there is none.
func Worst(vs ...bench.Verdict) bench.Verdict {
	w := Pass
	for _, v := range vs {
		s, ok := severity[v]
		if !ok {
			return Fail // a verdict that nobody defined is never a pass
		}
		if s > severity[w] {
			w = v
		}
	}
	return w
}

// Outcome is one step's contribution to the run's verdict.
type Outcome struct {
	Verdict bench.Verdict
	// Optional: the arm declares that it lacks what the step needs, so not_applicable is allowed.
	Optional bool
}

// RunVerdict decides a run, first line that holds:
//
//	any fail                                  failed   exit 1
//	any unknown, or a not_run, or a
//	not_applicable that no arm declares       blocked  exit 3
//	any review_required                       review   exit 4
//	otherwise                                 passed   exit 0
//
// A run without a step proves nothing and is blocked.
func RunVerdict(outcomes []Outcome) bench.RunVerdict {
	v := RunPassed
	if len(outcomes) == 0 {
		return RunBlocked
	}
	for _, o := range outcomes {
		switch o.Verdict {
		case Pass:
		case NotApplicable:
			if !o.Optional {
				v = RunBlocked
			}
		case Review:
			if v == RunPassed {
				v = RunReview
			}
		case VerdictUnknown, NotRun:
			v = RunBlocked
		default:
			return RunFailed
		}
	}
	return v
}

// ExitCode of a run verdict. Wrong usage is 2 and is not a verdict.
func ExitCode(v bench.RunVerdict) int {
	switch v {
	case RunPassed:
		return 0
	case RunBlocked:
		return 3
	case RunReview:
		return 4
	}
	return 1
}

// Judgement is a gate's answer: findings, of which the worst decides.
type Judgement struct {
	Findings []bench.Finding
	Facts    []bench.Fact
	// Evidence that the gate looked at, by name; stored by digest.
	Evidence map[string][]byte
}

// Verdict of the judgement; without a finding it passes.
func (j Judgement) Verdict() bench.Verdict {
	vs := make([]bench.Verdict, len(j.Findings))
	for i, f := range j.Findings {
		vs[i] = f.Verdict
	}
	return Worst(vs...)
}

// Add appends a finding.
func (j *Judgement) Add(v bench.Verdict, subject, text string) *bench.Finding {
	j.Findings = append(j.Findings, bench.Finding{Verdict: v, Subject: subject, Text: text})
	return &j.Findings[len(j.Findings)-1]
}

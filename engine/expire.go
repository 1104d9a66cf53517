package engine

import (
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// ReasonExpired is the reason of a run whose time was over before each rollout had begun.
const ReasonExpired = "the time budget is over: no rollout begins any more"

// expire leaves out every rollout that has not begun, and what needs one of its
// steps, once Until is over. Not while a measurement window is open or about to:
// nobody begins a rollout meanwhile, and the window stays quiet.
func (r *run) expire() {
	if r.expired || r.stopped != "" || r.Until.IsZero() || r.open >= 0 || r.opening >= 0 || time.Now().Before(r.Until) {
		return
	}
	r.expired = true
	if r.start.After(r.Until) {
		r.stop(NotRun, ReasonExpired)
		return
	}
	begun := map[int64]bool{}
	for i, s := range r.plan.Steps {
		if s.Rollout != nil && !r.unstarted(i) && r.outcomes[i].Verdict != NotRun {
			begun[*s.Rollout] = true
		}
	}
	left := map[int]bool{}
	for i, s := range r.plan.Steps { // in topological order: needs come first
		if s.Release || !r.unstarted(i) {
			continue
		}
		out := s.Rollout != nil && !begun[*s.Rollout]
		for _, from := range r.plan.nodes[i].needs {
			out = out || left[from]
		}
		if out {
			left[i] = true
			r.leaveOut(i, ReasonExpired)
		}
	}
	if len(left) > 0 {
		r.findings = append(r.findings, bench.Finding{Verdict: NotRun, Subject: "run", Text: ReasonExpired,
			Hint: "raise experiment.budget.time, or ask for fewer rollouts"})
	}
}

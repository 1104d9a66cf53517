package engine

import (
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// EventKind says what happened.
type EventKind string

// The kinds of events.
const (
	RunStarted   EventKind = "run_started"
	StepStarted  EventKind = "step_started"
	StepFinished EventKind = "step_finished"
	WindowOpened EventKind = "window_opened"
	WindowClosed EventKind = "window_closed"
	RunFinished  EventKind = "run_finished"
)

// Event is what a run tells while it runs. It is for people: records are made from receipts.
type Event struct {
	Kind EventKind
	// At is the time since the run's start.
	At time.Duration
	// Done of Total steps are finished.
	Done, Total int
	// Step is set for steps; also for those that were not run.
	Step bench.Step
	// Window by name.
	Window string
	// Verdict, Elapsed, Findings and Failure of a finished step.
	Verdict  bench.Verdict
	Elapsed  time.Duration
	Findings []bench.Finding
	Failure  *bench.Failure
	// Outcome and Reason of a finished run; its own findings are in Findings.
	Outcome bench.RunVerdict
	Reason  string
}

// Progress is told what happens. Event is called from one goroutine and must
// return quickly. From WindowOpened to WindowClosed nothing else is reported,
// and an implementation stays quiet: what happened inside comes right after
// WindowClosed.
type Progress interface{ Event(Event) }

type noProgress struct{}

func (noProgress) Event(Event) {}

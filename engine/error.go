package engine

import (
	"errors"
	"strings"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Sentinels that callers branch on with errors.Is.
var (
	// ErrRefused: a precondition does not hold; nothing was changed. A refusal is a fail with a remedy, not a crash.
	ErrRefused = errors.New("refused")
	// ErrUnknown: what was needed could not be learnt. It blocks.
	ErrUnknown = errors.New("unknown")
	// ErrDeadline: the step's time was up; what it started was ended.
	ErrDeadline = errors.New("deadline exceeded")
	// ErrDead: the slot or its guest server is gone.
	ErrDead = errors.New("slot is dead")
	// ErrUsage: the caller's words are wrong: exit code 2.
	ErrUsage = errors.New("usage")
)

// Error is the one typed error of the project: what failed, why, what to do and where the log is.
type Error struct {
	// Op is verb and object: "restore checkpoint".
	Op string
	// Step and Arm are filled in by the executor.
	Step, Arm string
	// Log is the path of the log that has more.
	Log string
	// Hint is the remedy.
	Hint string
	// Err is the cause; wrap a sentinel to let callers branch.
	Err error
	// Findings that travel with a refusal.
	Findings []bench.Finding
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// Within returns every *Error in err's tree, outermost first. An error that was
// wrapped on its way up keeps its remedy and its findings: ask all of them, not
// only the one that errors.As finds.
func Within(err error) (list []*Error) {
	if e, ok := err.(*Error); ok {
		list = append(list, e)
	}
	switch u := err.(type) {
	case interface{ Unwrap() error }:
		if inner := u.Unwrap(); inner != nil {
			list = append(list, Within(inner)...)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range u.Unwrap() {
			list = append(list, Within(inner)...)
		}
	}
	return list
}

// Failure is the error as the record keeps it; nil for nil. Op is the outermost
// error's; hint and log are the first that are there.
func Failure(err error) *bench.Failure {
	if err == nil {
		return nil
	}
	f := &bench.Failure{Op: "step", Text: err.Error()}
	for i, e := range Within(err) {
		if i == 0 {
			f.Op = e.Op
		}
		if f.Hint == "" {
			f.Hint = e.Hint
		}
		if f.Log == "" {
			f.Log = e.Log
		}
	}
	for _, c := range causes {
		if errors.Is(err, c.err) {
			f.Cause = c.name
			break
		}
	}
	return f
}

// causes are the sentinels that a record tells apart, the one that decides first.
var causes = []struct {
	err  error
	name string
}{{ErrDead, CauseDead}, {ErrRefused, CauseRefused}, {ErrUnknown, CauseUnknown}, {ErrDeadline, CauseDeadline}}

// Causes of a failure as the record names them.
const (
	CauseDead        = "dead"
	CauseRefused     = "refused"
	CauseUnknown     = "unknown"
	CauseDeadline    = "deadline"
	CauseInterrupted = "interrupted" // given by the executor
)

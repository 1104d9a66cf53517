package engine

import (
	"errors"
	"fmt"
	"testing"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A refusal that travels up through other errors keeps its remedy, log and findings.
func TestFailureKeepsWhatWrappedErrorsKnow(t *testing.T) {
	finding := bench.Finding{Verdict: Fail, Subject: "mount", Text: "is foreign"}
	inner := &Error{Op: "dump slot", Err: ErrRefused, Hint: "unmount it", Findings: []bench.Finding{finding}}
	outer := &Error{Op: "dump", Log: "/dump.log", Err: errors.Join(fmt.Errorf("network-lock: %w", inner), errors.New("other"))}
	f := Failure(outer)
	if f.Op != "dump" || f.Hint != "unmount it" || f.Log != "/dump.log" || f.Cause != CauseRefused {
		t.Errorf("%+v", f)
	}
	var found []bench.Finding
	for _, e := range Within(outer) {
		found = append(found, e.Findings...)
	}
	if len(found) != 1 || found[0] != finding {
		t.Errorf("findings %+v", found)
	}
	if Failure(nil) != nil || Within(nil) != nil {
		t.Error("nil is no failure")
	}
}

package report

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Types of in-toto's attestation framework, v1, and of the media that DSSE wraps
// it in (in-toto/attestation, spec/v1/statement.md, spec/predicates/test-result.md).
const (
	StatementMedia  = "application/vnd.in-toto+json"
	statementType   = "https://in-toto.io/Statement/v1"
	testResultType  = "https://in-toto.io/attestation/test-result/v0.1"
	resultPassed    = "PASSED"
	resultNotPassed = "FAILED"
)

// resource is in-toto's ResourceDescriptor: a file by its name and digest.
type resource struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// statement is in-toto's Statement with the predicate of a test result.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     testResult `json:"predicate"`
}

type testResult struct {
	Result        string     `json:"result"`
	Configuration []resource `json:"configuration"`
	Passed        []string   `json:"passedTests"`
	Warned        []string   `json:"warnedTests"`
	Failed        []string   `json:"failedTests"`
}

// Statement is a run as an in-toto test-result statement, in canonical JSON.
// Subject are the image and the guest server, which were tested; configuration are
// the files of the run's directory that say how and what came of it. A test is a
// step of the plan. Result is PASSED for a run that passed and FAILED for all
// others, one that waits for a person or could not learn something included; a test
// passed or failed likewise, by what a person decided where one had to, and a gate
// that is not for the arm is none; they are sorted, since steps end in no fixed
// order. There are no warnings. ErrRefused for a run that is not sound.
func Statement(r *Run) ([]byte, error) {
	const op = "make in-toto statement"
	if len(r.Problems) > 0 {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: the run is not sound: %w", engine.ErrRefused, r.Problems[0]), Hint: "see: drumsbench verify " + r.Dir}
	}
	s := statement{Type: statementType, PredicateType: testResultType}
	file := func(name string, sha bench.SHA256) resource {
		return resource{name, map[string]string{"sha256": string(sha)}}
	}
	s.Subject = []resource{file(r.Manifest.Image.File, r.Manifest.Image.Sha256), file("guestd", r.Manifest.Guest.Server.Sha256)}
	s.Predicate = testResult{Result: resultNotPassed, Passed: []string{}, Warned: []string{}, Failed: []string{}}
	if r.Record.Verdict == engine.RunPassed {
		s.Predicate.Result = resultPassed
	}
	for _, name := range []string{record.ManifestFile, record.PlanFile, record.HostFile, record.EventsFile, record.ReviewsFile, record.RecordFile} {
		data, err := record.ReadRegular(filepath.Join(r.Dir, name))
		if os.IsNotExist(err) && name == record.ReviewsFile {
			continue
		}
		if err != nil {
			return nil, &engine.Error{Op: op, Err: err}
		}
		s.Predicate.Configuration = append(s.Predicate.Configuration, file(name, canonical.Sum(data)))
	}
	for _, x := range r.Receipts {
		if x.Event != "step" || x.Verdict == engine.NotApplicable {
			continue
		}
		passed := x.Verdict == engine.Pass || x.Verdict == engine.Review && slices.ContainsFunc(r.Reviews, func(v bench.Review) bool {
			return v.Receipt == x.Digest && v.Decision == "pass"
		})
		if passed {
			s.Predicate.Passed = append(s.Predicate.Passed, x.Step)
		} else {
			s.Predicate.Failed = append(s.Predicate.Failed, x.Step)
		}
	}
	slices.Sort(s.Predicate.Passed)
	slices.Sort(s.Predicate.Failed)
	data, err := canonical.JSON(s)
	if err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	return data, nil
}

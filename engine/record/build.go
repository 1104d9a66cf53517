package record

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/hashicorp/go-multierror"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Header is what a record says of the run beside what lies in its directory.
type Header struct {
	Run         string
	Arm         string
	Engine      bench.EngineVersion
	Settings    map[string]string
	Tags        map[string]string
	Differences []bench.Difference
}

// headerOf is the header that a record was made with.
func headerOf(r bench.Record) Header {
	return Header{Run: r.Run, Arm: r.Arm, Engine: r.Engine, Settings: r.Settings, Tags: r.Tags, Differences: r.Differences}
}

// Digest is of all but the settings, which have one of their own: run_start
// names both, so that nobody can say afterwards that another arm or another
// program made the numbers.
func (h Header) Digest() (bench.SHA256, error) {
	if h.Tags == nil {
		h.Tags = map[string]string{}
	}
	if h.Differences == nil {
		h.Differences = []bench.Difference{}
	}
	return canonical.Digest(map[string]any{"run": h.Run, "arm": h.Arm, "engine": h.Engine, "tags": h.Tags, "differences": h.Differences})
}

// Build makes the record of a run from its directory: plan, events, host facts
// and ledger as they can be read back. A chain that was changed is an error. A
// run that crashed has a record too: what has no receipt was not run, and the
// run is blocked, or failed if something failed.
//
// Facts of the record are those of the host, then those of steps outside the
// rollouts under "step/fact". The checkpoint is the fact "checkpoint" of the
// step that sealed it, or that opened one of an earlier run.
func Build(dir string, h Header) (bench.Record, error) {
	if err := intact(dir); err != nil {
		return bench.Record{}, err
	}
	return assemble(dir, h, nil)
}

// assemble is Build for a directory that was found intact; until is the digest of the
// last review that counts, empty for none, nil for all there are.
func assemble(dir string, h Header, until *bench.SHA256) (bench.Record, error) {
	var r bench.Record
	in, err := load(dir)
	if err != nil {
		return r, err
	}
	steps, interrupted, err := join(in.plan, in.receipts)
	if err != nil {
		return r, err
	}
	reviewed, err := decided(dir, steps, until)
	if err != nil {
		return r, err
	}
	start := in.receipts[0]
	r = bench.Record{
		ApiVersion: engine.APIVersion, Run: h.Run, Manifest: string(in.manifest.Name), Arm: h.Arm, Reset: in.plan.Reset,
		Started: start.Time, Ended: in.receipts[len(in.receipts)-1].Time, Engine: h.Engine,
		Digests: digests(start, in), Settings: h.Settings, Tags: h.Tags,
		Facts: append(in.host.Facts, resumedFact(in.receipts)...), Differences: h.Differences, Steps: outcomes(steps), Rollouts: rollouts(steps), Interrupted: interrupted,
	}
	if reviewed != "" {
		r.Digests["reviews"] = reviewed
	}
	r.Registration = start.Digests["registration"]
	if r.Differences == nil {
		r.Differences = []bench.Difference{}
	}
	if r.Facts == nil {
		r.Facts = []bench.Fact{}
	}
	for _, s := range steps {
		if s.plan.Rollout != nil {
			continue
		}
		if used := checkpointOf(s.receipt); used != "" {
			r.Checkpoint = used
		}
		for _, f := range s.receipt.Facts {
			f.Name = s.plan.Id + "/" + f.Name
			r.Facts = append(r.Facts, f)
		}
	}
	r.Verdict, r.Reason = verdict(in, steps, r.Steps)
	return r, nil
}

// sealedBy is the digest of the checkpoint's handle, if the receipt is of a dump that made one.
func sealedBy(r bench.Receipt) bench.SHA256 {
	if r.Kind != "dump" {
		return ""
	}
	return checkpointOf(r)
}

// checkpointOf is the digest of the handle of the checkpoint that a step sealed, or opened.
func checkpointOf(r bench.Receipt) (digest bench.SHA256) {
	if r.Event != "step" || r.Kind != "dump" && r.Kind != "checkpoint" {
		return ""
	}
	for _, f := range r.Facts {
		if f.Name == "checkpoint" && f.Known {
			digest = bench.SHA256(f.Value)
		}
	}
	return digest
}

// intact refuses a run directory that was changed after it was written. A crash
// is no change.
func intact(dir string) error {
	problems, err := VerifyChain(dir)
	if err != nil {
		return err
	}
	var errs *multierror.Error
	for _, p := range problems {
		if p.Kind != Torn && p.Kind != Cut {
			errs = multierror.Append(errs, p)
		}
	}
	if errs != nil {
		return &engine.Error{Op: "build record", Err: errs, Hint: "the run directory was changed; run again"}
	}
	return nil
}

// inputs are the files of a run.
type inputs struct {
	manifest bench.Manifest
	plan     bench.Plan
	host     bench.HostFacts
	receipts []bench.Receipt // at least run_start
	last     bench.SHA256    // digest of the last whole line
	ledger   bench.SHA256
}

func load(dir string) (in inputs, err error) {
	for name, v := range map[string]any{ManifestFile: &in.manifest, PlanFile: &in.plan, HostFile: &in.host} {
		data, err := ReadRegular(filepath.Join(dir, name))
		if err == nil {
			err = json.Unmarshal(data, v)
		}
		if err != nil {
			return in, &engine.Error{Op: "build record: read " + name, Err: err}
		}
	}
	_, _, err = eachLine(filepath.Join(dir, EventsFile), func(number int, line []byte) error {
		var r bench.Receipt
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("%s:%d: %w", EventsFile, number, err)
		}
		in.receipts, in.last = append(in.receipts, r), canonical.Sum(line)
		return nil
	})
	if err == nil && (len(in.receipts) == 0 || in.receipts[0].Event != "run_start") {
		err = errors.New("the run has no start")
	}
	if err == nil {
		in.ledger, err = sumFile(filepath.Join(dir, LedgerFile))
	}
	if err != nil {
		return in, &engine.Error{Op: "build record", Err: err}
	}
	return in, nil
}

func sumFile(path string) (bench.SHA256, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return bench.SHA256(hex.EncodeToString(h.Sum(nil))), nil
}

func digests(start bench.Receipt, in inputs) map[string]bench.SHA256 {
	d := map[string]bench.SHA256{"events": in.last, "ledger": in.ledger}
	for name, digest := range start.Digests {
		d[name] = digest
	}
	return d
}

// step is a step of the plan with its receipt.
type step struct {
	plan    bench.Step
	receipt bench.Receipt
	// review is a person's decision; the receipt's verdict is theirs then.
	review *bench.Review
}

// join gives each step of the plan its receipt. A step without one was not run. Of a
// run that was resumed it says what had been interrupted.
func join(plan bench.Plan, receipts []bench.Receipt) ([]step, []bench.Interrupted, error) {
	steps := make([]step, len(plan.Steps))
	index := make(map[string]int, len(steps))
	for i, s := range plan.Steps {
		steps[i].plan = s
		index[s.Id] = i
	}
	var interrupted []bench.Interrupted
	attempt := int64(1)
	for n, r := range receipts {
		if r.Event == "resume" {
			lines, err := resume(steps, index, r, receipts[n-1], attempt) // the first is run_start
			if err != nil {
				return nil, nil, err
			}
			interrupted, attempt = append(interrupted, lines...), attempt+1
		}
		if r.Event != "step" {
			continue
		}
		i, planned := index[r.Step]
		switch {
		case !planned || steps[i].plan.Kind != r.Kind:
			return nil, nil, &engine.Error{Op: "build record", Err: fmt.Errorf("receipt %d is of step %s (%s), which the plan does not have", r.Seq, r.Step, r.Kind)}
		case steps[i].receipt.Event != "":
			return nil, nil, &engine.Error{Op: "build record", Err: fmt.Errorf("receipts %d and %d are both of step %s", steps[i].receipt.Seq, r.Seq, r.Step)}
		}
		steps[i].receipt = r
	}
	for i := range steps {
		if s := &steps[i]; s.receipt.Event == "" {
			s.receipt = bench.Receipt{Event: "step", Step: s.plan.Id, Kind: s.plan.Kind, Verdict: engine.NotRun,
				Findings: []bench.Finding{{Verdict: engine.NotRun, Subject: "run", Text: "the step has no receipt"}}}
		}
	}
	return steps, interrupted, nil
}

func outcomes(steps []step) []bench.StepOutcome {
	list := make([]bench.StepOutcome, len(steps))
	for i, s := range steps {
		list[i] = engine.OutcomeOf(s.receipt)
		list[i].Review = s.review
	}
	return list
}

// badness orders run verdicts.
var badness = map[bench.RunVerdict]int{engine.RunPassed: 0, engine.RunReview: 1, engine.RunBlocked: 2, engine.RunFailed: 3}

// verdict decides the run anew from its steps. What the run said of itself can
// make it worse, never better.
func verdict(in inputs, steps []step, list []bench.StepOutcome) (bench.RunVerdict, string) {
	decided := make([]engine.Outcome, len(steps))
	for i, s := range steps {
		decided[i] = engine.Outcome{Verdict: s.receipt.Verdict, Optional: s.plan.Optional}
	}
	v := engine.RunVerdict(decided)
	end := in.receipts[len(in.receipts)-1]
	if end.Event != "run_end" {
		end = bench.Receipt{Outcome: engine.RunBlocked, Findings: []bench.Finding{{Verdict: engine.NotRun, Subject: "run", Text: "the run did not end: the engine or the host crashed"}}}
	}
	said, known := badness[end.Outcome]
	switch {
	case end.Outcome == engine.RunReview && allReviewed(steps):
		// It waited for people, who have decided.
	case !known:
		v = engine.RunFailed
	case said > badness[v]:
		v = end.Outcome
	}
	reason := engine.Reason(v, end.Findings, list)
	if q := quarantine(steps); q != "" {
		reason = q
	}
	return v, reason
}

// allReviewed: steps waited for people, and none does any more.
func allReviewed(steps []step) bool {
	some := false
	for _, s := range steps {
		if s.receipt.Verdict == engine.Review {
			return false
		}
		some = some || s.review != nil
	}
	return some
}

// quarantine says which control the task failed, if one: nothing that was
// measured on such a task means what it says.
func quarantine(steps []step) string {
	for _, s := range steps {
		if s.plan.Control == "" || s.plan.Kind != "evaluate" || !s.judgedFail() {
			continue
		}
		who := "nobody acted"
		if s.plan.Control == "oracle" {
			who = "the oracle acted"
		}
		return fmt.Sprintf("task quarantined: in the control rollout in which %s, %s", who, s.reason())
	}
	return ""
}

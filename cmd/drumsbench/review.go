package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/sign"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

type reviewCmd struct {
	Path   string `arg:"" name:"run" type:"path" help:"Directory of the run."`
	Step   string `placeholder:"STEP" help:"The step that is decided; not needed where only one waits."`
	Decide string `enum:",pass,fail" default:"" placeholder:"DECISION" help:"What you decide: pass or fail. Without it, what waits is listed."`
	By     string `placeholder:"NAME" help:"Who decides."`
	Reason string `placeholder:"TEXT" help:"Why."`
	Key    string `type:"path" env:"DRUMSBENCH_REVIEW_KEY" placeholder:"FILE" help:"Sign the decision with this key, ed25519 as PKCS#8 in PEM (default $$${env}, where that is set)."`
}

// Help teaches the command.
func (reviewCmd) Help() string {
	return `Lists the steps of a run that wait for a person (review_required), with the files to look at, or takes
a decision on one. A decision needs a name and a reason and is final. It is appended to reviews.jsonl in
the run's directory, a chain that goes on where the run's own ended, and the record is made anew with
it: the run's verdict is failed once anything was failed, passed once everything was passed. The run's
own receipts stay as they are. drumsbench verify checks the decisions like everything else; it cannot
know who typed a name, but says whose key signed a decision. A manifest asks for a person's eyes with
review: {question: "..."}.

  openssl genpkey -algorithm ed25519 -out me.pem; chmod 600 me.pem    a key
  openssl pkey -in me.pem -pubout -out me.pub                         its public part, for drumsbench verify --key

Examples:

  drumsbench review runs/rename/drums-restore
  drumsbench review runs/rename/drums-restore --step r0/gate-screen --decide pass --by "A. Person" --reason "the folder is there"

Exit codes: 0 nothing waits and the run passed, 1 the run failed, or it cannot be reviewed, 2 wrong
usage, 3 the run was blocked, 4 something waits for a decision.`
}

// waitingStep is a step that waits, or waited, for a person.
type waitingStep struct {
	Step     string          `json:"step"`
	Findings []bench.Finding `json:"findings"`
	Evidence []string        `json:"evidence"`
	Review   *bench.Review   `json:"review,omitempty"`
}

// reviewed is what is said of a run.
type reviewed struct {
	Run     string           `json:"run"`
	Verdict bench.RunVerdict `json:"verdict"`
	Reason  string           `json:"reason,omitempty"`
	Steps   []waitingStep    `json:"steps"`
}

// Run lists or decides.
func (c reviewCmd) Run(_ context.Context, g *globals) error {
	switch {
	case !record.IsRun(c.Path):
		return usage(c.Path + ": no run directory")
	case c.Decide == "" && (c.By != "" || c.Reason != "" || c.Step != ""):
		return usage("--step, --by and --reason go with --decide")
	case c.Decide != "" && (strings.TrimSpace(c.By) == "" || strings.TrimSpace(c.Reason) == ""):
		return usage("a decision takes --by NAME and --reason TEXT")
	}
	var key *sign.Key
	if c.Key != "" && c.Decide != "" {
		k, err := sign.ReadKey(c.Key)
		if err != nil {
			return err
		}
		key = &k
	}
	r, behind, err := c.look()
	if err != nil {
		return err
	}
	if behind || c.Decide != "" { // something is written
		release, err := record.Hold(c.Path)
		if err != nil {
			return err
		}
		defer func() { _ = release() }() // the descriptor closes in any case
		if r, behind, err = c.sound(); err != nil {
			return err
		}
		if behind {
			if r, err = record.Renew(c.Path); err != nil {
				return err
			}
		}
	}
	if c.Decide != "" {
		if err := c.one(); err != nil {
			return err
		}
		if r, err = record.Decide(c.Path, c.Step, c.Decide, c.By, c.Reason, key); err != nil {
			return err
		}
	}
	waiting, err := record.ReadWaiting(c.Path)
	if err != nil {
		return err
	}
	out := reviewed{Run: r.Run, Verdict: r.Verdict, Reason: r.Reason, Steps: []waitingStep{}}
	store := record.OpenEvidence(c.Path)
	for _, w := range waiting {
		step := waitingStep{Step: w.Step, Findings: w.Findings, Evidence: []string{}, Review: w.Review}
		for _, e := range w.Evidence {
			step.Evidence = append(step.Evidence, store.Path(e))
		}
		out.Steps = append(out.Steps, step)
	}
	if g.json() {
		err = printJSON(g.Stdout, out)
	} else {
		err = printText(g.Stdout, out.text())
	}
	if err != nil {
		return err
	}
	return exitCode(engine.ExitCode(r.Verdict))
}

// look is sound while nothing is written.
func (c reviewCmd) look() (r bench.Record, behind bool, err error) {
	release, err := record.HoldToRead(c.Path)
	if err != nil {
		return r, false, err
	}
	defer func() { _ = release() }() // the descriptor closes in any case
	return c.sound()
}

// sound is the record of a run whose directory is as it was written. One that a
// crash kept from knowing a decision is behind, and has to be made anew.
func (c reviewCmd) sound() (r bench.Record, behind bool, err error) {
	program, err := engineVersion()
	if err != nil {
		return r, false, err
	}
	report, err := record.VerifyAs(c.Path, program.Sha256)
	if err != nil {
		return r, false, err
	}
	for _, list := range [][]record.Problem{report.Damage, report.Unknown, report.Crash} {
		for _, p := range list {
			if p.File == record.ReviewsFile && (p.Kind == record.Torn || p.Kind == record.Cut) {
				behind = true
				continue
			}
			return r, false, &engine.Error{Op: "review run", Err: fmt.Errorf("%w: the run is not sound: %w", engine.ErrRefused, p), Hint: "see: drumsbench verify " + c.Path}
		}
	}
	if report.Record == nil {
		return r, false, &engine.Error{Op: "review run", Err: fmt.Errorf("%w: it has no record", engine.ErrRefused)}
	}
	return *report.Record, behind, nil
}

// one fills in the step where only one waits.
func (c *reviewCmd) one() error {
	if c.Step != "" {
		return nil
	}
	waiting, err := record.ReadWaiting(c.Path)
	if err != nil {
		return err
	}
	var open []string
	for _, w := range waiting {
		if w.Review == nil {
			open = append(open, w.Step)
		}
	}
	switch len(open) {
	case 0:
		return &engine.Error{Op: "decide review", Err: fmt.Errorf("%w: no step waits for a review", engine.ErrRefused)}
	case 1:
		c.Step = open[0]
		return nil
	}
	return usage("more than one step waits, name one with --step: " + strings.Join(open, ", "))
}

func (r reviewed) text() string {
	var b strings.Builder
	open := 0
	for _, s := range r.Steps {
		if s.Review != nil {
			signed := "not signed"
			if s.Review.Signature != nil {
				signed = fmt.Sprintf("signed by key %.12s", s.Review.Signature.Key)
			}
			fmt.Fprintf(&b, "%s: %s, decided by %s at %s, %s: %s\n", terminal.Line(s.Step), s.Review.Decision, terminal.Line(s.Review.By), s.Review.Time, signed, terminal.Line(s.Review.Reason))
			continue
		}
		open++
		fmt.Fprintf(&b, "%s: waits\n", terminal.Line(s.Step))
		for _, f := range s.Findings {
			fmt.Fprintf(&b, "  %s\n", terminal.Line(findingLine(f)))
		}
		for _, e := range s.Evidence {
			fmt.Fprintf(&b, "  look at %s\n", filepath.Clean(e))
		}
	}
	fmt.Fprintf(&b, "%s: %s", terminal.Line(r.Run), r.Verdict)
	if r.Reason != "" {
		fmt.Fprintf(&b, ": %s", terminal.Line(r.Reason))
	}
	if len(r.Steps) == 0 {
		b.WriteString("; no step of it asked for a review")
	} else {
		fmt.Fprintf(&b, "; %d of %s wait for a decision", open, count(len(r.Steps), "step"))
	}
	return b.String() + "\n"
}

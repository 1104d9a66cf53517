package steps

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Facts of an evaluate step.
const (
	FactScore = "score"
	// FactClosure is the digest of what the checker stands on in the guest; FactClosureFiles how much that is.
	FactClosure      = "checker.closure"
	FactClosureFiles = "checker.closure-files"
	// FactClosureHost says whether the host sees the same files.
	FactClosureHost = "checker.closure-host"
	// FactResolved is the file that was run.
	FactResolved = "checker.resolved"
	FactProgram  = "checker.program"
	// FactSubstitute is one declared substitution, "what: with: why"; FactPolicySubstitute the policy's.
	FactSubstitute       = "checker.substitute"
	FactPolicySubstitute = "policy.substitute"
)

// Evaluate runs the checker. Its exit status is the score; anything but the
// manifest's two statuses is no score at all. before is, after the act, the
// evaluation before it; before the act it is that of the run's first rollout, the
// zero Promise where this is it. What the checker stands on must be what it was
// then, or the rollout is contaminated and there is no score.
//
//	the copy of the program is not the pinned one               fail, refused
//	nobody answers, time is up, a signal, another status        unknown
//	the host's view of the slot's files could not be had        unknown
//	a result file is missing, a substitution shows              unknown
//	what the checker stands on changed since before             fail, no score: contamination
//	the control's score is not what it must be                  fail, with the score
func Evaluate(b *engine.Builder, at At, slot engine.Promise[engine.Slot], before engine.Promise[engine.Score], p bench.EvaluateParams, after ...engine.Input) engine.Promise[engine.Score] {
	in := append([]engine.Input{engine.Use(slot), engine.Read(before)}, after...)
	limit := duration(string(p.Checker.Timeout)) + guest.CheckTime + slack
	if p.Display != nil {
		limit += pictureLimit
	}
	return engine.Add[engine.Score](b, at.spec(KindEvaluate, p, limit), in...)
}

var bindEvaluate = engine.Bind(KindEvaluate, func(ctx context.Context, x *engine.Exec, p bench.EvaluateParams) (engine.Score, error) {
	slot, before := engine.In[engine.Slot](x, 0), engine.In[engine.Score](x, 1)
	e := evaluation{x: x, p: p, c: dial(slot, p.Port)}
	for _, s := range p.Checker.Substitutes {
		x.Fact(substitute(FactSubstitute, s))
	}
	if err := picture(ctx, x, e.c, p); err != nil {
		return engine.Score{}, err
	}
	checked, err := e.run(ctx)
	if err != nil {
		return engine.Score{}, err
	}
	now, late, err := e.closures(checked)
	if err != nil {
		return engine.Score{}, err
	}
	var changed []bench.Finding
	if p.When == "before" && before.Closure != nil {
		// Of byte code that python wrote in the first rollout none is here yet.
		changed = closureChanges(withCaches(before.Closure, now), withCaches(now, before.Closure), sinceFirst)
	}
	if p.When == "after" {
		changed = closureChanges(before.Closure, now, sinceAct)
		if len(changed) == 0 { // nothing of what was there may change while the checker runs either
			changed = closureChanges(withCaches(now, late), late, sinceAct)
		}
		if len(changed) == 0 {
			if changed, err = e.host(ctx, slot, checked); err != nil {
				return engine.Score{}, err
			}
		}
	}
	if len(changed) > 0 {
		x.Judge(engine.Judgement{Findings: changed})
		return engine.Score{}, nil
	}
	if p.When == "after" {
		x.Fact(slot.Observe(ctx, engine.AspectStorage).Storage.Fact(engine.FactSlotStorage))
		if err := e.results(ctx); err != nil {
			return engine.Score{}, err
		}
	}
	value, err := e.score(checked)
	if err != nil {
		return engine.Score{}, err
	}
	x.Fact(bench.Fact{Name: FactScore, Known: true, Value: fmt.Sprintf("%.1f", value), Source: "checker", View: engine.ViewGuest})
	if p.Expect != nil && value != *p.Expect {
		var j engine.Judgement
		f := j.Add(engine.Fail, "score "+p.When, "the control did not give the score that it must")
		f.Want, f.Have = fmt.Sprintf("%.1f", *p.Expect), fmt.Sprintf("%.1f", value)
		x.Judge(j)
	}
	return engine.Score{Value: value, Closure: late}, nil
})

// evaluation is one run of a checker.
type evaluation struct {
	x *engine.Exec
	p bench.EvaluateParams
	c *guest.Client
}

const opChecker = "run checker"

// noScore is an error that makes the score unknown.
func noScore(format string, args ...any) error {
	return &engine.Error{Op: opChecker, Err: fmt.Errorf("%w: %s", engine.ErrUnknown, fmt.Sprintf(format, args...))}
}

// run puts the checker's program into the slot, runs it and keeps what it said.
func (e *evaluation) run(ctx context.Context) (guest.Checked, error) {
	c := e.p.Checker
	q := guest.Check{Exec: c.Exec, Timeout: duration(string(c.Timeout))}
	for _, f := range c.Files {
		q.Paths = append(q.Paths, string(f))
	}
	if c.Program != nil {
		data, err := engine.ReadPinned(e.x.Workspace().Manifest, *c.Program, guest.MaxProgram)
		if err != nil {
			return guest.Checked{}, &engine.Error{Op: opChecker, Err: err}
		}
		q.Name, q.Program = filepath.Base(c.Program.File), data
		e.x.Fact(bench.Fact{Name: FactProgram, Known: true, Value: string(c.Program.Sha256), Source: "the copy that is run", View: engine.ViewHost})
	}
	r, err := e.c.Check(ctx, q)
	if err != nil {
		return r, &engine.Error{Op: opChecker, Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
	}
	if c.Program != nil {
		for _, list := range [][]guest.ClosureEntry{r.Before, r.After} {
			if !slices.ContainsFunc(list, func(entry guest.ClosureEntry) bool {
				return entry.Path == guest.ProgramPlace+"/"+q.Name && entry.Sha256 == c.Program.Sha256
			}) && e.p.When == "before" {
				return r, noScore("the copy of %s in the guest was changed while it ran", c.Program.File)
			}
		}
	}
	e.x.Fact(bench.Fact{Name: FactResolved, Known: r.Resolved != "", Value: r.Resolved, Source: "guest server", View: engine.ViewGuest})
	return r, keepOutput(e.x, "checker "+e.p.When, r.Result)
}

// results requires the files without which the checker cannot judge.
func (e *evaluation) results(ctx context.Context) error {
	for _, path := range e.p.Checker.Results {
		// One byte is enough to see that it is there; a larger file says so too.
		if _, err := e.c.ReadFile(ctx, string(path), 1); err != nil && !errors.Is(err, guest.ErrTooLarge) {
			return &engine.Error{Op: opChecker, Err: fmt.Errorf("%w: the result file %s: %w", engine.ErrUnknown, path, err),
				Hint: "checker.results are files that the checker cannot judge without; one that is missing is no 0"}
		}
	}
	return nil
}

// score is what the checker said.
func (e *evaluation) score(r guest.Checked) (float64, error) {
	c := e.p.Checker
	switch {
	case r.Resolved == "":
		return 0, noScore("the program %s is not in the guest", c.Exec[0])
	case r.TimedOut:
		return 0, noScore("timed out after %s", c.Timeout)
	case r.Signalled:
		return 0, noScore("ended by a signal")
	case r.Exit == 126 || r.Exit == 127:
		return 0, noScore("exit status %d: a shell could not run a program: %s", r.Exit, tail(r.Stderr))
	}
	if shown := substitutionShown(r.Result, c); shown != "" {
		return 0, &engine.Error{Op: opChecker, Err: fmt.Errorf("%w: a substitution that the manifest does not declare: %s", engine.ErrUnknown, shown),
			Hint: "put what is missing into the image, or declare what stands in its place under checker.substitutes"}
	}
	if r.Exit == 1 && exception.Match(r.Stderr) {
		return 0, noScore("it ended in an exception: %s", tail(r.Stderr))
	}
	switch int64(r.Exit) {
	case c.Success.Exit:
		return 1, nil
	case c.Failure.Exit:
		return 0, nil
	}
	return 0, &engine.Error{Op: opChecker, Err: fmt.Errorf("%w: exit status %d is no score: %s", engine.ErrUnknown, r.Exit, tail(r.Stderr)),
		Hint: fmt.Sprintf("a checker exits with %d for success and %d for failure; anything else means that it could not tell", c.Success.Exit, c.Failure.Exit)}
}

// substitute is a declared substitution as a fact.
func substitute(name string, s bench.Substitute) bench.Fact {
	return bench.Fact{Name: name, Known: true, Value: strings.Join([]string{s.What, s.With, s.Why}, ": "), Source: "manifest"}
}

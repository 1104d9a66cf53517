package report

import (
	"fmt"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/markdown"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Judge judges the experiments that the runs belong to, and those that planned
// names and of which there is no run; known are registrations that may amend any
// of them, and starts of their runs. Runs without a record count too: they were
// begun. From then on a run's state is what its experiment makes of it.
func (in *Input) Judge(known register.Known, planned []register.Registered, o compare.Options) {
	var runs []register.Run
	var lost []register.Lost
	for _, n := range in.None {
		if n.Lost != nil {
			lost = append(lost, *n.Lost)
		}
	}
	for _, r := range in.Runs {
		if r.Registered == nil {
			if l := register.LostIn(r.Dir, "its copy of the registration is not the one that it names"); l != nil {
				lost = append(lost, *l)
			}
			continue
		}
		one := register.Run{Run: compare.Run{Dir: r.Dir, Record: r.Record, Manifest: r.Manifest, Plan: r.Plan, Steps: map[string]bench.Receipt{}},
			Registered: *r.Registered, Unsound: !r.Sound()}
		for _, receipt := range r.Receipts {
			if receipt.Event == "step" {
				one.Steps[receipt.Step] = receipt.Receipt
			}
		}
		runs = append(runs, one)
	}
	in.Experiments = register.Judge(runs, lost, known, planned, o)
	for _, r := range in.Runs {
		if r.Registered == nil {
			continue
		}
		for i, e := range in.Experiments.Experiments {
			if e.Registration == r.Registered.First() {
				r.Experiment = &in.Experiments.Experiments[i]
			}
		}
	}
}

// registration reads the one that the run belongs to. One that was not made by a
// program of this project, or was changed before the run, makes the run unsound.
func (r *Run) registration() {
	reg, belongs, err := register.Of(r.Dir, r.Record)
	switch {
	case err != nil:
		r.Problems = append(r.Problems, record.Problem{Kind: record.Wrong, File: record.RegistrationFile, Text: strings.ReplaceAll(err.Error(), r.Dir+"/", "")})
	case belongs:
		r.Registered = &reg
	}
}

// standing of a run in its experiment; nil for one that belongs to none.
type standing struct {
	Experiment experimentView
	// Own is the registration that the run was started under.
	Own    bench.SHA256
	Missed []register.Line
}

// experimentView is an experiment as the templates see it.
type experimentView struct {
	bench.JudgedExperiment
	ID         string
	Judgements []judgementView
}

type judgementView struct {
	Title, Note string
	Digest      bench.SHA256
	Verdict     string
	Bars        []register.Line
}

func seeExperiment(e bench.JudgedExperiment) experimentView {
	v := experimentView{JudgedExperiment: e, ID: "experiment-" + plain(string(e.Manifest)) + fmt.Sprintf("-%.8s", e.Registration)}
	for i, j := range e.Judgements {
		one := judgementView{Title: "Registration", Digest: j.Registration, Verdict: string(j.Verdict),
			Note: strings.Replace(string(j.Registered), "T", " ", 1)[:min(19, len(j.Registered))] + " UTC" + register.After(j, e)}
		if i > 0 {
			one.Title = fmt.Sprintf("Amendment %d", i)
		}
		for _, b := range j.Bars {
			one.Bars = append(one.Bars, register.LineOf(b))
		}
		if e.State == register.Planned {
			one.Verdict = register.Planned
			for k := range one.Bars {
				one.Bars[k].Verdict, one.Bars[k].Why = register.Planned, ""
			}
		}
		v.Judgements = append(v.Judgements, one)
	}
	return v
}

func (r *Run) standing() *standing {
	if r.Experiment == nil {
		return nil
	}
	s := &standing{Experiment: seeExperiment(*r.Experiment), Own: r.Registered.Digest}
	_, missed := register.Standing(*r.Experiment, r.Record)
	for _, b := range missed {
		s.Missed = append(s.Missed, register.LineOf(b))
	}
	return s
}

// markdown of the experiments, as a part of the report's.
func experimentsMarkdown(b *strings.Builder, list []experimentView, line func(...string)) {
	if len(list) == 0 {
		return
	}
	b.WriteString("\n## Experiments\n")
	for _, e := range list {
		fmt.Fprintf(b, "\n### %s: %s\n\n", markdown.Escape(string(e.Manifest)), e.State)
		for _, r := range e.Runs {
			fmt.Fprintf(b, "- run %s: %s %s, %s\n", markdown.Escape(r.Run), markdown.Escape(r.Arm), r.Reset, r.Verdict)
		}
		for _, r := range e.Reasons {
			fmt.Fprintf(b, "- not verified: %s\n", markdown.Escape(r))
		}
		for _, n := range e.Notes {
			fmt.Fprintf(b, "- note: %s\n", markdown.Escape(n))
		}
		for _, j := range e.Judgements {
			fmt.Fprintf(b, "\n%s %s, %s: %s\n\n| Bar | Asked | Verdict | Value | 95%% interval | n | Why |\n| --- | --- | --- | ---: | --- | ---: | --- |\n", j.Title, j.Digest, markdown.Escape(j.Note), markdown.Escape(j.Verdict))
			for _, l := range j.Bars {
				line(l.Name, l.Asked, l.Verdict, l.Value, l.Interval, l.N, l.Why)
			}
		}
	}
}

// junitExperiments: a suite for each experiment, a case for each bar of each registration.
func junitExperiments(list []experimentView) (suites []junitSuite) {
	for _, e := range list {
		s := junitSuite{Name: terminal.Line("experiment " + string(e.Manifest))}
		for _, j := range e.Judgements {
			for _, l := range j.Bars {
				c := junitCase{Name: terminal.Line(l.Name + ": " + l.Asked), Class: terminal.Line(fmt.Sprintf("%s %.12s", j.Title, j.Digest))}
				why := &junitWhy{terminal.Line(strings.TrimSuffix(l.Verdict+": "+l.Why, ": "))}
				switch l.Verdict {
				case string(register.Pass):
				case string(register.Fail):
					c.Failure = why
					s.Failures++
				case register.Planned:
					c.Skipped = why
					s.Skipped++
				default:
					c.Error = why
					s.Errors++
				}
				s.Tests++
				s.Cases = append(s.Cases, c)
			}
		}
		suites = append(suites, s)
	}
	return suites
}

// stateOf computes the state of a run by its verdict, by whether its directory was
// found sound, and by the experiment that it belongs to, nil for none.
func stateOf(r bench.Record, sound bool, e *bench.JudgedExperiment) State {
	state := StateOf(r.Verdict, sound)
	if state == Failed || e == nil {
		return state
	}
	standing, missed := register.Standing(*e, r)
	if len(missed) == 0 && r.Verdict != engine.RunPassed {
		return Preliminary
	}
	return State(standing)
}

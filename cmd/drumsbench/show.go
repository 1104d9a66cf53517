package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/density"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

type showCmd struct {
	Brief    bool     `help:"The tables alone, without the reasons of runs that did not pass."`
	Gates    bool     `help:"How often each gate passed, instead of the tables."`
	Pictures bool     `help:"The files with the screen before and after each rollout's act, instead of the tables."`
	Density  bool     `help:"What many slots at once take and give, of the runs of a sweep and of sustained windows, instead of the tables; -o json, md or csv."`
	Host     bool     `help:"What the host could do and was busy with, before and after each run, instead of the tables."`
	Needs    bool     `help:"What each run needed of the host (programs, packages, privileges) and stored there, instead of the tables."`
	Profile  bool     `help:"Where the time of the resets went, part by part with its owner, instead of the tables."`
	Rollout  []int64  `placeholder:"NUMBER" help:"With --pictures: of these rollouts alone."`
	Runs     []string `arg:"" name:"run" type:"path" help:"Run directories, or folders of them."`
}

// Help teaches the command.
func (showCmd) Help() string {
	return `Prints tables of runs, made from their records and from nothing else: verdict, gates, controls,
scores and memory; then, of runs that passed, the clocks of the resets. Each run's directory is verified
first, as drumsbench verify does: one that is not sound, or did not pass, shows its failure and no
number. Controls, the rollouts in which nobody or the oracle acts, are shown by their scores and give
no other number. A 95th percentile takes 20 rollouts; a restore stands beside a cold start only where
drumsbench compare allows it.

Examples:

  drumsbench show /var/lib/drumsbench/runs/*
  drumsbench show --gates runs/rename-20261201T101500.000
  drumsbench show --profile runs/rename-20261201T101500.000
  drumsbench show --pictures runs/rename-20261201T101500.000
  drumsbench show --density -o md runs/density-20261201T101500.000
  drumsbench show --host runs/density-20261201T101500.000
  drumsbench show --needs runs/density-20261201T101500.000

Exit codes: 0 printed, 1 a record or a picture cannot be read, 2 wrong usage, 3 a run is not sound: with -o json, --gates,
--profile, --pictures, --density, --host and --needs nothing is printed then.`
}

// Run prints the tables.
func (c showCmd) Run(ctx context.Context, g *globals) error {
	asked := 0
	for _, on := range []bool{c.Gates, c.Profile, c.Pictures, c.Density, c.Host, c.Needs} {
		if on {
			asked++
		}
	}
	switch {
	case asked > 1:
		return usage("one of --gates, --profile, --pictures, --density, --host and --needs")
	case !c.Density && (g.Output == "md" || g.Output == "csv"):
		return usage("-o " + g.Output + " is of --density")
	case len(c.Rollout) > 0 && !c.Pictures:
		return usage("--rollout is of --pictures")
	}
	dirs, err := runDirs(c.Runs)
	if err != nil {
		return err
	}
	dirs = slices.DeleteFunc(dirs, handOnly)
	runs, err := readRuns(ctx, dirs)
	if err != nil {
		return err
	}
	if g.json() || asked > 0 { // what has no place for a word beside it is not said of a run that cannot be believed
		for _, r := range runs {
			if r.state.State != runSound {
				return unsoundFor("show runs", r.state)
			}
		}
	}
	switch {
	case c.Density:
		d, err := densities(runs)
		if err != nil {
			return err
		}
		return printDensities(g, d)
	case c.Host:
		return printHosts(g, recordsOf(runs))
	case c.Needs:
		return printNeeds(g, recordsOf(runs))
	case c.Gates:
		return printGates(g, recordsOf(runs))
	case c.Profile:
		if err := printProfiles(g, runs); err != nil {
			return err
		}
		return exitCode(shownExit(runs))
	case c.Pictures:
		return printPictures(g, dirs, c.Rollout)
	}
	if err := printRuns(g, runs, !c.Brief, comparable(ctx, runs)); err != nil {
		return err
	}
	return exitCode(shownExit(runs))
}

// shownRun is a run as show and run print it.
type shownRun struct {
	dir    string
	record bench.Record
	// state is what the check of the directory found. No number comes of a run that is not sound.
	state verified
}

// readRuns checks the directories and reads their records, as they lie there.
func readRuns(ctx context.Context, dirs []string) (list []shownRun, err error) {
	for _, dir := range dirs {
		r := shownRun{dir: dir}
		if r.state, err = verifyRun(ctx, dir, false); err != nil {
			return nil, err
		}
		r.record, err = readRecord(dir)
		switch {
		case r.state.State == runSound && err != nil:
			return nil, err
		case err != nil: // it is said what is wrong with the run
			r.record = bench.Record{Run: filepath.Base(dir)}
		}
		list = append(list, r)
	}
	return list, nil
}

// counts says whether numbers come of the run.
func (r shownRun) counts() bool {
	return r.state.State == runSound && r.record.Verdict == engine.RunPassed
}

// verdict of the run, or why there is none that could be believed.
func (r shownRun) verdict() string {
	if r.state.State != runSound {
		return "not sound"
	}
	return string(r.record.Verdict)
}

func recordsOf(runs []shownRun) (list []bench.Record) {
	for _, r := range runs {
		list = append(list, r.record)
	}
	return list
}

// shownExit is 3 where a run is not as it was written.
func shownExit(runs []shownRun) int {
	for _, r := range runs {
		if r.state.State != runSound {
			return codeBlocked
		}
	}
	return codeDone
}

// comparable says of two of the runs why a number of one may not stand beside the
// other's; empty where it may.
func comparable(ctx context.Context, runs []shownRun) func(a, b int) (string, error) {
	return func(a, b int) (string, error) {
		out, err := compareRuns(ctx, []string{runs[a].dir, runs[b].dir})
		if err != nil {
			return "", err
		}
		for _, c := range out.Comparisons {
			for _, why := range c.Refusals {
				return why.Subject + ": " + why.Text, nil
			}
			if c.Verdict == compare.Allowed {
				return "", nil
			}
		}
		return "nothing was compared", nil
	}
}

func readRecord(dir string) (r bench.Record, err error) {
	path := filepath.Join(dir, record.RecordFile)
	b, err := record.ReadRegular(path)
	if err != nil {
		return r, &engine.Error{Op: "read record", Err: err}
	}
	if err := compile.Validate("#Record", b); err != nil {
		return r, &engine.Error{Op: "read record " + path, Err: err}
	}
	return r, json.Unmarshal(b, &r)
}

// printRuns prints what the records say: for people the tables and, beneath them,
// why a run did not pass; for programs the records. Two of them stand beside each
// other where beside has no reason against it.
func printRuns(g *globals, runs []shownRun, reasons bool, beside func(a, b int) (string, error)) error {
	if g.json() {
		return printJSON(g.Stdout, recordsOf(runs))
	}
	var b strings.Builder
	sums := make([]summary, len(runs))
	for i, r := range runs {
		sums[i] = summarize(r)
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RUN\tARM\tRESET\tLOCKS\tVERDICT\tGATES\tCONTROLS\tROLLOUTS\tSCORE\tMEMORY")
	for i, r := range runs {
		s := sums[i]
		row(t, terminal.Line(r.record.Run), armOf(r.record), r.record.Reset, r.record.Settings["locks"], r.verdict(), s.gates, s.controls, s.rollouts, s.score, s.memory)
	}
	t.Flush()
	if err := writeTimes(&b, runs, sums, beside); err != nil {
		return err
	}
	writeBranches(&b, runs)
	writeHosts(&b, recordsOf(runs))
	many, err := densities(runs)
	if err != nil {
		return err
	}
	b.WriteString(density.Text(many))
	for _, r := range runs {
		switch {
		case r.state.State != runSound:
			fmt.Fprintf(&b, "\n%s: not sound, no number comes of it: %s; see: drumsbench verify %s\n", terminal.Line(r.record.Run), terminal.Line(r.state.why()), r.dir)
		case reasons && r.record.Verdict != engine.RunPassed:
			writeReasons(&b, r.record)
		}
		fmt.Fprintf(&b, "record  %s\n", filepath.Join(r.dir, record.RecordFile))
	}
	return printText(g.Stdout, b.String())
}

// armOf is the arm, and that it was emulated.
func armOf(r bench.Record) string {
	if engine.Emulated(r.Facts) {
		return r.Arm + ", emulated"
	}
	return r.Arm
}

// row writes cells; what there is none of is a dash.
func row(t io.Writer, cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = "-"
		}
	}
	fmt.Fprintln(t, strings.Join(cells, "\t"))
}

// writeReasons says why a run did not pass: each finding or failure that is a cause, not what followed from it.
func writeReasons(b *strings.Builder, r bench.Record) {
	fmt.Fprintf(b, "\n%s: %s", r.Run, r.Verdict)
	if r.Reason != "" {
		fmt.Fprintf(b, ": %s", r.Reason)
	}
	b.WriteString("\n")
	const most = 12
	n := 0
	for _, s := range r.Steps {
		if s.Verdict == engine.Pass || s.Verdict == engine.NotRun {
			continue
		}
		said, hint := false, ""
		for _, f := range s.Findings {
			if f.Verdict == engine.Pass {
				continue
			}
			said = true
			if n++; n > most {
				continue
			}
			fmt.Fprintf(b, "  %s: %s: %s %s", s.Step, f.Verdict, terminal.Line(f.Subject), terminal.Line(f.Text))
			if f.Want != "" || f.Have != "" {
				fmt.Fprintf(b, " (want %s, have %s)", clip(f.Want), clip(f.Have))
			}
			b.WriteString("\n")
			if f.Hint != "" && f.Hint != hint { // not after each of ten locks
				hint = f.Hint
				fmt.Fprintf(b, "    hint: %s\n", hint)
			}
		}
		if s.Error != nil && !said {
			if n++; n <= most {
				fmt.Fprintf(b, "  %s: %s: %s\n", s.Step, s.Verdict, terminal.Line(s.Error.Text))
				if s.Error.Hint != "" {
					fmt.Fprintf(b, "    hint: %s\n", s.Error.Hint)
				}
				if s.Error.Log != "" {
					fmt.Fprintf(b, "    log: %s\n", s.Error.Log)
				}
			}
		}
	}
	if n > most {
		fmt.Fprintf(b, "  and %d more; the record has them\n", n-most)
	}
}

func clip(s string) string {
	const most = 120
	s = terminal.Line(s)
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

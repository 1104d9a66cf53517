//go:build linux && !elsewhere

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/drumsbench/drumsbench/arms/sweep"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
)

type sweepCmd struct {
	Runs   []string `arg:"" optional:"" name:"run" type:"path" help:"Run directories, or folders of them (default: every run in the state directory that left something)."`
	DryRun bool     `help:"Say what would be taken away and change nothing."`
	All    bool     `help:"Say also which runs left nothing, which still have an engine and in which a slot is kept."`
}

// Help teaches the command.
func (sweepCmd) Help() string {
	return `Takes away what a run left on the host because its engine was killed, the host crashed or a release
failed: processes, mounts, loop devices, control groups, files. The run's ledger says what is the run's;
a process is known by its pid and start time, everything else by device and inode, or by the run's random
claim where the engine died before it wrote those down. Nothing else is touched. A second sweep does
nothing. A run whose engine lives is never swept.

A slot by hand lives without an engine: it is left alone unless it is named; slot release ends it.
Scratch directories of runs that are not below the state directory's runs, or whose ledger was deleted,
are reported and left alone: name the run to sweep it.

Examples:

  drumsbench sweep --dry-run
  drumsbench sweep
  drumsbench sweep /var/lib/drumsbench/runs/locks-20260101T120000.000

Exit codes: 0 nothing is left, or a dry run was printed, 1 something could not be taken away, 2 wrong
usage, 3 whether something is left could not be learnt.`
}

// sweepResult is what the command prints for programs.
type sweepResult struct {
	DryRun bool           `json:"dryRun"`
	Runs   []sweep.Report `json:"runs"`
	// Running are runs that an engine, or another sweep, holds.
	Running []string `json:"running"`
	// Kept are runs that were not looked at, since somebody keeps a slot of theirs.
	Kept    []keptRun      `json:"kept"`
	Orphans []sweep.Orphan `json:"orphans"`
}

// Run sweeps every run that was named, or every one that left something.
func (c sweepCmd) Run(ctx context.Context, g *globals) error {
	runs, err := c.runs(g)
	if err != nil {
		return err
	}
	result := sweepResult{DryRun: c.DryRun, Runs: []sweep.Report{}, Running: []string{}, Kept: append([]keptRun{}, runs.kept...), Orphans: []sweep.Orphan{}}
	// One run's trouble does not keep the others from being swept.
	var errs []error
	for _, dir := range runs.sweep {
		r, err := sweep.Sweep(ctx, sweep.Options{RunDir: dir, State: g.State, DryRun: c.DryRun, Hook: seams.sweep})
		switch {
		case errors.Is(err, record.ErrRunning):
			result.Running = append(result.Running, dir)
			if len(c.Runs) > 0 {
				errs = append(errs, &engine.Error{Op: "sweep " + dir, Err: fmt.Errorf("%w: %w", engine.ErrRefused, err), Hint: "end the engine first: it takes away what it made"})
			}
			continue
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", dir, err))
			continue
		}
		result.Runs = append(result.Runs, r)
		if ctx.Err() != nil {
			break
		}
	}
	// With a ledger that cannot be read, whose a scratch directory is cannot be said.
	if len(c.Runs) == 0 && len(errs) == 0 {
		orphans, err := sweep.Orphans(g.State, runs.known)
		if err != nil {
			return err
		}
		result.Orphans = append(result.Orphans, orphans...)
	}
	if err := c.print(g, result); err != nil {
		return err
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return exitCode(sweptCode(result))
}

// runSet is what a sweep without a name looks at.
type runSet struct {
	// sweep are the runs to sweep, known are all of them.
	sweep, known []string
	kept         []keptRun
}

// keptRun is a run in which a slot lives that somebody keeps by hand.
type keptRun struct {
	Run  string `json:"run"`
	Slot string `json:"slot"`
}

func (c sweepCmd) runs(g *globals) (runs runSet, err error) {
	if len(c.Runs) > 0 {
		for _, path := range c.Runs {
			found, err := sweep.Runs(path)
			if err != nil {
				return runs, err
			}
			if len(found) == 0 {
				return runs, &engine.Error{Op: "sweep " + path, Err: fmt.Errorf("%w: there is no run", engine.ErrUsage), Hint: "name a run directory, or a folder of them"}
			}
			runs.sweep = append(runs.sweep, found...)
		}
		slices.Sort(runs.sweep)
		runs.sweep = slices.Compact(runs.sweep)
		return runs, nil
	}
	for _, folder := range []string{"runs", "slots"} {
		folder = filepath.Join(g.State, folder)
		if _, err := os.Stat(folder); errors.Is(err, os.ErrNotExist) {
			continue
		}
		found, err := sweep.Runs(folder)
		if err != nil {
			return runs, err
		}
		runs.known = append(runs.known, found...)
	}
	kept, err := sweep.Kept(g.State)
	if err != nil {
		return runs, err
	}
	for _, dir := range runs.known {
		if slot, ok := kept[dir]; ok {
			runs.kept = append(runs.kept, keptRun{dir, slot})
			continue
		}
		// A ledger that cannot be read is for the sweep to complain about.
		pending, err := sweep.Pending(dir)
		if pending || err != nil || c.All {
			runs.sweep = append(runs.sweep, dir)
		}
	}
	return runs, nil
}

// sweptCode is 1 if anything failed, else 3 if anything is unknown, else 0.
func sweptCode(r sweepResult) int {
	code := codeDone
	for _, run := range r.Runs {
		switch run.Worst() {
		case sweep.Failed:
			return codeFailed
		case sweep.Unknown:
			code = codeBlocked
		}
	}
	return code
}

// print says one line a thing, and beneath it what to do about it.
func (c sweepCmd) print(g *globals, r sweepResult) error {
	if g.json() {
		return printJSON(g.Stdout, r)
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	things := 0
	for _, run := range r.Runs {
		if len(run.Things) == 0 && c.All {
			fmt.Fprintf(t, "nothing\trun\t%s\n", run.RunDir)
		}
		for _, thing := range run.Things {
			things++
			fmt.Fprintf(t, "%s\t%s\t%s", thing.Outcome, thing.Kind, thing.What)
			if thing.Reason != "" {
				fmt.Fprintf(t, ": %s", thing.Reason)
			}
			fmt.Fprintln(t)
			if thing.Hint != "" {
				fmt.Fprintf(t, "\t\thint: %s\n", thing.Hint)
			}
		}
	}
	// What such a run owns is there: nobody may read that nothing is left.
	for _, dir := range r.Running {
		fmt.Fprintf(t, "running\trun\t%s: an engine, or a command that reads it, holds it; left alone\n", dir)
	}
	for _, k := range r.Kept {
		if c.All {
			fmt.Fprintf(t, "kept\trun\t%s: for the slot %s\n\t\thint: drumsbench slot release %s\n", k.Run, k.Slot, k.Slot)
		}
	}
	for _, o := range r.Orphans {
		fmt.Fprintf(t, "orphan\tdirectory\t%s: no run in the state directory names it\n\t\thint: sweep its run by name; if its ledger is gone: rm -r %s, after looking for drums-%s in the control groups\n", o.Path, o.Path, o.Claim)
	}
	t.Flush()
	if things == 0 && b.Len() == 0 {
		b.WriteString("nothing is left\n")
	}
	return printText(g.Stdout, b.String())
}

//go:build linux && !elsewhere

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/arms/sweep"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

type slotReleaseCmd struct {
	Slot  string `arg:"" help:"The slot."`
	Purge bool   `help:"Remove its folder too, with its receipts and its checkpoint."`
}

// Help teaches the command.
func (slotReleaseCmd) Help() string {
	return `Takes everything of a slot away by its ledger, as sweep does, whatever made it: also a slot that is
dead, that another drumsbench made, whose handle was changed, or that the host was started anew under.
Each absence is read back. The folder with the receipts and the checkpoint is moved to released/ in the
state directory; --purge removes it.

It is refused while another slot resets to a checkpoint of this one.

Example:

  drumsbench slot release desk

Exit codes: 0 nothing is left, 1 something could not be taken away, or it was refused, 2 wrong usage,
3 whether something is left could not be learnt.`
}

// Run releases the slot.
func (c slotReleaseCmd) Run(ctx context.Context, g *globals) error {
	op := "release " + c.Slot
	if err := checkName(c.Slot); err != nil {
		return err
	}
	folder := slotFolder(g.State, c.Slot)
	if _, err := os.Lstat(folder); errors.Is(err, fs.ErrNotExist) {
		return &engine.Error{Op: op, Err: usage("there is no such slot"), Hint: "drumsbench slot status lists them"}
	}
	if err := needed(g.State, c.Slot); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	last, n, err := lastCommand(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	run := folder
	if last.run != "" {
		run = last.run
	}
	if err := known(folder, run); err != nil {
		return &engine.Error{Op: op, Err: err, Hint: "look for the slot's claim, drums- and 12 digits, among the control groups and in the scratch directories of " + g.State}
	}
	report, err := takeAway(ctx, g.State, run)
	if err != nil {
		return busy(op, err)
	}
	left, err := pending(run)
	if err != nil {
		return err
	}
	to, err := c.close(ctx, g, folder, n, report, left)
	if err != nil {
		return err
	}
	if g.json() {
		err = printJSON(g.Stdout, releaseResult{Slot: c.Slot, Left: left, Folder: to, Things: report.Things})
	} else {
		err = printText(g.Stdout, releasedText(c.Slot, report, left, to))
	}
	if err != nil {
		return err
	}
	switch {
	case left > 0 && report.Worst() == sweep.Unknown:
		return exitCode(codeBlocked)
	case left > 0:
		return exitCode(codeFailed)
	}
	return nil
}

// releaseResult is what the command prints for programs.
type releaseResult struct {
	Slot string `json:"slot"`
	// Left counts what the ledger says is not gone.
	Left   int           `json:"left"`
	Folder string        `json:"folder,omitempty"`
	Things []sweep.Thing `json:"things"`
}

// known requires that there is a ledger, once there can have been something to
// own: the chain begins after the ledger does.
func known(folder, run string) error {
	_, err := os.Lstat(filepath.Join(run, record.LedgerFile))
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	events, _, err := record.ReadEvents(folder)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(events) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: the ledger in %s is gone, and with it what the slot owns", engine.ErrUnknown, run)
}

// takeAway sweeps what the ledger in dir owns. A folder without anything to sweep left nothing.
func takeAway(ctx context.Context, state, dir string) (sweep.Report, error) {
	r, err := sweep.Sweep(ctx, sweep.Options{RunDir: dir, State: state, Hook: seams.sweep})
	if errors.Is(err, engine.ErrUsage) { // the command that was to make it ended before it owned anything, or its run is gone
		return sweep.Report{RunDir: dir}, nil
	}
	return r, err
}

// pending counts what a ledger says is not gone.
func pending(dir string) (int, error) {
	open, _, err := record.ReadLedger(filepath.Join(dir, record.LedgerFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return len(open), err
}

// close writes down what was done and, if nothing is left, moves the folder away.
func (c slotReleaseCmd) close(ctx context.Context, g *globals, folder string, n int, report sweep.Report, left int) (to string, err error) {
	dir, err := reopen(ctx, folder)
	switch {
	case err == nil:
		err = released(dir, n, report, left)
	case errors.Is(err, engine.ErrRefused), errors.Is(err, fs.ErrNotExist): // a chain that nobody can go on with stays as it is
		err = nil
	}
	if err == nil && left == 0 {
		to, err = c.putAway(g, folder)
	}
	if dir != nil {
		err = errors.Join(err, dir.Close())
	}
	return to, err
}

// released writes the last lines of the chain.
func released(dir *record.Dir, n int, report sweep.Report, left int) error {
	r := bench.Receipt{Time: engine.Timestamp(time.Now()), Event: "step", Step: fmt.Sprintf("%d.release", n), Kind: record.KindCommand, Verdict: engine.Pass}
	for _, t := range report.Things {
		r.Facts = append(r.Facts, fact(fmt.Sprintf("%s.%d", t.Kind, t.ID), strings.TrimSpace(fmt.Sprintf("%s %s %s", t.Outcome, t.What, t.Reason))))
	}
	if left > 0 {
		r.Verdict = engine.Fail
		r.Findings = []bench.Finding{{Verdict: engine.Fail, Subject: "ledger", Text: fmt.Sprintf("it still owns %s", count(left, "thing"))}}
		return dir.Events.Append(r)
	}
	if err := dir.Events.Append(r); err != nil {
		return err
	}
	return dir.Events.Append(bench.Receipt{Time: engine.Timestamp(time.Now()), Event: "run_end", Outcome: engine.RunPassed})
}

// putAway moves the folder out of the way of the name, or removes it.
func (c slotReleaseCmd) putAway(g *globals, folder string) (to string, err error) {
	if c.Purge {
		if err := os.RemoveAll(folder); err != nil {
			return "", &engine.Error{Op: "remove folder of slot", Err: err}
		}
		return "", nil
	}
	to = filepath.Join(g.State, "released", c.Slot+"-"+time.Now().UTC().Format("20060102T150405.000"))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return "", &engine.Error{Op: "put folder of slot away", Err: err}
	}
	if err := os.Rename(folder, to); err != nil {
		return "", &engine.Error{Op: "put folder of slot away", Err: err}
	}
	return to, nil
}

func releasedText(name string, report sweep.Report, left int, to string) string {
	var b strings.Builder
	if left == 0 {
		fmt.Fprintf(&b, "%s: released: nothing of it is left on the host\n", name)
	} else {
		fmt.Fprintf(&b, "%s: not released: the ledger still owns %s\n", name, count(left, "thing"))
	}
	for _, t := range report.Things {
		switch t.Outcome {
		case sweep.Taken, sweep.Absent:
			continue
		}
		fmt.Fprintf(&b, "  %s %s %s: %s\n", t.Outcome, t.Kind, terminal.Line(t.What), terminal.Line(t.Reason))
		line(&b, "    hint", t.Hint)
	}
	if to != "" {
		fmt.Fprintf(&b, "receipts  %s\n", filepath.Join(to, record.EventsFile))
	}
	return b.String()
}

// needed refuses to take a slot away whose checkpoint another slot resets to.
func needed(state, name string) error {
	names, err := slotNames(state)
	if err != nil {
		return err
	}
	below := slotFolder(state, name) + string(filepath.Separator)
	for _, other := range names {
		if other == name {
			continue
		}
		h, _, err := record.ReadHandle(slotFolder(state, other))
		if err != nil || h.Checkpoint == nil || len(h.Owned) == 0 {
			continue // it resets to nothing
		}
		if strings.HasPrefix(h.Checkpoint.Dir, below) {
			return &engine.Error{Op: "look for users of its checkpoint", Err: fmt.Errorf("%w: slot %s resets to the checkpoint in it", engine.ErrRefused, other), Hint: "drumsbench slot release " + other + " first"}
		}
	}
	return nil
}

// slotNames are the folders below slots, sorted.
func slotNames(state string) (names []string, err error) {
	entries, err := os.ReadDir(slotsFolder(state))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &engine.Error{Op: "list slots", Err: err}
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

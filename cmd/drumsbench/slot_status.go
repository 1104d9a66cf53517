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
	"text/tabwriter"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

type slotStatusCmd struct {
	Slot string `arg:"" optional:"" help:"The slot (default: all of them)."`
}

// Help teaches the command.
func (slotStatusCmd) Help() string {
	return `Says of each slot what it is now, as the host shows it:

  running     its first process lives
  stopped     it was restored and a gate kept it from running
  vacant      it was dumped, or a restore failed: no process of it is there
  dead        its first process has ended; reset brings its checkpoint back
  gone        the command that was to make it failed, and nothing is left
  unfinished  the command that was to make it, or one on it, was killed; only release works
  refused     something is not as the last command left it; only release works
  busy        a command works on it

Nothing is written.

Example:

  drumsbench slot status desk

Exit codes: 0 printed, 1 the slots cannot be read, 2 wrong usage.`
}

// slotState is what is said of a slot.
type slotState struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// The rest is absent where the handle cannot be read.
	Arm        string                     `json:"arm,omitempty"`
	Pid        int64                      `json:"pid,omitempty"`
	Created    bench.Time                 `json:"created,omitempty"`
	Guest      string                     `json:"guest,omitempty"`
	Checkpoint *bench.CheckpointReference `json:"checkpoint,omitempty"`
	Run        string                     `json:"run,omitempty"`
}

// Run prints the slots.
func (c slotStatusCmd) Run(ctx context.Context, g *globals) error {
	names := []string{c.Slot}
	if c.Slot == "" {
		var err error
		if names, err = slotNames(g.State); err != nil {
			return err
		}
	} else if err := checkName(c.Slot); err != nil {
		return err
	} else if _, err := os.Lstat(slotFolder(g.State, c.Slot)); errors.Is(err, fs.ErrNotExist) {
		return &engine.Error{Op: "look at slot " + c.Slot, Err: usage("there is no such slot"), Hint: "drumsbench slot status lists them"}
	}
	states := []slotState{}
	for _, name := range names {
		states = append(states, stateOf(ctx, g, name))
	}
	if g.json() {
		return printJSON(g.Stdout, states)
	}
	if len(states) == 0 {
		return printText(g.Stdout, "there is no slot\n")
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SLOT\tARM\tSTATE\tPID\tGUEST\tCREATED\tCHECKPOINT")
	or := func(s string) string {
		if s == "" {
			return "-"
		}
		return s
	}
	for _, s := range states {
		pid, cp := "", ""
		if s.Pid > 0 {
			pid = fmt.Sprint(s.Pid)
		}
		if s.Checkpoint != nil {
			cp = s.Checkpoint.Dir
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, or(s.Arm), s.State, or(pid), or(terminal.Line(s.Guest)), or(string(s.Created)), or(cp))
	}
	t.Flush()
	for _, s := range states {
		if s.Reason != "" {
			fmt.Fprintf(&b, "%s: %s\n", s.Name, terminal.Line(s.Reason))
		}
	}
	return printText(g.Stdout, b.String())
}

// stateOf looks at a slot. What cannot be learnt is its reason, never a state that is fine.
func stateOf(ctx context.Context, g *globals, name string) (s slotState) {
	s = slotState{Name: name}
	folder := slotFolder(g.State, name)
	release, err := record.HoldToRead(folder)
	if err != nil {
		return s.heldOr("refused", err)
	}
	defer release()
	h := &hand{globals: g, name: name, dir: &record.Dir{Path: folder, Evidence: record.OpenEvidence(folder)}}
	err = h.look(ctx)
	if h.handle.Name != "" {
		s.Arm, s.Created, s.Checkpoint, s.Run = h.handle.Arm, h.handle.Created, h.handle.Checkpoint, h.handle.Run
	}
	if err != nil {
		if errors.Is(err, errUnfinished) {
			return s.is("unfinished", err)
		}
		return s.is("refused", err)
	}
	ledger := folder
	if h.handle.Run != "" {
		ledger = h.handle.Run
		release, err := record.HoldToRead(ledger)
		if err != nil {
			return s.heldOr("refused", err)
		}
		defer release()
	}
	if h.open, _, err = record.ReadLedger(filepath.Join(ledger, record.LedgerFile)); err != nil {
		return s.is("refused", err)
	}
	if h.handle.Place == nil && len(h.open) == 0 {
		return s.is("gone", errors.New(h.handle.Reason))
	}
	if h.handle.Reason != "" {
		s.Reason = "what changed it last: " + h.handle.Reason
	}
	first, known := firstIdentity(h.handle)
	if known && h.handle.State != "vacant" {
		s.Pid = first.Pid
	}
	if found := h.foreign(); len(found) > 0 {
		return s.barred(found, len(h.open), first, known)
	}
	root, place, err := h.arm.(engine.Adopter).Adopt(ctx, h.looking(), h.adopt())
	if err != nil {
		return s.is("refused", err)
	}
	_ = root // it is only looked at
	s.State = h.handle.State
	slot, running := place.(engine.Slot)
	if !running {
		return s
	}
	if m, ok := slot.(engine.Mortal); ok {
		if err := m.Alive(); err != nil {
			return s.is("dead", err)
		}
	}
	probe, err := guest.New(slot.Dial, int(h.manifest.Guest.Server.Port), guest.DefaultLimits()).Probe(ctx)
	switch {
	case err != nil:
		s.Guest = "no answer: " + err.Error()
	case probe.Reason != "":
		s.Guest = string(probe.Phase) + ": " + probe.Reason
	default:
		s.Guest = string(probe.Phase)
	}
	return s
}

func (s slotState) is(state string, err error) slotState {
	s.State = state
	if err != nil && err.Error() != "" {
		s.Reason = err.Error()
	}
	return s
}

func (s slotState) heldOr(state string, err error) slotState {
	if errors.Is(err, record.ErrRunning) {
		return s.is("busy", nil)
	}
	return s.is(state, err)
}

// barred is a slot that only release can be done to; whether it lives is said all the same.
func (s slotState) barred(found []bench.Finding, owned int, first bench.Identity, known bool) slotState {
	f := found[0]
	s.Reason = fmt.Sprintf("%s %s; only release works", f.Subject, f.Text)
	s.State = "refused"
	switch {
	case f.Subject == "boot" || owned == 0:
		s.State = "dead"
	case f.Subject == "ledger":
		s.State = "unfinished"
	case known:
		if alive, err := procfs.Alive(first); err == nil && !alive {
			s.State = "dead"
		}
	}
	return s
}

// firstIdentity is the first process as the ledger has it.
func firstIdentity(h bench.SlotHandle) (bench.Identity, bool) {
	if h.Place == nil || h.Place.Tenancy == nil {
		return bench.Identity{}, false
	}
	for _, o := range h.Owned {
		if o.Id == h.Place.Tenancy.Process && o.Identity != nil {
			return *o.Identity, true
		}
	}
	return bench.Identity{}, false
}

// looking is a workspace in which nothing can be written down.
func (h *hand) looking() *engine.Workspace {
	return &engine.Workspace{
		Run: h.dir.Path, Work: h.handle.Work, State: h.State, ID: h.handle.Claim,
		Ledger: closedLedger{}, Evidence: h.dir.Evidence, Log: h.Log,
	}
}

// closedLedger refuses every line: who only looks makes nothing.
type closedLedger struct{}

var errLooking = fmt.Errorf("%w: the slot is only looked at", engine.ErrRefused)

func (closedLedger) Intend(string, bench.Claim) (int64, error) { return 0, errLooking }
func (closedLedger) Bind(int64, bench.Identity) error          { return errLooking }
func (closedLedger) Gone(int64) error                          { return errLooking }

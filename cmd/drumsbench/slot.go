//go:build linux && !elsewhere

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps"
)

// slotCmd are the commands on slots by hand.
type slotCmd struct {
	Provision slotProvisionCmd `cmd:"" help:"Make a slot that stays when the command has ended."`
	Dump      slotDumpCmd      `cmd:"" help:"Dump a slot into a checkpoint; its processes end."`
	Restore   slotRestoreCmd   `cmd:"" help:"Bring a dumped slot back, or make one from a checkpoint of a run."`
	Reset     slotResetCmd     `cmd:"" help:"End what runs in a slot and bring its checkpoint back."`
	Status    slotStatusCmd    `cmd:"" help:"Say which slots there are, and whether they live."`
	Exec      slotExecCmd      `cmd:"" help:"Run a command in a slot."`
	Release   slotReleaseCmd   `cmd:"" help:"Take a slot away."`
}

const slotExits = `

Exit codes: 0 done, every gate passed, 1 a gate or the command failed, or it was refused, 2 wrong usage,
3 something that had to be known could not be learnt.`

type slotProvisionCmd struct {
	Path          string   `arg:"" help:"Folder of a manifest, or its .cue file."`
	Tag           []string `short:"t" sep:"none" placeholder:"KEY=VALUE" help:"Set a field that carries @tag(KEY); may be repeated."`
	Arm           string   `placeholder:"KIND" help:"Arm of the manifest (default: its only one)."`
	Name          string   `placeholder:"NAME" help:"The slot's name (default: the manifest's, with a number if it is taken)."`
	KeepOnFailure bool     `help:"Keep the slot also if a gate fails."`
}

// Help teaches the command.
func (slotProvisionCmd) Help() string {
	return `Makes a slot as a run does: mounts the image, starts the guest, judges limits, mounts, tools, server and
network, waits until it is ready, runs the task's set-up and plants the canary. The slot stays until it
is released. What was done is written down below slots/NAME in the state directory.

Example:

  drumsbench slot provision manifests/locks --name desk` + slotExits
}

// Run makes the slot.
func (c slotProvisionCmd) Run(ctx context.Context, g *globals) error {
	m, err := loadDeclared(c.Path, c.Tag)
	if err != nil {
		return err
	}
	kind, err := oneArm(m.Manifest, c.Arm)
	if err != nil {
		return err
	}
	workload, err := compile.Workload(m.Manifest)
	if err != nil {
		return err
	}
	plan, err := steps.HandProvision(m.Manifest, workload)
	if err != nil {
		return err
	}
	return makeSlot(ctx, g, "provision", c.Name, m.Manifest, kind, plan, c.KeepOnFailure)
}

// oneArm is the arm that was asked for, or the only one that there is.
func oneArm(m bench.Manifest, want string) (string, error) {
	var asked []string
	if want != "" {
		asked = []string{want}
	}
	kinds, err := choose("arm", armKinds(m.Arms), asked)
	if err != nil {
		return "", err
	}
	if len(kinds) != 1 {
		return "", usage("the manifest has the arms " + strings.Join(kinds, ", ") + ": name one with --arm")
	}
	return kinds[0], nil
}

// makeSlot makes a new slot with a plan.
func makeSlot(ctx context.Context, g *globals, word, name string, m bench.Manifest, kind string, plan *engine.Plan, keep bool) (err error) {
	if name == "" {
		if name, err = freeName(g.State, string(m.Name)); err != nil {
			return err
		}
	}
	h, err := newHand(ctx, g, name, m, kind, plan)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	return h.change(ctx, word, plan, keep)
}

// change executes a command that changes the slot, and says what came of it.
func (h *hand) change(ctx context.Context, word string, plan *engine.Plan, keep bool) error {
	progress, stop := newView(h.globals, word+" "+h.name, plan.Steps)
	d, err := h.run(ctx, word, plan, progress, keep)
	stop()
	if err != nil {
		return err
	}
	if err := h.print(word, d); err != nil {
		return err
	}
	return exitCode(engine.ExitCode(d.Verdict))
}

// slotResult is what a command prints for programs.
type slotResult struct {
	Slot    bench.SlotHandle    `json:"slot"`
	Verdict bench.RunVerdict    `json:"verdict"`
	Reason  string              `json:"reason,omitempty"`
	Steps   []bench.StepOutcome `json:"steps"`
}

func (h *hand) print(word string, d done) error {
	if h.json() {
		return printJSON(h.Stdout, slotResult{h.handle, d.Verdict, d.Reason, d.Outcomes})
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", h.name, describe(h.handle))
	if cp := h.handle.Checkpoint; cp != nil {
		fmt.Fprintf(&b, "checkpoint  %s\n", cp.Dir)
	}
	if d.Verdict != engine.RunPassed {
		writeReasons(&b, bench.Record{Run: word + " " + h.name, Verdict: d.Verdict, Reason: d.Reason, Steps: d.Outcomes})
		fmt.Fprintf(&b, "receipts    %s\n", filepath.Join(h.dir.Path, record.EventsFile))
	}
	return printText(h.Stdout, b.String())
}

// describe says in a few words what a command left.
func describe(s bench.SlotHandle) string {
	switch {
	case s.Place == nil && len(s.Owned) == 0:
		return "gone: nothing of it is left on the host"
	case s.Place == nil:
		return fmt.Sprintf("lost: the ledger owns %s, and nobody can go on with it", count(len(s.Owned), "thing"))
	case s.State == "stopped":
		return "stopped: it was restored and not let run, " + firstProcess(s)
	case s.State == "vacant":
		return "vacant: no process of it is left; a restore brings its checkpoint back"
	}
	return "running, " + firstProcess(s)
}

// firstProcess is the slot's first process as the ledger has it.
func firstProcess(s bench.SlotHandle) string {
	if first, known := firstIdentity(s); known {
		return fmt.Sprintf("pid %d", first.Pid)
	}
	return "no process"
}

type slotDumpCmd struct {
	Slot string `arg:"" help:"The slot."`
}

// Help teaches the command.
func (slotDumpCmd) Help() string {
	return `Judges that nothing ties the slot to the outside, dumps it and seals the checkpoint, as a run does. The
slot's processes end with it; its place stays for restore and reset, which bring the last checkpoint
back. A slot that was itself restored can be dumped again, but for a virtual machine.

Example:

  drumsbench slot dump desk` + slotExits
}

// Run dumps the slot.
func (c slotDumpCmd) Run(ctx context.Context, g *globals) (err error) {
	h, err := openHand(ctx, g, c.Slot)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	plan, err := steps.HandDump(h.manifest, h.handle.Workload, h.adopt())
	if err != nil {
		return err
	}
	return h.change(ctx, "dump", plan, true)
}

type slotRestoreCmd struct {
	Slot          string   `arg:"" optional:"" help:"A slot that was dumped."`
	From          string   `type:"existingdir" placeholder:"DIR" help:"Folder of a checkpoint: makes a new slot from it."`
	Name          string   `placeholder:"NAME" help:"Name of the new slot (default: the manifest's, with a number if it is taken)."`
	Manifest      string   `placeholder:"PATH" help:"Manifest of the new slot (default: that of the run or slot whose checkpoint it is)."`
	Tag           []string `short:"t" sep:"none" placeholder:"KEY=VALUE" help:"Set a field of --manifest that carries @tag(KEY); may be repeated."`
	KeepOnFailure bool     `help:"Keep a new slot also if a gate fails."`
}

// Help teaches the command.
func (slotRestoreCmd) Help() string {
	return `Brings a slot that was dumped back from its checkpoint. Locks, mounts, limits, processes and state are
judged while it is stopped, then it runs, and is judged again: as in a run.

With --from it makes a new slot from a checkpoint that a run, or another slot, sealed. It is refused,
with the reason, if the checkpoint is of another image, kernel, CPU, criu or drumsbench, of another
workload than the manifest, or not as it was sealed.

Examples:

  drumsbench slot restore desk
  drumsbench slot restore --from /var/lib/drumsbench/slots/desk/checkpoints/slot-0 --name second` + slotExits
}

// Run restores the slot.
func (c slotRestoreCmd) Run(ctx context.Context, g *globals) (err error) {
	switch {
	case (c.Slot == "") == (c.From == ""):
		return usage("name either a slot or a checkpoint with --from")
	case c.From == "" && (c.Name != "" || c.Manifest != "" || len(c.Tag) > 0 || c.KeepOnFailure):
		return usage("--name, --manifest, --tag and --keep-on-failure are for --from")
	case c.From != "":
		return c.fresh(ctx, g)
	}
	h, err := openHand(ctx, g, c.Slot)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	if h.handle.State != "vacant" {
		return &engine.Error{Op: "restore " + c.Slot, Err: fmt.Errorf("%w: it is %s", engine.ErrRefused, h.handle.State), Hint: "drumsbench slot reset " + c.Slot + " ends what runs in it and restores"}
	}
	return h.reset(ctx, "restore")
}

// fresh makes a new slot from a checkpoint.
func (c slotRestoreCmd) fresh(ctx context.Context, g *globals) error {
	cp, err := readCheckpoint(c.From)
	if err != nil {
		return err
	}
	m, err := c.manifest(cp.Dir)
	if err != nil {
		return err
	}
	kind, err := oneArm(m, cp.Handle.Arm)
	if err != nil {
		return err
	}
	params, err := fromCheckpoint(cp, m)
	if err != nil {
		return err
	}
	plan, err := steps.HandRestore(m, params)
	if err != nil {
		return err
	}
	return makeSlot(ctx, g, "restore", c.Name, m, kind, plan, c.KeepOnFailure)
}

// manifest is the one that was named, or that of the run which sealed the checkpoint.
func (c slotRestoreCmd) manifest(dir string) (bench.Manifest, error) {
	if c.Manifest != "" {
		m, err := loadDeclared(c.Manifest, c.Tag)
		return m.Manifest, err
	}
	if len(c.Tag) > 0 {
		return bench.Manifest{}, usage("--tag is for --manifest")
	}
	m, _, err := record.ReadManifest(filepath.Dir(filepath.Dir(dir)))
	if errors.Is(err, os.ErrNotExist) {
		return m, &engine.Error{Op: "find manifest of checkpoint", Err: usage("none lies two folders above " + dir), Hint: "name it with --manifest"}
	}
	return m, err
}

// readCheckpoint reads the handle of a checkpoint, whose form the schema says.
func readCheckpoint(dir string) (engine.Checkpoint, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	cp, err := checkpoint.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return cp, &engine.Error{Op: "open checkpoint", Err: usage(dir + " holds no checkpoint: it has no " + checkpoint.HandleFile), Hint: "a run's lie below its folder checkpoints"}
	}
	if err != nil {
		return cp, err
	}
	text, err := record.ReadRegular(filepath.Join(dir, checkpoint.HandleFile))
	if err == nil {
		err = compile.Validate("Checkpoint", text)
	}
	if err != nil {
		return cp, &engine.Error{Op: "open checkpoint " + dir, Err: fmt.Errorf("%w: %w", engine.ErrRefused, err)}
	}
	return cp, nil
}

// fromCheckpoint are the parameters of a plan that opens a checkpoint for a manifest.
func fromCheckpoint(cp engine.Checkpoint, m bench.Manifest) (bench.CheckpointParams, error) {
	digest, err := checkpoint.Digest(cp.Handle)
	if err != nil {
		return bench.CheckpointParams{}, err
	}
	workload, err := compile.Workload(m)
	return bench.CheckpointParams{Checkpoint: bench.CheckpointReference{Dir: cp.Dir, Sha256: digest}, Workload: workload, Server: m.Guest.Server.Sha256}, err
}

type slotResetCmd struct {
	Slot string `arg:"" help:"The slot."`
}

// Help teaches the command.
func (slotResetCmd) Help() string {
	return `Ends every process of the slot, also if it is dead or was stopped by a gate, and brings its checkpoint
back into its place, as a run's reset does, with the same gates.

Example:

  drumsbench slot reset desk` + slotExits
}

// Run resets the slot.
func (c slotResetCmd) Run(ctx context.Context, g *globals) (err error) {
	h, err := openHand(ctx, g, c.Slot)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	return h.reset(ctx, "reset")
}

// reset brings the slot's checkpoint back.
func (h *hand) reset(ctx context.Context, word string) error {
	if h.handle.Checkpoint == nil {
		return &engine.Error{Op: word + " " + h.name, Err: fmt.Errorf("%w: the slot has no checkpoint", engine.ErrRefused), Hint: "drumsbench slot dump " + h.name + " makes one"}
	}
	plan, err := steps.HandReset(h.manifest, h.adopt(), bench.CheckpointParams{
		Checkpoint: *h.handle.Checkpoint, Workload: h.handle.Workload, Server: h.handle.Server,
	})
	if err != nil {
		return err
	}
	return h.change(ctx, word, plan, true)
}

type slotExecCmd struct {
	Slot    string        `arg:"" help:"The slot."`
	Command []string      `arg:"" passthrough:"" help:"Program and arguments, after --."`
	Timeout time.Duration `default:"30s" placeholder:"TIME" help:"How long the command may take (default ${default})."`
}

// Help teaches the command.
func (slotExecCmd) Help() string {
	return `Runs a command in a slot, by its guest server and as its user, after the server was found to be the one
that is pinned. Prints what the command printed. With -o json it is one object with exit, stdout and stderr.

Examples:

  drumsbench slot exec desk -- /bin/cat /etc/hostname
  drumsbench slot exec --timeout 2m desk -- /bin/sh -c 'ls -l /root; id'

Exit codes: 0 the command exited with 0, 1 it did not, or it could not be run, 2 wrong usage, 3 something
that had to be known could not be learnt.`
}

// execResult is what the command prints for programs.
type execResult struct {
	Exit   int    `json:"exit"`
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
}

// Run executes the command.
func (c slotExecCmd) Run(ctx context.Context, g *globals) (err error) {
	if len(c.Command) > 0 && c.Command[0] == "--" {
		c.Command = c.Command[1:]
	}
	if len(c.Command) == 0 || c.Command[0] == "" {
		return usage("name a command after --")
	}
	if c.Timeout <= 0 {
		return usage("--timeout is not positive")
	}
	h, err := openHand(ctx, g, c.Slot)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	plan, err := steps.HandExecute(h.manifest, h.handle.Workload, h.adopt(), bench.Command{Exec: c.Command, Timeout: string(engine.FormatDuration(c.Timeout))})
	if err != nil {
		return err
	}
	d, err := h.run(ctx, "exec", plan, nil, true)
	if err != nil {
		return err
	}
	r, err := h.output(d)
	if err != nil {
		return err
	}
	if d.Verdict != engine.RunPassed {
		if err := h.said(r); err != nil {
			return err
		}
		return h.failed("exec in "+h.name, d)
	}
	if g.json() {
		if err := printJSON(g.Stdout, r); err != nil {
			return err
		}
	} else if err := h.said(r); err != nil {
		return err
	}
	if r.Exit != 0 {
		if g.json() {
			return exitCode(codeFailed)
		}
		return &engine.Error{Op: "exec in " + h.name, Err: fmt.Errorf("%q exited with %d", c.Command, r.Exit)}
	}
	return nil
}

// said prints what the command printed, where it printed it.
func (h *hand) said(r execResult) error {
	if err := printOutput(h.Stdout, r.Stdout); err != nil {
		return err
	}
	return printOutput(h.Stderr, r.Stderr)
}

// output reads back what a command's receipt names.
func (h *hand) output(d done) (r execResult, err error) {
	for _, receipt := range d.receipts {
		if receipt.Kind != steps.KindExecute {
			continue
		}
		for _, f := range receipt.Facts {
			if f.Name == steps.ExitFact {
				if r.Exit, err = strconv.Atoi(f.Value); err != nil {
					return r, err
				}
			}
		}
		for _, e := range receipt.Evidence {
			text, err := record.ReadRegular(h.dir.Evidence.Path(e))
			if err != nil {
				return r, &engine.Error{Op: "read output", Err: err}
			}
			switch e.Name {
			case steps.ExecuteName + steps.StdoutSuffix:
				r.Stdout = string(text)
			case steps.ExecuteName + steps.StderrSuffix:
				r.Stderr = string(text)
			}
		}
	}
	return r, nil
}

// failed is the error of a command that failed, as its receipts tell it.
func (h *hand) failed(op string, d done) error {
	e := &engine.Error{Op: op, Err: errors.New(d.Reason)}
	for _, o := range d.Outcomes {
		if o.Verdict == engine.Pass || o.Verdict == engine.NotRun {
			continue
		}
		e.Findings = append(e.Findings, o.Findings...)
		if o.Error != nil && e.Hint == "" {
			e.Hint = o.Error.Hint
		}
	}
	if d.Verdict == engine.RunBlocked {
		e.Err = fmt.Errorf("%w: %s", engine.ErrUnknown, d.Reason)
	}
	return e
}

//go:build linux && !elsewhere

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps"
)

// A slot by hand is a folder STATE/slots/NAME that is laid out as a run's: a
// manifest, a chain with the receipts of every command's steps and one receipt
// for the command, a ledger, evidence, checkpoints. handle.json says where the
// slot is; the last command's receipt has its digest. A slot that a failed run
// left has its ledger in the run's directory.

// hand is a slot by hand that this command holds.
type hand struct {
	*globals
	name string
	dir  *record.Dir
	// ledger is dir's, or that of the run which left the slot; nil for a look only.
	ledger *record.FileLedger
	// open is what the ledger said was not gone, when the slot was taken.
	open   []record.Owned
	unhold func() error
	handle bench.SlotHandle
	// known is the digest of the handle as it lies on disk.
	known    bench.SHA256
	manifest bench.Manifest
	arm      engine.Arm
	// commands that were written down before.
	commands int
}

// Facts of a command's receipt.
const (
	factPlan   = "plan"
	factEngine = "engine"
	factRun    = "run"
)

func slotsFolder(state string) string { return filepath.Join(state, "slots") }

func slotFolder(state, name string) string { return filepath.Join(slotsFolder(state), name) }

// checkName requires a name that the schema allows: it becomes a folder.
func checkName(name string) error {
	text, err := json.Marshal(name)
	if err != nil {
		return err
	}
	if err := compile.Validate("Name", text); err != nil {
		return usage(fmt.Sprintf("%q is no name of a slot: a letter first, then at most 47 of a-z, 0-9 and -", name))
	}
	return nil
}

// freeName is base, or base with the first number that is free.
func freeName(state, base string) (string, error) {
	const most = 48 // of #Name
	for n := 1; n < 1000; n++ {
		suffix := ""
		if n > 1 {
			suffix = "-" + strconv.Itoa(n)
		}
		name := base[:min(len(base), most-len(suffix))] + suffix
		if _, err := os.Lstat(slotFolder(state, name)); errors.Is(err, fs.ErrNotExist) {
			return name, nil
		} else if err != nil {
			return "", &engine.Error{Op: "look for a name", Err: err}
		}
	}
	return "", &engine.Error{Op: "look for a name", Err: fmt.Errorf("%w: every name from %s on is taken", engine.ErrRefused, base), Hint: "release slots that are not needed"}
}

// newHand begins the folder of a slot. plan is the one that makes it.
func newHand(ctx context.Context, g *globals, name string, m bench.Manifest, kind string, plan *engine.Plan) (_ *hand, err error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	h := &hand{globals: g, name: name, manifest: m}
	var facts []bench.Fact
	if h.arm, facts, err = newArm(ctx, kind, m.Arms, g.State); err != nil {
		return nil, err
	}
	if err := lasting("make slot "+name, h.arm); err != nil {
		return nil, err
	}
	version, err := engineVersion()
	if err != nil {
		return nil, err
	}
	boot, err := record.BootID()
	if err != nil {
		return nil, err
	}
	folder := slotFolder(g.State, name)
	if _, err := os.Lstat(folder); err == nil {
		return nil, &engine.Error{Op: "make slot " + name, Err: fmt.Errorf("%w: there is one of that name", engine.ErrRefused), Hint: "drumsbench slot release " + name + ", or name another with --name"}
	}
	if h.dir, err = record.Create(folder); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	h.ledger = h.dir.Ledger
	h.handle = bench.SlotHandle{
		ApiVersion: engine.APIVersion, Name: bench.Name(name), Arm: kind, Created: engine.Timestamp(time.Now()), State: "gone", Boot: boot,
		Engine: version, Server: m.Guest.Server.Sha256, Image: m.Image.Sha256, Workload: plan.Workload, Plan: plan.Digest(),
		Settings: h.arm.Describe().Settings, Owned: []bench.OwnedThing{},
	}
	var host bench.SHA256
	if h.handle.Manifest, err = h.dir.WriteManifest(m); err != nil {
		return nil, err
	}
	if host, err = h.dir.WriteHost(bench.HostFacts{ApiVersion: engine.APIVersion, Facts: facts}); err != nil {
		return nil, err
	}
	if err = h.dir.WritePlan(plan); err != nil {
		return nil, err
	}
	ws, err := newWorkspace(g, h.dir)
	if err != nil {
		return nil, err
	}
	h.handle.Claim, h.handle.Work = ws.ID, ws.Work
	return h, h.begin(host)
}

// lasting requires that the arm's slots outlive this program.
func lasting(op string, arm engine.Arm) error {
	if _, ok := arm.(engine.Adopter); ok {
		return nil
	}
	return &engine.Error{Op: op, Err: fmt.Errorf("%w: a slot of the %s arm ends with the program that made it", engine.ErrRefused, arm.Describe().Kind), Hint: "name another arm with --arm"}
}

// begin writes the first line of the chain.
func (h *hand) begin(host bench.SHA256) error {
	settings, err := canonical.Digest(h.handle.Settings)
	if err != nil {
		return err
	}
	return h.dir.Events.Append(bench.Receipt{Time: engine.Timestamp(time.Now()), Event: "run_start", Digests: map[string]bench.SHA256{
		"manifest": h.handle.Manifest, "plan": h.handle.Plan, "workload": h.handle.Workload, "host": host, "settings": settings,
	}})
}

// openHand takes a slot for a command, after every check of whose it is.
func openHand(ctx context.Context, g *globals, name string) (_ *hand, err error) {
	op := "take slot " + name
	if err := checkName(name); err != nil {
		return nil, err
	}
	folder := slotFolder(g.State, name)
	if _, err := os.Lstat(folder); errors.Is(err, fs.ErrNotExist) {
		return nil, &engine.Error{Op: op, Err: usage("there is no such slot"), Hint: "drumsbench slot status lists them"}
	}
	h := &hand{globals: g, name: name}
	if h.dir, err = reopen(ctx, folder); err != nil {
		return nil, busy(op, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	if err := h.read(ctx); err != nil {
		return nil, err
	}
	if found := h.foreign(); len(found) > 0 {
		f := found[0]
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: %s %s", engine.ErrRefused, f.Subject, f.Text), Findings: found, Hint: f.Hint}
	}
	return h, nil
}

// lockPatience is how long a slot is waited for: a look at it holds it as well.
const lockPatience = 500 * time.Millisecond

func reopen(ctx context.Context, folder string) (*record.Dir, error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		d, err := record.Reopen(folder)
		if !errors.Is(err, record.ErrRunning) {
			return d, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// busy says what it means that a slot's directory is held.
func busy(op string, err error) error {
	if errors.Is(err, record.ErrRunning) {
		return &engine.Error{Op: op, Err: fmt.Errorf("%w: another command works on it", engine.ErrRefused), Hint: "wait until it has ended"}
	}
	return err
}

// read takes everything that lies in the folder, and the ledger to go on with.
func (h *hand) read(ctx context.Context) (err error) {
	if err := h.look(ctx); err != nil {
		return err
	}
	h.ledger = h.dir.Ledger
	if h.handle.Run != "" {
		if h.unhold, err = record.Hold(h.handle.Run); err != nil {
			return busy("take slot "+h.name, err)
		}
		if h.ledger, err = record.OpenLedger(filepath.Join(h.handle.Run, record.LedgerFile)); err != nil {
			return err
		}
	}
	if h.ledger == nil {
		return &engine.Error{Op: "take slot " + h.name, Err: fmt.Errorf("%w: its ledger is gone", engine.ErrRefused), Hint: "nobody knows any more what it owns; look for drums-" + h.handle.Claim + " on the host"}
	}
	h.open = h.ledger.Open()
	return nil
}

// look reads what lies in the folder and changes nothing.
func (h *hand) look(ctx context.Context) (err error) {
	op := "take slot " + h.name
	if h.handle, h.known, err = record.ReadHandle(h.dir.Path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", engine.ErrRefused, errUnfinished)
		}
		return &engine.Error{Op: op, Err: err, Hint: "drumsbench slot release " + h.name + " takes away what it left"}
	}
	last, n, err := lastCommand(h.dir.Path)
	if err != nil {
		return err
	}
	h.commands = n
	if last.handle != h.known {
		return h.refuse(record.HandleFile, "is not what the last command on the slot wrote down", string(last.handle), string(h.known))
	}
	if h.manifest, _, err = record.ReadManifest(h.dir.Path); err != nil {
		return &engine.Error{Op: op, Err: err, Hint: "drumsbench slot release " + h.name + " takes the slot away by its ledger"}
	}
	h.arm, _, err = newArm(ctx, h.handle.Arm, h.manifest.Arms, h.State)
	return err
}

var errUnfinished = errors.New("the command that was to make it did not end")

func (h *hand) refuse(subject, text, want, have string) error {
	hint := "drumsbench slot release " + h.name + " takes the slot away by its ledger"
	return &engine.Error{Op: "take slot " + h.name, Err: fmt.Errorf("%w: %s %s", engine.ErrRefused, subject, text), Hint: hint,
		Findings: []bench.Finding{{Verdict: engine.Fail, Subject: subject, Text: text, Want: want, Have: have}}}
}

// command is what the receipt of a command says.
type command struct {
	handle bench.SHA256
	// run is the run that left the slot.
	run string
}

// lastCommand reads the chain: the last command that is written down, and how many there are.
func lastCommand(dir string) (last command, n int, err error) {
	receipts, _, err := record.ReadEvents(dir)
	if err != nil {
		return last, 0, err
	}
	for _, r := range receipts {
		if r.Kind != record.KindCommand {
			continue
		}
		n++
		if digest := record.HandleNamed(r); digest != "" {
			last.handle = digest
		}
		for _, f := range r.Facts {
			if f.Name == factRun {
				last.run = f.Value
			}
		}
	}
	return last, n, nil
}

// foreign finds why the slot is not for this program, on this host, to go on with.
func (h *hand) foreign() (found []bench.Finding) {
	release := "drumsbench slot release " + h.name + " takes it away, whatever made it"
	add := func(subject, text, hint, want, have string) {
		found = append(found, bench.Finding{Verdict: engine.Fail, Subject: subject, Text: text, Hint: hint, Want: want, Have: have})
	}
	differ := func(subject, text, hint, want, have string) {
		if want != have {
			add(subject, text, hint, want, have)
		}
	}
	boot, err := record.BootID()
	if err != nil {
		boot = err.Error()
	}
	differ("boot", "is another: the host was started anew since the slot was made, and only its files can be left", release, h.handle.Boot, boot)
	version, err := engineVersion()
	if err != nil {
		version.Sha256 = bench.SHA256(err.Error())
	}
	differ("engine", "is another: the slot was made by another drumsbench", "use the program that made it; "+release, string(h.handle.Engine.Sha256), string(version.Sha256))
	differ("name", "is another: the folder was moved", release, string(h.handle.Name), h.name)
	work, err := filepath.EvalSymlinks(filepath.Dir(h.handle.Work))
	if err != nil {
		work = filepath.Dir(h.handle.Work)
	}
	state, err := filepath.EvalSymlinks(filepath.Join(h.State, "work"))
	if err != nil {
		state = filepath.Join(h.State, "work")
	}
	differ("state directory", "is another than the slot's", "name the slot's with --state", work, state)
	differ("claim", "is not that of the scratch directory", release, filepath.Base(h.handle.Work), h.handle.Claim)
	text, err := canonical.JSON(h.manifest)
	manifest := canonical.Sum(text)
	if err != nil {
		manifest = bench.SHA256(err.Error())
	}
	differ(record.ManifestFile, "was changed", release, string(h.handle.Manifest), string(manifest))
	plan, err := record.ReadRegular(filepath.Join(h.dir.Path, record.PlanFile))
	if err != nil {
		plan = []byte(err.Error())
	}
	differ(record.PlanFile, "was changed", release, string(h.handle.Plan), string(canonical.Sum(plan)))
	workload, err := compile.Workload(h.manifest)
	if err != nil {
		workload = bench.SHA256(err.Error())
	}
	differ("workload", "is not that of the manifest", release, string(h.handle.Workload), string(workload))
	differ("image pin", "is not that of the manifest", release, string(h.handle.Image), string(h.manifest.Image.Sha256))
	differ("server pin", "is not that of the manifest", release, string(h.handle.Server), string(h.manifest.Guest.Server.Sha256))
	if have := h.arm.Describe().Settings; !reflect.DeepEqual(have, h.handle.Settings) {
		add("arm settings", "are others", release, fmt.Sprint(h.handle.Settings), fmt.Sprint(have))
	}
	if now := ownedThings(h.open); !reflect.DeepEqual(now, h.handle.Owned) {
		text := "owns other things than the last command wrote down: a command was cut short"
		if len(now) == 0 {
			text = "owns nothing any more: the slot was swept"
		}
		add("ledger", text, release, count(len(h.handle.Owned), "thing"), count(len(now), "thing"))
	}
	if h.handle.Place == nil {
		add("slot", "is not there: "+h.handle.Reason, release, "", "")
	}
	return found
}

// ownedThings are a ledger's things as a handle has them.
func ownedThings(open []record.Owned) []bench.OwnedThing {
	list := make([]bench.OwnedThing, len(open))
	for i, o := range open {
		list[i] = bench.OwnedThing{Id: o.ID, Kind: o.Kind, Claim: o.Claim, Identity: o.Identity}
	}
	return list
}

// Close lets go of the slot.
func (h *hand) Close() error {
	var errs []error
	if h.ledger != nil && h.ledger != h.dir.Ledger {
		errs = append(errs, h.ledger.Close())
	}
	if h.unhold != nil {
		errs = append(errs, h.unhold())
	}
	return errors.Join(append(errs, h.dir.Close())...)
}

// adopt are the parameters that take the slot over.
func (h *hand) adopt() bench.AdoptParams {
	return bench.AdoptParams{Image: h.manifest.Image, Place: *h.handle.Place, Owned: h.handle.Owned}
}

// workspace that the slot's things are in.
func (h *hand) workspace() *engine.Workspace {
	ws := &engine.Workspace{
		Run: h.dir.Path, Work: h.handle.Work, State: h.State, ID: h.handle.Claim,
		Ledger: h.ledger, Evidence: h.dir.Evidence, Log: h.Log,
	}
	for _, o := range h.ledger.Open() {
		if o.Kind == "directory" && o.Claim.Path == ws.Work {
			ws.Owned = o.ID
		}
	}
	return ws
}

// done is what a command came to.
type done struct {
	engine.Result
	// receipts of its steps.
	receipts []bench.Receipt
}

// run executes a command's plan and writes down what it left. keep says whether
// a slot that the plan made stays although something is wrong with it.
func (h *hand) run(ctx context.Context, word string, plan *engine.Plan, progress engine.Progress, keep bool) (d done, err error) {
	began := time.Now()
	step := fmt.Sprintf("%d.%s", h.commands, word)
	chain := &commandChain{events: h.dir.Events, prefix: step + "/"}
	executor := engine.Executor{
		Plan: plan, Bindings: steps.Bindings(), Arm: h.arm, Workspace: h.workspace(), Sink: chain, Progress: progress,
		// What was there before the command is never released by it.
		Keep: func(v bench.RunVerdict) bool {
			return h.handle.Place != nil || v == engine.RunPassed || keep && ctx.Err() == nil
		},
	}
	d.Result, err = executor.Run(ctx)
	d.receipts = chain.receipts
	if err != nil {
		return d, err
	}
	if err := h.note(d.Result); err != nil {
		return d, err
	}
	return d, h.write(step, plan, d, began)
}

// note takes into the handle what a command left.
func (h *hand) note(r engine.Result) error {
	h.handle.Changed, h.handle.Reason = engine.Timestamp(time.Now()), r.Reason
	h.handle.Owned = ownedThings(h.ledger.Open())
	if r.Kept == nil {
		return nil
	}
	if cp := r.Kept.Checkpoint; cp.Dir != "" {
		digest, err := canonical.Digest(cp.Handle)
		if err != nil {
			return err
		}
		h.handle.Checkpoint = &bench.CheckpointReference{Dir: cp.Dir, Sha256: digest}
	}
	lasting, ok := r.Kept.Place.(engine.Lasting)
	if !ok {
		return &engine.Error{Op: "keep slot " + h.name, Err: fmt.Errorf("%w: the %s arm cannot say where it is", engine.ErrRefused, h.handle.Arm)}
	}
	place, err := lasting.Handle()
	if err != nil { // nobody can go on with it; release takes it away by its ledger
		h.handle.Reason, h.handle.State, h.handle.Place = err.Error(), "vacant", nil
		return nil
	}
	h.handle.State, h.handle.Place = place.State, &place
	return nil
}

// write writes the handle, then the receipt that has its digest.
func (h *hand) write(step string, plan *engine.Plan, d done, began time.Time) (err error) {
	if h.known, err = h.dir.WriteHandle(h.handle); err != nil {
		return err
	}
	version, err := engineVersion()
	if err != nil {
		return err
	}
	r := bench.Receipt{Time: engine.Timestamp(time.Now()), Event: "step", Step: step, Kind: record.KindCommand, Verdict: asVerdict(d.Verdict),
		Start: "0", End: bench.Int64(strconv.FormatInt(int64(time.Since(began)), 10)), Findings: d.Findings,
		Facts: []bench.Fact{fact(record.HandleFact, string(h.known)), fact(factEngine, string(version.Sha256))}}
	if h.handle.Run != "" {
		r.Facts = append(r.Facts, fact(factRun, h.handle.Run))
	}
	if plan != nil {
		stored, err := h.dir.Evidence.Put("plan.json", plan.JSON())
		if err != nil {
			return err
		}
		r.Evidence = []bench.Evidence{stored}
		r.Facts = append(r.Facts, fact(factPlan, string(plan.Digest())))
	}
	h.commands++
	return h.dir.Events.Append(r)
}

func fact(name, value string) bench.Fact {
	return bench.Fact{Name: name, Known: true, Value: value, Source: "drumsbench"}
}

// asVerdict is a plan's verdict as that of a step.
func asVerdict(v bench.RunVerdict) bench.Verdict {
	switch v {
	case engine.RunPassed:
		return engine.Pass
	case engine.RunBlocked:
		return engine.VerdictUnknown
	case engine.RunReview:
		return engine.Review
	}
	return engine.Fail
}

// commandChain puts the receipts of a command's steps into the slot's chain,
// each under the command's name; the chain's own start and end are the slot's.
type commandChain struct {
	events   *record.Events
	prefix   string
	receipts []bench.Receipt
}

func (c *commandChain) Append(r bench.Receipt) error {
	if r.Event != "step" {
		return nil
	}
	r.Step = c.prefix + r.Step
	c.receipts = append(c.receipts, r)
	return c.events.Append(r)
}

//go:build linux && !elsewhere

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/arms/display"
	"github.com/drumsbench/drumsbench/arms/hostexec"
	"github.com/drumsbench/drumsbench/arms/hostprobe"
	"github.com/drumsbench/drumsbench/arms/image"
	"github.com/drumsbench/drumsbench/arms/pagecache"
	"github.com/drumsbench/drumsbench/arms/sweep"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/density"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/engine/sign"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps"
)

type runCmd struct {
	Path  string   `arg:"" optional:"" help:"Folder of a manifest, or its .cue file."`
	Tag   []string `short:"t" sep:"none" placeholder:"KEY=VALUE" help:"Set a field that carries @tag(KEY); may be repeated."`
	Arm   []string `placeholder:"KIND" help:"Run only these arms of the manifest."`
	Reset []string `placeholder:"MODE" help:"Run only these resets of the manifest's experiment: restore, cold."`
	// The slot, its ledger's things included, stays as a slot by hand.
	KeepOnFailure  bool   `help:"Keep the slot of a run that does not pass: drumsbench slot goes on with it."`
	FromCheckpoint string `type:"existingdir" placeholder:"DIR" help:"Folder of a checkpoint that an earlier run sealed: every rollout restores it, nothing is dumped."`
	// A pin that was rewritten for an image built here is a fact of the run.
	RepinnedFrom string `type:"existingfile" placeholder:"FILE" help:"File of the pins that the manifest had before an image was built here; each that differs is recorded as re-pinned."`
	Profile      bool   `help:"Print where the time of the resets went, too; see: drumsbench show --profile."`
	Registration string `type:"path" placeholder:"FILE" help:"Registration of the experiment that the run belongs to; refused for another manifest or program. See: drumsbench register."`
	Resume       string `type:"existingdir" placeholder:"RUN" help:"Go on with the run in this directory, whose engine ended in its middle; of its manifest, which need not be named."`
	Key          string `type:"path" env:"DRUMSBENCH_KEY" placeholder:"FILE" help:"Sign the end of each run's chain with this private key: ed25519, PKCS#8 in PEM (or $$${env})."`
	Out          string `type:"path" placeholder:"DIR" help:"Folder of the runs (default: a new one below runs in the state directory)."`
}

// Help teaches the command.
func (runCmd) Help() string {
	return `Compiles the manifest and executes its plan, once for each arm and reset that the manifest names, and
as often as it has blocks, in the order that it states: in turn (abba), or one arm after the other.
Each run leaves a directory with its manifest, plan, host facts, event chain, ledger, evidence and
record; the table at the end is made from the records. A run that did not pass yields no number. Several
runs end in their comparison, or in its refusal, which comparison.json keeps: drumsbench compare tells more.

The first SIGINT or SIGTERM stops the run and undoes what it made; a second one exits at once.

With --from-checkpoint the plan is another one: the checkpoint is opened and verified, then the rollouts
restore it. It is refused, with the reason, if the checkpoint is of another image, kernel, CPU, criu or
drumsbench, of another workload than the manifest, or not as it was sealed.

With --resume an interrupted run goes on in its own chain: rollouts that were finished stay, once their
receipts and evidence were verified; what was interrupted is named as invalid and run anew, in the slots
of drums and oci that are still good; everything else that was left is swept. It is
refused, with the reason, where manifest, plan, program, arm or host are not the same, the run has ended,
or another engine drives it. A level or a window of an experiment is measured in one piece: run it again.

Examples:

  drumsbench run manifests/locks
  drumsbench run -t locks=criu --reset restore manifests/locks
  drumsbench run --keep-on-failure --reset restore manifests/locks
  drumsbench run --resume runs/first/drums-restore
  drumsbench run --from-checkpoint runs/first/drums-restore/checkpoints/slot-0 manifests/locks

Exit codes: 0 every run passed and may be compared, 1 one failed, 2 wrong usage, 3 one was blocked by
something unknown, or a comparison was refused, 4 one waits for a person's review. The first of 1, 3, 4 that holds for any run.`
}

// Run executes every arm-block in turn.
func (c *runCmd) Run(ctx context.Context, g *globals) error {
	switch {
	case c.Resume != "":
		return c.resume(ctx, g)
	case c.Path == "":
		return usage("expected \"<path>\"")
	}
	m, err := loadDeclared(c.Path, c.Tag)
	if err != nil {
		return err
	}
	workload, err := compile.Workload(m.Manifest)
	if err != nil {
		return err
	}
	from, err := c.checkpoint(m.Manifest)
	if err != nil {
		return err
	}
	registered, err := c.registered(m.Manifest)
	if err != nil {
		return err
	}
	kinds, err := choose("arm", armKinds(m.Manifest.Arms), c.Arm)
	if err != nil {
		return err
	}
	resets, err := choose("reset", m.Manifest.Experiment.Reset, c.Reset)
	if err != nil {
		return err
	}
	if c.Out == "" {
		c.Out = filepath.Join(g.State, "runs", string(m.Manifest.Name)+"-"+time.Now().UTC().Format("20060102T150405.000"))
	}
	if entries, err := os.ReadDir(c.Out); err == nil && len(entries) > 0 {
		return &engine.Error{Op: "make folder of runs", Err: fmt.Errorf("%w: %s is not empty", engine.ErrRefused, c.Out), Hint: "name another folder with --out"}
	}
	var key *sign.Key
	if c.Key != "" { // now, not after the runs
		k, err := sign.ReadKey(c.Key)
		if err != nil {
			return err
		}
		key = &k
	}
	repinned, err := repinnedFacts(c.RepinnedFrom, m.Manifest)
	if err != nil {
		return err
	}
	if p := m.Manifest.Policy; p.Host != nil { // now, not after a dump; the step compares again
		if err := hostexec.Verify(engine.HostProgram{Exec: p.Host.Exec, Dir: m.Dir, SHA256: p.Host.Sha256}); err != nil {
			return err
		}
	}
	for _, kind := range kinds { // now, not after the runs of other arms
		if _, _, err := newArm(ctx, kind, m.Manifest.Arms, g.State); err != nil {
			return fmt.Errorf("arm %s: %w", kind, err)
		}
	}
	var dirs []string
	var kept []bench.SlotHandle
	var records []bench.Record
	receipts, err := receiptFacts(m)
	if err != nil {
		return err
	}
	turns := register.Schedule(kinds, resets, m.Manifest.Experiment)
	times := earlierRuns(workload, filepath.Join(g.State, "runs"), filepath.Dir(c.Out))
	allowed, err := budget(g, counted(m.Manifest), times, turns)
	if err != nil {
		return err
	}
	ordinary := 0
	for i, p := range turns {
		if p.Part == nil {
			ordinary++
		}
		if i > 0 {
			sayLeft(g, times, turns, i, counted(m.Manifest))
		}
		var first bench.Record // of the turn
		for ; ; p = p.Next() {
			b := block{globals: g, loaded: m, workload: workload, kind: p.Arm, reset: p.Reset, part: p.Part, facts: slices.Concat(p.Facts(m.Manifest.Experiment), pageCacheFacts(m.Manifest.Experiment), repinned, receipts),
				dir: filepath.Join(c.Out, p.Folder()), from: from, keep: c.KeepOnFailure, registered: registered, until: allowed.until, key: key}
			r, err := b.run(ctx)
			if err != nil {
				return err
			}
			dirs, records = append(dirs, b.dir), append(records, r)
			times.take(r)
			kept = append(kept, b.kept...)
			if first.Started == "" {
				first = r
			}
			if ctx.Err() != nil || allowed.over() || !p.Again(m.Manifest.Experiment, first, r) || !allowed.again(g, p.Next(), rolloutsOf(p, counted(m.Manifest))) {
				break
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	whole := context.WithoutCancel(ctx) // an interrupted run has its tables too
	runs, err := readRuns(whole, dirs)
	if err != nil {
		return err
	}
	if err := printRuns(g, runs, true, comparable(whole, runs)); err != nil {
		return err
	}
	if c.Profile && !g.json() { // for programs a second document would follow the first: show --profile -o json has it alone
		if err := printProfiles(g, runs); err != nil {
			return err
		}
	}
	if err := printKept(g, kept); err != nil {
		return err
	}
	worst := worstExit(records)
	if code := shownExit(runs); worst == codeDone && code != codeDone {
		worst = code
	}
	if worst == codeDone && allowed.cut {
		worst = codeBlocked
	}
	if ordinary > 1 && ctx.Err() == nil { // what the levels and windows say stands in the table of densities
		refused, err := c.compare(ctx, g, dirs[:ordinary])
		if err != nil {
			return err
		}
		if worst == codeDone {
			worst = refused
		}
	}
	return exitCode(worst)
}

// compare ends an experiment: its runs side by side, or why they cannot be. For
// programs the result is the file that it leaves.
func (c *runCmd) compare(ctx context.Context, g *globals, dirs []string) (int, error) {
	result, err := compareRuns(ctx, dirs)
	if err != nil {
		return 0, err
	}
	if err := writeComparisons(c.Out, result); err != nil {
		return 0, err
	}
	if !g.json() {
		if err := printComparisons(g, result, true); err != nil {
			return 0, err
		}
	}
	return comparedExit(result), nil
}

// checkpoint reads the handle of --from-checkpoint, and sets arm and reset by it; nil without one.
func (c *runCmd) checkpoint(m bench.Manifest) (*bench.CheckpointParams, error) {
	if c.FromCheckpoint == "" {
		return nil, nil
	}
	cp, err := readCheckpoint(c.FromCheckpoint)
	if err != nil {
		return nil, err
	}
	if len(c.Arm) == 0 {
		c.Arm = []string{cp.Handle.Arm}
	}
	if !slices.Equal(c.Arm, []string{cp.Handle.Arm}) {
		return nil, usage(fmt.Sprintf("the checkpoint is of arm %s and serves no other", cp.Handle.Arm))
	}
	if len(c.Reset) == 0 {
		c.Reset = []string{"restore"}
	}
	if !slices.Equal(c.Reset, []string{"restore"}) {
		return nil, usage("a checkpoint is for --reset restore only")
	}
	params, err := fromCheckpoint(cp, m)
	return &params, err
}

// registered is the registration that a run is to belong to, if the run is of it; nil without one.
func (c *runCmd) registered(m bench.Manifest) (*register.Registered, error) {
	if c.Registration == "" {
		return nil, nil
	}
	if c.FromCheckpoint != "" {
		return nil, usage("a registered experiment makes its own checkpoints: leave out --from-checkpoint")
	}
	if len(c.Arm)+len(c.Reset) > 0 {
		return nil, &engine.Error{Op: "run registered experiment", Err: usage("--arm and --reset are not for a registered experiment, which runs whole and in its order"),
			Hint: "leave them out, or register a manifest that has only these arms and resets"}
	}
	r, err := register.Read(c.Registration)
	if err != nil {
		return nil, err
	}
	program, err := engineVersion()
	if err != nil {
		return nil, err
	}
	if err := r.Admit(m, program); err != nil {
		return nil, err
	}
	if now := bench.Time(time.Now().UTC().Format(time.RFC3339Nano)); !register.Before(r.Time, now) {
		return nil, &engine.Error{Op: "run registered experiment", Err: fmt.Errorf("%w: it was registered at %s, which is not before now", engine.ErrRefused, r.Time), Hint: "set the host's clock"}
	}
	return &r, nil
}

// choose is what the manifest has, or those of it that were asked for.
func choose(what string, have, want []string) ([]string, error) {
	for _, w := range want {
		if !slices.Contains(have, w) {
			return nil, usage(fmt.Sprintf("the manifest has no %s %q; it has %s", what, w, strings.Join(have, ", ")))
		}
	}
	if len(want) > 0 {
		return want, nil
	}
	return have, nil
}

// worstExit is the first of 1, 3, 4 that any run ends with, else 0.
func worstExit(records []bench.Record) int {
	worst := 0
	for _, v := range []bench.RunVerdict{engine.RunReview, engine.RunBlocked, engine.RunFailed} {
		for _, r := range records {
			if r.Verdict == v {
				worst = engine.ExitCode(v)
			}
		}
	}
	return worst
}

// block is one arm with one reset: one run.
type block struct {
	*globals
	loaded      compile.Loaded
	workload    bench.SHA256
	kind, reset string
	// part of the experiment that the run is; nil for an ordinary one.
	part *bench.Part
	dir  string
	// facts of the run beside the host's.
	facts []bench.Fact
	// from is the checkpoint that every rollout restores; nil for one that the run dumps.
	from *bench.CheckpointParams
	// registered is the registration that the run belongs to; nil for none.
	registered *register.Registered
	// until is when the experiment's time is over; zero is never.
	until time.Time
	// key signs the end of the chain; nil for none.
	key *sign.Key
	// resume is what an interrupted run left, nil for a new one.
	resume *resumable
	// keep the slot of a run that does not pass; kept has it then.
	keep bool
	kept []bench.SlotHandle
}

// repinnedFacts say of each pin in file whether the manifest still has it.
func repinnedFacts(file string, m bench.Manifest) ([]bench.Fact, error) {
	if file == "" {
		return nil, nil
	}
	pins, err := image.ReadPins(file)
	if err != nil {
		return nil, err
	}
	stem := strings.TrimSuffix(filepath.Base(m.Image.File), ".qcow2")
	var facts []bench.Fact
	for name, now := range map[string]bench.SHA256{stem: m.Image.Sha256, "guestd": m.Guest.Server.Sha256} {
		f := bench.Fact{Name: "repinned." + name, Source: file}
		switch was, ok := pins[name]; {
		case !ok:
			f.Reason, f.Source = "the earlier pins do not have it", ""
		case was == now:
			f.Known, f.Value = true, "no"
		default:
			f.Known, f.Value = true, fmt.Sprintf("from %s to %s", was, now)
		}
		facts = append(facts, f)
	}
	sort.Slice(facts, func(i, k int) bool { return facts[i].Name < facts[k].Name })
	return facts, nil
}

// run executes the block and returns its record, which was read back from the
// run directory. An error means that there is no record.
func (b *block) run(ctx context.Context) (_ bench.Record, err error) {
	version, err := engineVersion()
	if err != nil {
		return bench.Record{}, err
	}
	plan, err := b.plan()
	if err != nil {
		return bench.Record{}, err
	}
	arm, facts, err := newArm(ctx, b.kind, b.loaded.Manifest.Arms, b.State)
	if err != nil {
		return bench.Record{}, err
	}
	if b.keep {
		if err := lasting("keep slot on failure", arm); err != nil {
			return bench.Record{}, err
		}
	}
	description := arm.Describe()
	if d := b.loaded.Manifest.Image.Driver; d != nil {
		description.Differences = append(description.Differences, display.Difference(*d))
	}
	header := record.Header{
		Run: filepath.Base(filepath.Dir(b.dir)) + "/" + filepath.Base(b.dir), Arm: b.kind, Engine: version,
		Settings: description.Settings, Tags: b.loaded.Tags, Differences: description.Differences,
	}
	var dir *record.Dir
	var digests map[string]bench.SHA256
	var how []bench.Fact
	var resume *engine.Resume
	if b.resume != nil {
		if err := b.resume.same(plan, header, facts); err != nil {
			return bench.Record{}, err
		}
		if resume, err = b.resume.keep(plan); err != nil {
			return bench.Record{}, err
		}
		if dir, err = b.resume.take(ctx, b, &arm); err != nil {
			return bench.Record{}, err
		}
	} else {
		if err := os.MkdirAll(filepath.Dir(b.dir), 0o755); err != nil {
			return bench.Record{}, &engine.Error{Op: "make folder of runs", Err: err}
		}
		if dir, err = record.Create(b.dir); err != nil {
			return bench.Record{}, err
		}
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if b.resume != nil && resume == nil { // it ended; only its record is missing
		return b.finish(dir, header)
	}
	if b.resume == nil {
		if digests, err = b.begin(dir, plan, header, append(facts, b.facts...)); err != nil {
			return bench.Record{}, err
		}
		if how, err = b.how(); err != nil {
			return bench.Record{}, err
		}
	}

	var events engine.Sink = dir.Events
	if b.registered != nil {
		path, err := filepath.Abs(b.dir)
		if err != nil {
			return bench.Record{}, &engine.Error{Op: "find folder of run", Err: err}
		}
		events = register.StartsIn(filepath.Join(b.State, registrationsFolder), b.registered.Digest, path, events)
		registration, err := dir.WriteRegistration(b.registered.JSON)
		if err != nil {
			return bench.Record{}, err
		}
		digests["registration"] = registration
	}

	if seams.events != nil {
		events = seams.events(events)
	}
	ws, err := b.workspace(dir)
	if err != nil {
		return bench.Record{}, err
	}
	ws.Manifest, ws.Host = b.loaded.Dir, hostexec.New(ws, arm)
	ws.Cache = pagecache.Cache{}
	ws.Canary = filepath.Join(b.State, "bin", "canary")
	if ws.Prober, err = prober(b.State); err != nil {
		return bench.Record{}, err
	}
	progress, stop := newView(b.globals, b.kind+" "+b.reset, plan.Steps)
	if seams.progress != nil {
		progress = seams.progress(ws, progress)
	}
	paused, unwatch := watchPauses()
	defer unwatch()
	executor := engine.Executor{
		Plan: plan, Bindings: steps.Bindings(), Arm: arm, Workspace: ws, Paused: paused,
		Sink: events, Progress: progress, Digests: digests, Facts: how, Resume: resume,
		Parallel: max(2, runtime.NumCPU(), int(b.slots())), Until: b.until,
		Keep: func(v bench.RunVerdict) bool { return b.keep && v != engine.RunPassed && ctx.Err() == nil },
	}
	res, err := executor.Run(ctx)
	stop()
	if err != nil {
		return bench.Record{}, err
	}
	r, err := b.finish(dir, header)
	if err != nil {
		return r, err
	}
	if res.Kept == nil {
		return r, nil
	}
	h, err := keepSlot(b.globals, dir, b.kind, description.Settings, ws, res)
	b.kept = append(b.kept, h)
	return r, err
}

// begin writes what a run is, and returns the digests that its first receipt names.
func (b *block) begin(dir *record.Dir, plan *engine.Plan, header record.Header, facts []bench.Fact) (map[string]bench.SHA256, error) {
	digests := map[string]bench.SHA256{}
	note := func(name string, d bench.SHA256, err error) error {
		digests[name] = d
		return err
	}
	manifest, err := dir.WriteManifest(b.loaded.Manifest)
	settings, serr := canonical.Digest(header.Settings)
	host, herr := dir.WriteHost(bench.HostFacts{ApiVersion: engine.APIVersion, Facts: facts})
	head, derr := header.Digest()
	return digests, errors.Join(note("manifest", manifest, err), note("settings", settings, serr), note("host", host, herr), note("header", head, derr), dir.WritePlan(plan))
}

// finish makes the record of a run that has ended, and signs it where there is a key.
func (b *block) finish(dir *record.Dir, header record.Header) (bench.Record, error) {
	r, err := record.Build(b.dir, header)
	if err != nil {
		return bench.Record{}, err
	}
	if _, err = dir.WriteRecord(r); err != nil {
		return r, err
	}
	if b.key != nil {
		return r, dir.SignHead(*b.key)
	}
	return r, nil
}

// workspace is a new one, or that of the interrupted attempt, whose things were swept:
// a run has one claim.
func (b *block) workspace(dir *record.Dir) (*engine.Workspace, error) {
	if b.resume != nil && b.resume.slots != nil {
		return b.resume.slots.ws, nil
	}
	if b.resume == nil || b.resume.claim == "" {
		return newWorkspace(b.globals, dir)
	}
	return workspaceOf(b.globals, dir, b.resume.claim)
}

// plan of the block.
func (b *block) plan() (*engine.Plan, error) {
	if b.from != nil {
		return steps.BlockFrom(b.loaded.Manifest, *b.from)
	}
	return steps.BlockOf(b.loaded.Manifest, b.workload, b.reset, b.part)
}

// slots that there are at the same time, also while their policies wait.
func (b *block) slots() int64 {
	if b.part != nil {
		return b.part.Slots
	}
	if branching := b.loaded.Manifest.Task.Branching; branching != nil {
		return int64(len(branching.Branches))
	}
	return b.loaded.Manifest.Experiment.Slots + b.loaded.Manifest.Experiment.Pool
}

// prober of the host, by the schema's rule for a quiet one.
func prober(state string) (engine.HostProber, error) {
	if seams.prober != nil {
		return seams.prober, nil
	}
	var rule bench.QuietRule
	if err := compile.Table("quiet", &rule); err != nil {
		return nil, err
	}
	return hostprobe.New(rule, state), nil
}

// pageCacheFacts say what may be left in memory from one reset to the next, which is
// part of each number.
func pageCacheFacts(e bench.Experiment) []bench.Fact {
	policy := engine.Known("kept", "experiment.pageCache: the engine has nothing drop it", engine.ViewHost)
	if e.PageCache == steps.PageCacheDropped {
		policy = engine.Known("dropped before each reset", "experiment.pageCache: the drop-cache steps, which read it back", engine.ViewHost)
	}
	return []bench.Fact{policy.Fact("page-cache")}
}

// receiptFacts say of each price that names a bill that the bill was there, and is the pinned file.
func receiptFacts(m compile.Loaded) (facts []bench.Fact, err error) {
	for name, pin := range density.Receipts(m.Manifest.Experiment.Prices) {
		path := pin.File
		if !filepath.IsAbs(path) {
			path = filepath.Join(m.Dir, path)
		}
		data, err := record.ReadRegular(path)
		if err == nil && canonical.Sum(data) != pin.Sha256 {
			err = fmt.Errorf("%w: it has sha256 %s, the pin is %s", engine.ErrRefused, canonical.Sum(data), pin.Sha256)
		}
		if err != nil {
			return nil, &engine.Error{Op: "read receipt of price " + name, Err: err, Hint: "pin the bill that there is, or leave it out: costs are estimates then"}
		}
		facts = append(facts, bench.Fact{Name: density.ReceiptFact + name, Known: true, Value: string(pin.Sha256), Source: path})
	}
	sort.Slice(facts, func(i, k int) bool { return facts[i].Name < facts[k].Name })
	return facts, nil
}

// newWorkspace makes a scratch directory with a random claim.
func newWorkspace(g *globals, dir *record.Dir) (*engine.Workspace, error) {
	var claim [6]byte
	if _, err := rand.Read(claim[:]); err != nil {
		return nil, err
	}
	return workspaceOf(g, dir, hex.EncodeToString(claim[:]))
}

// workspaceOf makes the scratch directory of a claim.
func workspaceOf(g *globals, dir *record.Dir, id string) (*engine.Workspace, error) {
	ws := workspaceIn(g, dir, id)
	if err := ws.MakeWork(); err != nil {
		return ws, err
	}
	if err := sweep.Bind(ws); err != nil {
		return ws, errors.Join(err, ws.Release(context.Background()))
	}
	return ws, nil
}

// workspaceIn is the workspace of a claim, whose scratch directory may be there or not.
func workspaceIn(g *globals, dir *record.Dir, id string) *engine.Workspace {
	ws := &engine.Workspace{
		Run: dir.Path, Work: filepath.Join(g.State, "work", id), State: g.State, ID: id,
		Ledger: dir.Ledger, Evidence: dir.Evidence, Log: g.Log,
	}
	if seams.ledger != nil {
		ws.Ledger = seams.ledger(ws.Ledger)
	}
	return ws
}

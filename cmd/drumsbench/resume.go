//go:build linux && !elsewhere

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/arms/hostexec"
	"github.com/drumsbench/drumsbench/arms/sweep"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/sign"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps"
)

// A run whose engine was killed, or whose host was, is gone on with in its own
// directory and chain. What it was told is in its first receipt; everything else is
// compared with what is there now, and nothing of it is believed unread.

// Facts of run_start: what a run has to be told again when it is resumed.
const (
	factFolder     = "run.folder"
	factTags       = "run.tags"
	factPart       = "run.part"
	factCheckpoint = "run.checkpoint"
	factProgram    = "run.engine"
)

const opResume = "resume run"

// how are the facts of run_start.
func (b *block) how() ([]bench.Fact, error) {
	version, err := engineVersion()
	if err != nil {
		return nil, err
	}
	tags, terr := json.Marshal(b.loaded.Tags)
	part, perr := json.Marshal(b.part)
	from, ferr := json.Marshal(b.from)
	return []bench.Fact{fact(factFolder, b.loaded.Dir), fact(factTags, string(tags)), fact(factPart, string(part)), fact(factCheckpoint, string(from)), fact(factProgram, string(version.Sha256))}, errors.Join(terr, perr, ferr)
}

// resumable is a run that did not end, or that has no record.
type resumable struct {
	dir   string
	start bench.Receipt
	// last is the last receipt.
	last  bench.Receipt
	steps map[string]bench.Receipt
	host  bench.HostFacts
	// dumps are the receipts of dump steps that stay.
	dumps []bench.Receipt
	// claim of the run, once it was swept; resume is what the executor goes on with.
	claim  string
	resume *engine.Resume
	// givers are the finished steps whose places are taken by steps that are run anew, with
	// the names of the slots; slots are those that were taken over, nil for none.
	givers map[string]string
	slots  *heritage
}

func refuseResume(hint, format string, args ...any) error {
	return &engine.Error{Op: opResume, Err: fmt.Errorf("%w: %s", engine.ErrRefused, fmt.Sprintf(format, args...)), Hint: hint}
}

const hintAgain = "run it again from its beginning, in another folder"

// resume goes on with a run.
func (c *runCmd) resume(ctx context.Context, g *globals) error {
	if len(c.Arm)+len(c.Reset)+len(c.Tag) > 0 && c.Path == "" || c.Out != "" || c.FromCheckpoint != "" || c.Registration != "" || c.RepinnedFrom != "" {
		return &engine.Error{Op: opResume, Err: usage("the run itself says what it is"), Hint: "only --keep-on-failure, --key and --profile go with --resume; a manifest that is named is compared"}
	}
	dir, err := filepath.Abs(c.Resume)
	if err != nil {
		return &engine.Error{Op: opResume, Err: err}
	}
	in, b, err := openInterrupted(dir)
	if err != nil {
		return err
	}
	b.globals, b.keep = g, c.KeepOnFailure
	if c.Path != "" {
		m, err := loadDeclared(c.Path, c.Tag)
		if err != nil {
			return err
		}
		if m.Digest != in.start.Digests["manifest"] {
			return refuseResume("leave the manifest out: the run has its own", "the manifest has digest %.12s, the run is of %.12s", m.Digest, in.start.Digests["manifest"])
		}
	}
	if c.Key != "" {
		k, err := sign.ReadKey(c.Key)
		if err != nil {
			return err
		}
		b.key = &k
	}
	if p := b.loaded.Manifest.Policy; p.Host != nil {
		if err := hostexec.Verify(engine.HostProgram{Exec: p.Host.Exec, Dir: b.loaded.Dir, SHA256: p.Host.Sha256}); err != nil {
			return err
		}
	}
	if e := b.loaded.Manifest.Experiment.Budget; e != nil && e.Time != "" {
		limit, err := time.ParseDuration(string(e.Time))
		if err != nil {
			return &engine.Error{Op: "read budget", Err: err}
		}
		b.until = time.Now().Add(limit)
	}
	r, err := b.run(ctx)
	if err != nil {
		return err
	}
	runs, err := readRuns(context.WithoutCancel(ctx), []string{dir})
	if err != nil {
		return err
	}
	if err := printRuns(g, runs, true, comparable(context.WithoutCancel(ctx), runs)); err != nil {
		return err
	}
	if c.Profile && !g.json() {
		if err := printProfiles(g, runs); err != nil {
			return err
		}
	}
	if err := printKept(g, b.kept); err != nil {
		return err
	}
	worst := worstExit([]bench.Record{r})
	if code := shownExit(runs); worst == codeDone && code != codeDone {
		worst = code
	}
	return exitCode(worst)
}

// openInterrupted reads a run that is to be resumed, after everything in it was
// compared with the digests that its chain names.
func openInterrupted(dir string) (*resumable, *block, error) {
	if !record.IsRun(dir) {
		return nil, nil, &engine.Error{Op: opResume, Err: usage(dir + " is no run"), Hint: "name the directory of one run, such as runs/first/drums-restore"}
	}
	release, err := record.HoldToRead(dir)
	if errors.Is(err, record.ErrRunning) {
		return nil, nil, refuseResume("wait until it has ended; an engine that hangs is ended by SIGTERM", "another engine, or a sweep, works in it: %v", err)
	}
	if err != nil {
		return nil, nil, err
	}
	defer release()
	problems, err := record.VerifyChain(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, refuseResume(hintAgain, "it ended before its first receipt")
	}
	if err != nil {
		return nil, nil, err
	}
	for _, p := range problems {
		if p.Kind != record.Torn && p.Kind != record.Cut {
			return nil, nil, refuseResume(p.Remedy(), "it is not as it was written: %v", p)
		}
	}
	in := &resumable{dir: dir, steps: map[string]bench.Receipt{}}
	receipts, _, err := record.ReadEvents(dir)
	if err != nil {
		return nil, nil, err
	}
	if len(receipts) == 0 || receipts[0].Event != "run_start" {
		return nil, nil, refuseResume(hintAgain, "it ended before its first receipt")
	}
	in.start, in.last = receipts[0], receipts[len(receipts)-1]
	if _, err := os.Lstat(filepath.Join(dir, record.RecordFile)); in.last.Event == "run_end" && err == nil {
		return nil, nil, refuseResume("drumsbench show "+dir+" shows it; to measure more, run again", "it is complete: it ended %s", in.last.Outcome)
	}
	for _, r := range receipts {
		if r.Event == "step" {
			in.steps[r.Step] = r
		}
	}
	b := &block{dir: dir, resume: in}
	if err := in.told(b); err != nil {
		return nil, nil, err
	}
	if b.part != nil {
		return nil, nil, refuseResume(hintAgain, "it is a %s of an experiment, which is measured in one piece", b.part.Kind)
	}
	return in, b, nil
}

// told takes from the run what it was told.
func (in *resumable) told(b *block) error {
	var plan bench.Plan
	for name, v := range map[string]any{record.PlanFile: &plan, record.HostFile: &in.host} {
		data, err := record.ReadRegular(filepath.Join(in.dir, name))
		if err == nil {
			err = json.Unmarshal(data, v)
		}
		if err != nil {
			return &engine.Error{Op: opResume, Err: err}
		}
	}
	m, digest, err := record.ReadManifest(in.dir)
	if err != nil {
		return err
	}
	b.loaded = compile.Loaded{Manifest: m, Digest: digest}
	b.workload, b.reset = plan.Workload, plan.Reset
	said := map[string]string{}
	for _, f := range in.start.Facts {
		said[f.Name] = f.Value
	}
	version, err := engineVersion()
	if err != nil {
		return err
	}
	if have := said[factProgram]; have != string(version.Sha256) {
		return refuseResume("use the program that began it, or "+hintAgain, "another drumsbench began it: %.12s, this is %.12s", have, version.Sha256)
	}
	b.loaded.Dir = said[factFolder]
	if err := errors.Join(json.Unmarshal([]byte(said[factTags]), &b.loaded.Tags), json.Unmarshal([]byte(said[factPart]), &b.part), json.Unmarshal([]byte(said[factCheckpoint]), &b.from)); err != nil {
		return refuseResume(hintAgain, "its first receipt does not say what it was told: %v", err)
	}
	kinds := armKinds(m.Arms)
	for _, kind := range kinds {
		if strings.HasPrefix(filepath.Base(in.dir), kind+"-") {
			b.kind = kind
		}
	}
	if b.kind == "" {
		return refuseResume("give the directory the name that it had", "%s is not named for an arm of the manifest, %s", filepath.Base(in.dir), strings.Join(kinds, ", "))
	}
	return nil
}

// volatile are facts of a host that change from one minute, or one boot, to the next.
var volatile = []string{"load-average", "boot-id"}

// same requires that plan, program, arm and host are those that the run began with.
func (in *resumable) same(plan *engine.Plan, header record.Header, facts []bench.Fact) error {
	var found []bench.Finding
	differ := func(subject, want, have string) {
		if want != have {
			found = append(found, bench.Finding{Verdict: engine.Fail, Subject: subject, Text: "is not the one that the run began with", Want: want, Have: have})
		}
	}
	settings, err := canonical.Digest(header.Settings)
	if err != nil {
		return err
	}
	head, err := header.Digest()
	if err != nil {
		return err
	}
	differ("plan", string(in.start.Digests["plan"]), string(plan.Digest()))
	differ("workload", string(in.start.Digests["workload"]), string(plan.Workload))
	differ("settings of the arm", string(in.start.Digests["settings"]), string(settings))
	differ("name, arm, program, tags and declared differences", string(in.start.Digests["header"]), string(head))
	now := map[string]bench.Fact{}
	for _, f := range facts {
		now[f.Name] = f
	}
	for _, was := range in.host.Facts {
		if f, again := now[was.Name]; again && !slices.Contains(volatile, was.Name) {
			differ("host: "+was.Name, was.Value, f.Value)
		}
	}
	if len(found) == 0 {
		return nil
	}
	f := found[0]
	return &engine.Error{Op: opResume, Err: fmt.Errorf("%w: %s %s: %s, now %s", engine.ErrRefused, f.Subject, f.Text, f.Want, f.Have), Findings: found, Hint: "go on where it began, with the program that began it, or " + hintAgain}
}

// keep chooses what stays, and gets the values that what is left needs.
func (in *resumable) keep(plan *engine.Plan) (*engine.Resume, error) {
	if in.last.Event == "run_end" {
		return nil, nil // only its record is missing
	}
	kept, void, needed, err := plan.Keep(in.steps, steps.Recovers)
	if err != nil {
		return nil, err
	}
	since, err := time.Parse(time.RFC3339Nano, string(in.start.Time))
	if err != nil {
		return nil, &engine.Error{Op: opResume, Err: err}
	}
	version, err := engineVersion()
	if err != nil {
		return nil, err
	}
	in.resume = &engine.Resume{Kept: kept, Values: map[string]any{}, Around: map[string]engine.Around{}, Late: map[string]string{}, Since: since,
		Receipt: bench.Receipt{Void: void, Facts: []bench.Fact{
			fact("resumed.by", string(version.Sha256)), fact("resumed.after", fmt.Sprint(in.last.Seq)), fact("resumed.kept", fmt.Sprint(len(kept))),
		}}}
	store := record.OpenEvidence(in.dir)
	read := func(e bench.Evidence) ([]byte, error) {
		data, err := record.ReadRegular(store.Path(e))
		if err == nil && canonical.Sum(data) != e.Sha256 {
			err = fmt.Errorf("%s is not what was written", e.Name)
		}
		return data, err
	}
	var reopen []bench.Receipt
	for _, s := range plan.Steps {
		r, stays := kept[s.Id]
		if stays && s.Kind == steps.KindDump {
			in.dumps = append(in.dumps, r)
		}
		switch {
		case !slices.Contains(needed, s.Id):
		case s.Kind == steps.KindDump:
			reopen, in.resume.Late[s.Id] = append(reopen, r), "mount"
		default:
			if in.resume.Values[s.Id], err = steps.Recover(s, r, read); err != nil {
				return nil, err
			}
		}
	}
	in.givers = plan.Handed(kept)
	for id := range in.givers {
		in.resume.Late[id] = "mount"
	}
	in.resume.Around["mount"] = func(ctx context.Context, x *engine.Exec, own func() (any, error)) (root any, others map[string]any, err error) {
		if in.slots != nil {
			root, others = in.slots.mount(x)
		} else if root, err = own(); err != nil {
			return root, nil, err
		}
		if others == nil {
			others = map[string]any{}
		}
		for _, r := range reopen {
			cp, err := steps.Reopen(ctx, x, root.(engine.Root), r)
			if err != nil {
				return root, nil, err
			}
			if place, taken := others[r.Step].(engine.Place); taken { // the step gave both
				cp.B = place
			}
			others[r.Step] = cp
		}
		return root, others, nil
	}
	return in.resume, nil
}

// take takes over what is still good of what the interrupted attempt left, sweeps the
// rest, requires that nothing else is left, and takes the directory to go on with. arm is
// replaced by the one to go on with.
func (in *resumable) take(ctx context.Context, b *block, arm *engine.Arm) (_ *record.Dir, err error) {
	dir, err := reopen(ctx, in.dir)
	if in.resume == nil {
		dir, err = nil, nil // the chain has ended: only its record is missing
	}
	if errors.Is(err, record.ErrRunning) {
		return nil, refuseResume("wait until it has ended", "another engine, or a sweep, works in it: %v", err)
	}
	if err != nil {
		return nil, err
	}
	o := sweep.Options{RunDir: in.dir, State: b.State, Hook: seams.sweep}
	if dir != nil {
		defer func() {
			if err != nil {
				err = errors.Join(err, dir.Close())
			}
		}()
		if dir.Ledger == nil {
			return nil, refuseResume(hintAgain, "its ledger is gone")
		}
		if dir.Events.Next() != in.last.Seq+1 {
			return nil, refuseResume("say it again", "somebody else went on with it meanwhile")
		}
		o.Held = dir.Ledger
		if err := in.adopt(ctx, b, arm, dir); err != nil {
			return nil, err
		}
		if in.slots != nil {
			o.Spare = in.slots.Inheritance
		}
	}
	report, err := sweep.Sweep(ctx, o)
	if errors.Is(err, record.ErrRunning) {
		return nil, refuseResume("wait until it has ended", "another engine, or a sweep, works in it: %v", err)
	}
	if err != nil {
		return nil, err
	}
	taken := 0
	for _, t := range report.Things {
		switch t.Outcome {
		case sweep.Failed, sweep.Unknown:
			return nil, refuseResume(t.Hint, "the interrupted attempt left a %s that could not be taken away: %s: %s", t.Kind, t.What, t.Reason)
		case sweep.Taken:
			taken++
		}
	}
	in.claim = report.Claim
	if dir == nil {
		return record.Take(in.dir)
	}
	in.resume.Receipt.Facts = append(in.resume.Receipt.Facts, fact("resumed.swept", fmt.Sprint(taken)))
	return dir, errors.Join(in.drop(), dir.DropUnnamed())
}

// drop removes the folders of checkpoints that no receipt which stays has sealed.
func (in *resumable) drop() error {
	folder := filepath.Join(in.dir, "checkpoints")
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &engine.Error{Op: opResume, Err: err}
	}
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		if cp, err := checkpoint.Open(path); err == nil {
			digest, err := canonical.Digest(cp.Handle)
			if err != nil {
				return err
			}
			if slices.ContainsFunc(in.dumps, func(r bench.Receipt) bool {
				return slices.ContainsFunc(r.Facts, func(f bench.Fact) bool { return f.Name == "checkpoint" && f.Value == string(digest) })
			}) {
				continue
			}
		}
		if err := os.RemoveAll(path); err != nil {
			return &engine.Error{Op: opResume, Err: err}
		}
	}
	return nil
}

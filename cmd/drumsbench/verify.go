package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/sign"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

type verifyCmd struct {
	Runs []string `arg:"" name:"run" help:"Run directories, or folders of them."`
	Key  []string `type:"path" placeholder:"FILE" help:"A public key (PKIX in PEM) whose signatures are those of somebody known: a run, or a decision of a person, that none of these keys signed is unknown. May be repeated."`
	Deep bool     `help:"Hash every file of every checkpoint, not only those whose stat identity changed."`
}

// Help teaches the command.
func (verifyCmd) Help() string {
	return `Finds what was changed in a run's directory since it was written, one line a problem: file, line,
what is wrong and what to do. It checks the chain of events (edited, missing, reordered, torn lines),
each line and file against the schema, the ledger's lines against each other, evidence, manifest, plan,
host facts and checkpoints by digest, and makes the record anew from the rest to compare. Nothing is
written. What only the record says (the run's name, its arm, tags, declared differences) cannot be
checked, and a whole run that was written anew can be told only by the digest of its last line: keep
that elsewhere.

A file of a checkpoint whose device, inode, size and times are as they were sealed counts as unchanged;
--deep hashes it all the same. Where root looks, modes, owners and extended attributes of a checkpoint
count too: a copy keeps them with tar --numeric-owner --xattrs --xattrs-include='*' -p.

With --key the last line of the chain must be signed (drumsbench run --key) by one of the keys; a run of which
a line was cut off or written anew is then told from the one that was signed.

Decisions of people (drumsbench review) are named with the key that signed them. A signature that does not
fit its line is damage; whose key it is, --key says.

Examples:

  drumsbench verify /var/lib/drumsbench/runs/*
  drumsbench verify --key me.pub runs/rename/drums-restore
  drumsbench verify --deep -o json runs/locks/drums-restore

A run of another program of this project may be right in that one's way where this one's schema or way of
making records says otherwise: that is unknown, and the run's own program can tell.

Exit codes: 0 every run is sound, 1 one was damaged, 2 wrong usage, 3 one is torn or cut off by a crash
and otherwise sound, is held by an engine, or cannot be judged by this program. The first of 1, 3 that
holds for any run.`
}

// States of a run directory.
const (
	runSound   = "sound"
	runDamaged = "damaged"
	runCrashed = "crashed"
	runHeld    = "held"
	runUnknown = "unknown"
)

// verified is what is said of one run.
type verified struct {
	Run   string `json:"run"`
	State string `json:"state"`
	// What was looked at.
	Events      int               `json:"events"`
	LedgerLines int               `json:"ledgerLines"`
	Later       int               `json:"laterLedgerLines,omitempty"`
	Evidence    int               `json:"evidence"`
	Checkpoints []auditedSnapshot `json:"checkpoints"`
	// Owned counts what the ledger says is not gone.
	Owned    int               `json:"owned"`
	Problems []verifiedProblem `json:"problems"`
	Reviews  []verifiedReview  `json:"reviews,omitempty"`
	// SignedBy is the key, of those that were named, that signed the run.
	SignedBy bench.SHA256 `json:"signedBy,omitempty"`
}

// verifiedReview is a person's decision, with whose key signed it.
type verifiedReview struct {
	Step     string       `json:"step"`
	Decision string       `json:"decision"`
	By       string       `json:"by"`
	Key      bench.SHA256 `json:"key,omitempty"`
	// Known says that the key is one of those that were named.
	Known bool `json:"known"`
}

// auditedSnapshot is a checkpoint that was looked at.
type auditedSnapshot struct {
	Path   string       `json:"path"`
	SHA256 bench.SHA256 `json:"sha256"`
	Files  int          `json:"files"`
	Hashed int          `json:"hashed"`
}

// verifiedProblem is a problem as it is shown.
type verifiedProblem struct {
	File   string             `json:"file"`
	Line   int                `json:"line,omitempty"`
	Kind   record.ProblemKind `json:"kind"`
	Text   string             `json:"text"`
	Remedy string             `json:"remedy"`
	// Class is damage; crash, for what a crash leaves; or unknown, for what
	// another program's run may be right in.
	Class string `json:"class"`
}

// Classes of problems.
const (
	classDamage  = "damage"
	classCrash   = "crash"
	classUnknown = "unknown"
)

// Run verifies every run before it says anything.
func (c verifyCmd) Run(ctx context.Context, g *globals) error {
	dirs, err := runDirs(c.Runs)
	if err != nil {
		return err
	}
	var keys []sign.Public
	for _, file := range c.Key {
		k, err := sign.ReadPublic(file)
		if err != nil {
			return err
		}
		keys = append(keys, k)
	}
	var list []verified
	for _, dir := range dirs {
		v, err := verifyRun(ctx, dir, c.Deep)
		if err != nil {
			return err
		}
		v.head(dir, keys)
		if err := v.signers(dir, keys); err != nil {
			return err
		}
		list = append(list, v)
	}
	if g.json() {
		err = printJSON(g.Stdout, list)
	} else {
		err = printText(g.Stdout, verifiedText(list))
	}
	if err != nil {
		return err
	}
	return exitCode(verifiedExit(list))
}

// runDirs are the run directories that were named, and those in the folders that were named, sorted below each.
func runDirs(paths []string) (dirs []string, err error) {
	for _, path := range paths {
		before := len(dirs)
		err := filepath.WalkDir(path, func(below string, d fs.DirEntry, err error) error {
			switch {
			case err != nil || !d.IsDir():
				return err
			case record.IsRun(below):
				dirs = append(dirs, below)
				return fs.SkipDir // a run holds no run
			}
			return nil
		})
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, &engine.Error{Op: "find runs", Err: usage(path + ": no such folder")}
		case err != nil:
			return nil, &engine.Error{Op: "find runs", Err: err}
		case len(dirs) == before:
			return nil, &engine.Error{Op: "find runs", Err: usage("no run in " + path), Hint: "name a run directory, or a folder of them"}
		}
	}
	return dirs, nil
}

func verifyRun(ctx context.Context, dir string, deep bool) (verified, error) {
	out := verified{Run: dir, Checkpoints: []auditedSnapshot{}, Problems: []verifiedProblem{}}
	release, err := record.HoldToRead(dir)
	if errors.Is(err, record.ErrRunning) {
		out.State = runHeld
		return out, nil
	}
	if err != nil {
		return out, err
	}
	defer func() { _ = release() }() // the descriptor closes in any case
	program, err := engineVersion()
	if err != nil {
		return out, err
	}
	r, err := record.VerifyAs(dir, program.Sha256)
	if err != nil {
		return out, err
	}
	a := audit{dir: dir, deep: deep, program: program.Sha256, report: &r}
	if err := a.checkpoints(ctx); err != nil {
		return out, err
	}
	out.Events, out.LedgerLines, out.Later, out.Evidence, out.Owned = r.Events, r.LedgerLines, r.Later, r.Evidence, len(r.Owned)
	out.Checkpoints = append(out.Checkpoints, a.audited...)
	out.State = runSound
	for _, c := range []struct {
		state, class string
		problems     []record.Problem
	}{{runCrashed, classCrash, r.Crash}, {runUnknown, classUnknown, r.Unknown}, {runDamaged, classDamage, r.Damage}} {
		if len(c.problems) > 0 {
			out.State = c.state
		}
		var list []verifiedProblem
		for _, p := range c.problems {
			remedy := p.Remedy()
			if c.class == classUnknown {
				remedy = fmt.Sprintf("ask the program that made the run, %s of sha256 %.12s", r.Record.Engine.Version, r.Record.Engine.Sha256)
			}
			list = append(list, verifiedProblem{p.File, p.Line, p.Kind, p.Text, remedy, c.class})
		}
		out.Problems = append(list, out.Problems...)
	}
	return out, nil
}

// head says whose key signed the run. Where keys are named, a run that none of them
// signed is unknown: a whole run can be written anew.
func (v *verified) head(dir string, keys []sign.Public) {
	if len(keys) == 0 || v.State == runDamaged || v.State == runHeld {
		return
	}
	by, err := record.CheckHead(dir, keys...)
	if err == nil {
		v.SignedBy = by.ID()
		return
	}
	v.Problems = append(v.Problems, verifiedProblem{record.SignatureFile, 0, record.Unsigned, err.Error(),
		"ask whoever ran it for the public key of: drumsbench run --key", classUnknown})
	if v.State == runSound {
		v.State = runUnknown
	}
}

// signers says who signed the decisions on a run. Where keys are named, a decision
// that none of them signed is unknown: a name alone anybody can type.
func (v *verified) signers(dir string, keys []sign.Public) error {
	if v.State == runDamaged || v.State == runHeld {
		return nil // what stands there is nobody's word
	}
	reviews, err := record.ReadReviews(dir)
	if err != nil {
		return err
	}
	for i, r := range reviews {
		one := verifiedReview{Step: r.Step, Decision: r.Decision, By: r.By}
		if p, err := record.Signer(r); err == nil {
			one.Key = p.ID()
			one.Known = slices.ContainsFunc(keys, func(k sign.Public) bool { return k.ID() == p.ID() })
		}
		if len(keys) > 0 && !one.Known {
			v.Problems = append(v.Problems, verifiedProblem{record.ReviewsFile, i + 1, record.Wrong, fmt.Sprintf("the decision of %q on %s is signed by none of the keys", r.By, r.Step),
				"ask them for the public key that they signed with, or do not count the decision", classUnknown})
			if v.State == runSound {
				v.State = runUnknown
			}
		}
		v.Reviews = append(v.Reviews, one)
	}
	return nil
}

// audit compares the checkpoints below a run with what its events say.
type audit struct {
	dir  string
	deep bool
	// program is the digest of this one.
	program bench.SHA256
	report  *record.Report
	audited []auditedSnapshot
}

const checkpointsFolder = "checkpoints"

func (a *audit) damage(kind record.ProblemKind, file, format string, args ...any) {
	a.report.Damage = append(a.report.Damage, record.Problem{Kind: kind, File: file, Text: fmt.Sprintf(format, args...)})
}

// checkpoints audits each checkpoint below the run. A crash, and a dump that
// failed, may leave one that was not sealed yet or that no line names.
func (a *audit) checkpoints(ctx context.Context) error {
	entries, err := os.ReadDir(filepath.Join(a.dir, checkpointsFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &engine.Error{Op: "read checkpoints", Err: err}
	}
	missing := map[bench.SHA256]record.Sealed{}
	for _, s := range a.report.Checkpoints {
		missing[s.Handle] = s
	}
	var strangers []string // folders whose handle no line names, or that have none
	found := map[string]bench.SHA256{}
	illegible := 0
	for _, e := range entries {
		rel := filepath.Join(checkpointsFolder, e.Name())
		digest, err := a.checkpoint(ctx, rel)
		if errors.Is(err, errIllegible) {
			illegible++
			continue
		}
		if err != nil {
			return err
		}
		if _, named := missing[digest]; named {
			delete(missing, digest)
			continue
		}
		strangers, found[rel] = append(strangers, rel), digest
	}
	for _, s := range a.report.Checkpoints {
		if _, lost := missing[s.Handle]; !lost {
			continue
		}
		line := fmt.Sprintf("line %d of %s names", s.Line, record.EventsFile)
		if len(strangers) == 0 {
			if illegible--; illegible >= 0 {
				continue // it is named already
			}
			a.damage(record.Missing, checkpointsFolder, "no checkpoint in it has the digest %.12s that %s", s.Handle, line)
			continue
		}
		handle := filepath.Join(strangers[0], checkpoint.HandleFile)
		if digest := found[strangers[0]]; digest != "" {
			a.damage(record.Edited, handle, "its digest is %.12s, %s %.12s", digest, line, s.Handle)
		} else {
			a.damage(record.Missing, handle, "%s a checkpoint", line)
		}
		strangers = strangers[1:]
	}
	for _, rel := range strangers {
		if begun := len(a.report.Crash) > 0 || a.report.Unsealed > 0 || a.report.Events == 0; !begun {
			a.damage(record.Added, rel, "no line of %s names this checkpoint", record.EventsFile)
		}
	}
	return nil
}

// errIllegible: the handle is so wrong that nothing can be compared with it. The schema has said so.
var errIllegible = errors.New("the handle cannot be read")

// checkpoint audits one and returns its handle's digest; empty if it has none that can be read.
func (a *audit) checkpoint(ctx context.Context, rel string) (bench.SHA256, error) {
	handle := filepath.Join(rel, checkpoint.HandleFile)
	data, err := record.ReadRegular(filepath.Join(a.dir, handle))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", &engine.Error{Op: "read checkpoint", Err: err}
	}
	var problems compile.Problems
	if err := compile.Validate("Checkpoint", data); errors.As(err, &problems) {
		p := record.Problem{Kind: record.Illegal, File: handle, Text: problems[0].Error()}
		if r := a.report.Record; r != nil && r.Engine.Sha256 != a.program && len(a.report.Damage) == 0 {
			a.report.Unknown = append(a.report.Unknown, p) // another program may have had another schema
		} else {
			a.report.Damage = append(a.report.Damage, p)
		}
	} else if err != nil {
		return "", err
	}
	cp, err := checkpoint.Open(filepath.Join(a.dir, rel))
	if err != nil {
		if len(problems) > 0 {
			return "", errIllegible
		}
		return "", err
	}
	digest, err := checkpoint.Digest(cp.Handle)
	if err != nil {
		return "", err
	}
	changes, hashed, err := checkpoint.Audit(ctx, cp, a.deep)
	if err != nil {
		return "", err
	}
	kinds := map[checkpoint.What]record.ProblemKind{checkpoint.Missing: record.Missing, checkpoint.Changed: record.Edited, checkpoint.Added: record.Added}
	for _, c := range changes {
		a.damage(kinds[c.What], filepath.Join(rel, c.Path), "it %s", c.Text)
	}
	named := slices.ContainsFunc(a.report.Checkpoints, func(s record.Sealed) bool { return s.Handle == digest })
	if r := a.report.Record; r != nil && named && cp.Handle.Arm != r.Arm {
		a.damage(record.Wrong, record.RecordFile, "arm is %s, the checkpoint in %s is of arm %s", r.Arm, rel, cp.Handle.Arm)
	}
	a.audited = append(a.audited, auditedSnapshot{rel, digest, len(cp.Handle.Files), hashed})
	return digest, nil
}

// verifiedExit is the first of 1, 3 that any run ends with, else 0.
func verifiedExit(list []verified) int {
	code := codeDone
	for _, v := range list {
		switch v.State {
		case runDamaged:
			return codeFailed
		case runCrashed, runHeld, runUnknown:
			code = codeBlocked
		}
	}
	return code
}

func verifiedText(list []verified) string {
	var b strings.Builder
	for _, v := range list {
		counts := map[string]int{}
		for _, p := range v.Problems {
			at := filepath.Join(v.Run, p.File)
			if p.Line > 0 {
				at += fmt.Sprintf(":%d", p.Line)
			}
			fmt.Fprintf(&b, "%s\n", terminal.Line(fmt.Sprintf("%s: %s: %s; %s", at, p.Kind, p.Text, p.Remedy)))
			counts[p.Class]++
		}
		for _, r := range v.Reviews {
			whose := "not signed"
			switch {
			case r.Known:
				whose = fmt.Sprintf("signed by key %.12s, which is named", r.Key)
			case r.Key != "":
				whose = fmt.Sprintf("signed by key %.12s, which is not named", r.Key)
			}
			fmt.Fprintf(&b, "%s\n", terminal.Line(fmt.Sprintf("%s: %s: %s, decided by %s, %s", v.Run, r.Step, r.Decision, r.By, whose)))
		}
		switch v.State {
		case runHeld:
			fmt.Fprintf(&b, "%s: an engine or a sweep works in it: verify it again afterwards\n", v.Run)
		case runDamaged:
			fmt.Fprintf(&b, "%s: damaged: %s\n", v.Run, count(counts[classDamage], "problem"))
		case runUnknown:
			fmt.Fprintf(&b, "%s: it cannot be judged here: %s\n", v.Run, count(counts[classUnknown], "problem"))
		case runCrashed:
			fmt.Fprintf(&b, "%s: ended by a crash, otherwise sound: %s\n", v.Run, v.seen())
		default:
			fmt.Fprintf(&b, "%s: sound: %s\n", v.Run, v.seen())
		}
		if v.SignedBy != "" {
			fmt.Fprintf(&b, "%s: signed by key %.12s, which is named\n", v.Run, v.SignedBy)
		}
		if v.Later > 0 {
			fmt.Fprintf(&b, "%s: %s of the ledger came after the record: a sweep's\n", v.Run, count(v.Later, "line"))
		}
		if v.Owned > 0 && v.State != runHeld {
			fmt.Fprintf(&b, "%s: the ledger says that the run still owns %s: drumsbench sweep takes it away\n", v.Run, count(v.Owned, "thing"))
		}
	}
	return b.String()
}

// seen is what was looked at.
func (v verified) seen() string {
	s := fmt.Sprintf("%s, %s, %s of evidence", count(v.Events, "event"), count(v.LedgerLines, "ledger line"), count(v.Evidence, "file"))
	for _, c := range v.Checkpoints {
		s += fmt.Sprintf(", %s with %s, %d of them hashed", c.Path, count(c.Files, "file"), c.Hashed)
	}
	return s
}

// count is a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

package record

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofrs/flock"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Report is what Verify found in a run directory.
type Report struct {
	// Damage is what was changed since it was written. No crash makes it.
	Damage []Problem
	// Crash is what an end of the engine or of the host in the middle of the run
	// leaves. The same can be made by cutting off the end by hand: what is there
	// is sound, what is not there is not known.
	Crash []Problem
	// Unknown is what this program would call wrong in a run whose record names
	// another program: that one may have meant it so, or it was changed.
	Unknown []Problem
	// Events and LedgerLines count whole lines, Evidence the files that they name.
	Events, LedgerLines, Evidence int
	// Later counts ledger lines behind those that the record's digest covers: a sweep's.
	Later int
	// Owned is what the ledger says is not gone.
	Owned []Owned
	// Checkpoints that dump steps sealed.
	Checkpoints []Sealed
	// Unsealed counts the dump steps that sealed none; what they had begun may be there.
	Unsealed int
	// Record is nil if there is none, or none that can be read.
	Record *bench.Record
}

// Sealed is a checkpoint as the event chain names it.
type Sealed struct {
	// Line of events.jsonl.
	Line int
	Step string
	// Handle is the digest of its handle.
	Handle bench.SHA256
}

// Verify finds everything that is wrong with a run directory: what VerifyChain
// finds, lines and files that are not what the schema says, ledger lines that do
// not follow from those before, evidence that nothing names, and a record that
// is not the one which the rest of the directory gives. It reads only. What it
// cannot find:
//
//   - where run_start names no digest of it, as of a slot by hand: the run's
//     name, the arm, the engine's version, tags and declared differences;
//   - a chain that was written anew from some line on together with the record:
//     keep the digest of the last line elsewhere;
//   - files of checkpoints, which their handles name: see engine/checkpoint.
//
// The run is taken for one of this program's; see [VerifyAs]. The error says that
// the directory could not be read.
func Verify(dir string) (Report, error) { return VerifyAs(dir, "") }

// VerifyAs is Verify by the program with this digest, as records name it. What
// only the program's schema and its way of making records speak against is
// Unknown where the record names another program.
func VerifyAs(dir string, program bench.SHA256) (Report, error) {
	v := verifier{dir: dir}
	odd, err := irregular(dir)
	if err != nil {
		return Report{}, &engine.Error{Op: "read run directory", Err: err}
	}
	if len(odd) > 0 {
		v.damage(odd...)
		return v.report, nil
	}
	for _, check := range []func() error{v.events, v.files, v.registration, v.evidence, v.record, v.ledger, v.slot, v.reviews, v.signature, v.rebuilt} {
		if err := check(); err != nil {
			return Report{}, err
		}
	}
	v.classify(program)
	for _, list := range [][]Problem{v.report.Damage, v.report.Crash, v.report.Unknown} {
		slices.SortStableFunc(list, func(a, b Problem) int {
			return cmp.Or(cmp.Compare(rank(a.File), rank(b.File)), cmp.Compare(a.Line, b.Line))
		})
	}
	return v.report, nil
}

// rank is where a file's problems are told: the chain first, from which the rest hangs.
func rank(file string) int {
	order := []string{EventsFile, ManifestFile, PlanFile, HostFile, RegistrationFile, LedgerFile, ReviewsFile, RecordFile, SignatureFile}
	if i := slices.Index(order, file); i >= 0 {
		return i
	}
	return len(order)
}

// classify decides what becomes of what this program alone has against the run.
func (v *verifier) classify(program bench.SHA256) {
	r := v.report.Record
	same := program == "" || r != nil && r.Engine.Sha256 == program
	if len(v.report.Damage) == 0 && r != nil && !same {
		v.report.Unknown = append(v.judged, v.derived...)
		return
	}
	v.damage(v.judged...)
	v.damage(v.derived...)
	if same {
		v.damage(v.workloads...)
	}
}

// IsRun says whether dir looks like the directory of a run, of whatever state.
func IsRun(dir string) bool {
	for _, name := range []string{EventsFile, LedgerFile, RecordFile, PlanFile, ManifestFile} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
			return true
		}
	}
	return false
}

// HoldToRead keeps engines and sweeps out of a run directory while it is read;
// others may read it too. ErrRunning while one works in it. Nothing is written.
func HoldToRead(dir string) (release func() error, err error) {
	path := filepath.Join(dir, lockFile)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return func() error { return nil }, nil // a copy, in which no engine ever was
	}
	lock := flock.New(path, flock.SetFlag(os.O_RDONLY|careful))
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "lock", Path: path, Err: ErrIrregular}
	}
	held := false
	if err == nil {
		held, err = lock.TryRLock()
	}
	if err == nil && !held {
		err = ErrRunning
	}
	if err != nil {
		return nil, &engine.Error{Op: "lock run directory " + dir, Err: err}
	}
	return lock.Unlock, nil
}

// Remedy says what can be done about a problem.
func (p Problem) Remedy() string {
	switch {
	case p.File == ReviewsFile && (p.Kind == Torn || p.Kind == Cut):
		return "drumsbench review of the run takes it on: it makes the record anew"
	case p.Kind == Torn && p.File == LedgerFile:
		return "what it would have said had not happened yet; drumsbench sweep takes away what the run left"
	case p.Kind == Torn || p.Kind == Cut && p.Text != noStart || p.Text == endedBefore:
		return "run again; drumsbench sweep takes away what the run left"
	case p.Kind == Added:
		return "take it away, or use no number of this run"
	case p.File == LedgerFile:
		return "put the ledger back from a copy; a sweep by this one may miss something"
	}
	return "put it back from a copy, or use no number of this run and run again"
}

// endedBefore is what is said of a file that a crash kept from being written.
const endedBefore = "the run ended before it was written"

// verifier gathers the report; each check builds on those before it.
type verifier struct {
	dir    string
	report Report
	links  []link
	torn   int
	ended  bool
	// judged is what this program's schema has against lines and files, derived
	// what it says otherwise in a record of the rest, workloads where it counts a
	// workload otherwise: all may be another program's way. The bytes that a
	// workload is counted from have a digest in the chain, the record's have none.
	judged, derived, workloads []Problem
	// covered is the digest of the ledger's first lines that the record names.
	covered bench.SHA256
	// uncovered: there are reviews that the record does not cover.
	uncovered bool
}

func (v *verifier) damage(p ...Problem) { v.report.Damage = append(v.report.Damage, p...) }
func (v *verifier) crash(p ...Problem)  { v.report.Crash = append(v.report.Crash, p...) }

// events checks the chain and its lines.
func (v *verifier) events() (err error) {
	v.links, v.torn, err = readLinks(v.dir)
	if errors.Is(err, fs.ErrNotExist) {
		v.damage(Problem{Missing, EventsFile, 0, "each run has one"})
		return nil
	}
	if err != nil {
		return err
	}
	v.report.Events = len(v.links)
	v.ended = len(v.links) > 0 && v.links[len(v.links)-1].event == "run_end"
	damage, crash := checkLines(v.links, v.torn)
	illegal, err := v.schema(EventsFile, "Receipt", damage)
	if err != nil {
		return err
	}
	v.judged = append(v.judged, illegal...)
	sortByLine(damage)
	sortByLine(crash)
	v.damage(damage...)
	v.crash(crash...)
	for _, l := range v.links {
		if l.unsealed {
			v.report.Unsealed++
		}
		if l.checkpoint != "" {
			v.report.Checkpoints = append(v.report.Checkpoints, Sealed{l.line, l.step, l.checkpoint})
		}
	}
	return nil
}

// schema compares each line of a file with a definition. A line that is named
// as illegible in known gets the reason there instead of a problem of its own.
func (v *verifier) schema(file, definition string, known []Problem) (problems []Problem, err error) {
	at := map[int]*Problem{}
	for i, p := range known {
		if p.Kind == Edited && p.Text == noLineOf(file) {
			at[p.Line] = &known[i]
		}
	}
	_, _, err = eachLine(filepath.Join(v.dir, file), func(number int, line []byte) error {
		found, err := illegal(definition, line)
		if err != nil || found == "" {
			return err
		}
		if p := at[number]; p != nil {
			p.Text += ": " + found
			return nil
		}
		problems = append(problems, Problem{Illegal, file, number, found})
		return nil
	})
	if err != nil {
		return nil, &engine.Error{Op: "read " + file, Err: err}
	}
	return problems, nil
}

// illegal is what the schema has against data, on one line; empty for nothing.
func illegal(definition string, data []byte) (string, error) {
	err := compile.Validate(definition, data)
	var problems compile.Problems
	switch {
	case err == nil:
		return "", nil
	case !errors.As(err, &problems):
		return "", err
	}
	texts := make([]string, len(problems))
	for i, p := range problems {
		texts[i] = p.Error()
	}
	const most = 4
	if more := len(texts) - most; more > 0 {
		texts = append(texts[:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, ", "), nil
}

// files checks manifest, plan and host facts: by the digest that run_start names, and by the schema.
func (v *verifier) files() error {
	damage, err := checkFiles(v.dir, v.links)
	if err != nil {
		return err
	}
	v.damage(damage...)
	sound := len(v.report.Damage) == 0
	read := map[string][]byte{}
	for _, f := range []struct{ name, definition string }{{ManifestFile, "Manifest"}, {PlanFile, "Plan"}, {HostFile, "HostFacts"}} {
		data, err := v.file(f.name)
		if err != nil {
			return err
		}
		if data == nil {
			if len(v.links) == 0 { // they are written before the first line is
				v.crash(Problem{Missing, f.name, 0, endedBefore})
			} else if !named(damage, f.name) {
				v.damage(Problem{Missing, f.name, 0, "each run has one"})
			}
			continue
		}
		found, err := illegal(f.definition, data)
		if err != nil {
			return err
		}
		if found != "" {
			v.judged = append(v.judged, Problem{Illegal, f.name, 0, found})
			continue
		}
		read[f.name] = data
	}
	if !sound || len(v.links) == 0 {
		return nil
	}
	return v.workload(read[ManifestFile], read[PlanFile])
}

func named(problems []Problem, file string) bool {
	for _, p := range problems {
		if p.File == file {
			return true
		}
	}
	return false
}

// file reads a file of the directory; one that is not there, or is no regular file, is nil.
func (v *verifier) file(name string) ([]byte, error) {
	info, err := os.Lstat(filepath.Join(v.dir, name))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil, nil
	}
	if err != nil {
		return nil, &engine.Error{Op: "read run directory", Err: err}
	}
	return read(v.dir, name)
}

// workload compares the workload digests of manifest, plan and chain. A
// manifest or plan without a word about it is nil here.
func (v *verifier) workload(manifest, plan []byte) error {
	want, named := v.links[0].digests["workload"]
	if !named {
		return nil
	}
	if manifest != nil {
		var m bench.Manifest
		if err := json.Unmarshal(manifest, &m); err != nil {
			return &engine.Error{Op: "read " + ManifestFile, Err: err}
		}
		have, err := compile.Workload(m)
		if err != nil {
			return err
		}
		if have != want {
			v.workloads = append(v.workloads, Problem{Wrong, ManifestFile, 0, fmt.Sprintf("its workload is %.12s, run_start names %.12s", have, want)})
		}
	}
	if plan != nil {
		var p bench.Plan
		if err := json.Unmarshal(plan, &p); err != nil {
			return &engine.Error{Op: "read " + PlanFile, Err: err}
		}
		if p.Workload != want {
			v.damage(Problem{Wrong, PlanFile, 0, fmt.Sprintf("it is of workload %.12s, run_start names %.12s", p.Workload, want)})
		}
	}
	return nil
}

// evidence checks what the lines name, and that there is nothing else: a log
// that a failure names by its path alone has its digest in its name. A run that
// crashed may have stored what its next line would have named.
func (v *verifier) evidence() error {
	damage, err := checkEvidence(v.dir, v.links)
	if err != nil {
		return err
	}
	v.damage(damage...)
	store := OpenEvidence(v.dir)
	names := map[string]bool{}
	for _, l := range v.links {
		for _, e := range l.evidence {
			names[filepath.Base(store.Path(e))] = true
		}
	}
	logs := map[string]bool{}
	for _, l := range v.links {
		if name := filepath.Base(l.log); l.log != "" && !names[name] && filepath.Base(filepath.Dir(l.log)) == EvidenceFolder {
			logs[name] = true
		}
	}
	v.report.Evidence = len(names) + len(logs)
	entries, err := os.ReadDir(filepath.Join(v.dir, EvidenceFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &engine.Error{Op: "read run directory", Err: err}
	}
	for _, e := range entries {
		file := filepath.Join(EvidenceFolder, e.Name())
		switch {
		case names[e.Name()]:
		case logs[e.Name()]:
			sum, err := sumFile(filepath.Join(v.dir, file))
			if err != nil {
				return &engine.Error{Op: "read run directory", Err: err}
			}
			if !strings.HasPrefix(e.Name(), prefix(sum)+"-") {
				v.damage(Problem{Edited, file, 0, "its digest is not the one in its name"})
			}
			delete(logs, e.Name())
		case v.ended:
			v.damage(Problem{Added, file, 0, "no line of " + EventsFile + " names it"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(logs)) {
		v.damage(Problem{Missing, filepath.Join(EvidenceFolder, name), 0, "a failure in " + EventsFile + " names it"})
	}
	return nil
}

// record checks that record.json is a record of this chain.
func (v *verifier) record() error {
	data, err := v.file(RecordFile)
	if err != nil {
		return err
	}
	if data == nil {
		if len(v.links) > 0 {
			v.crash(Problem{Missing, RecordFile, 0, "the engine ended before it was written, or it was taken away"})
		}
		return nil
	}
	found, err := illegal("Record", data)
	if err != nil {
		return err
	}
	if found != "" {
		v.judged = append(v.judged, Problem{Illegal, RecordFile, 0, found})
	}
	var r bench.Record
	if err := json.Unmarshal(data, &r); err != nil {
		if found == "" {
			return &engine.Error{Op: "read " + RecordFile, Err: err}
		}
		return nil // the schema has said why
	}
	v.report.Record = &r
	if len(v.links) == 0 && named(v.report.Damage, EventsFile) || r.Digests["events"] == "" { // there is nothing to compare
		return nil
	}
	damage, err := checkRecord(v.dir, v.links)
	v.damage(damage...)
	return err
}

// rebuilt makes the record anew, where the rest is sound, and compares.
func (v *verifier) rebuilt() error {
	r := v.report.Record
	if r == nil || len(v.report.Damage) > 0 || len(v.judged) > 0 {
		return nil
	}
	settings, err := canonical.Digest(r.Settings)
	if err != nil {
		return &engine.Error{Op: "verify " + RecordFile, Err: err}
	}
	if want, named := v.links[0].digests["settings"]; named && settings != want {
		v.damage(Problem{Edited, RecordFile, 0, "settings: their digest is not the one that run_start names"})
		return nil
	}
	head := headerOf(*r)
	if want, named := v.links[0].digests["header"]; named {
		have, err := head.Digest()
		if err != nil {
			return &engine.Error{Op: "verify " + RecordFile, Err: err}
		}
		if have != want {
			v.damage(Problem{Edited, RecordFile, 0, "name, arm, engine, tags and declared differences: their digest is not the one that run_start names"})
			return nil
		}
	}
	var until *bench.SHA256 // decisions that a crash kept out of the record are in no part of it
	if v.uncovered {
		covered := r.Digests["reviews"]
		until = &covered
	}
	again, err := assemble(v.dir, head, until)
	if err != nil {
		var e *engine.Error
		if errors.As(err, &e) && e.Err != nil {
			err = e.Err
		}
		v.derived = append(v.derived, Problem{Wrong, RecordFile, 0, "no record can be made of this directory: " + err.Error()})
		return nil
	}
	again.Digests["ledger"] = v.covered
	want, err := canonical.JSON(again)
	if err != nil {
		return &engine.Error{Op: "verify " + RecordFile, Err: err}
	}
	have, err := read(v.dir, RecordFile)
	if err != nil {
		return err
	}
	differences, err := differ(want, have)
	v.derived = append(v.derived, differences...)
	return err
}

// differ names the fields in which two JSON texts differ.
func differ(want, have []byte) (problems []Problem, err error) {
	if string(want) == string(have) {
		return nil, nil
	}
	var a, b any
	if err := errors.Join(json.Unmarshal(want, &a), json.Unmarshal(have, &b)); err != nil {
		return nil, &engine.Error{Op: "verify " + RecordFile, Err: err}
	}
	const most = 16
	left := 0
	canonical.EachDifference("", a, b, func(path, want, have string) {
		if len(problems) == most {
			left++
			return
		}
		problems = append(problems, Problem{Edited, RecordFile, 0, fmt.Sprintf("%s is %s, the run gives %s", path, have, want)})
	})
	switch {
	case left > 0:
		problems = append(problems, Problem{Edited, RecordFile, 0, fmt.Sprintf("%d more fields are not what the run gives", left)})
	case len(problems) == 0:
		problems = []Problem{{Edited, RecordFile, 0, "its bytes are not as the engine writes them"}}
	}
	return problems, nil
}

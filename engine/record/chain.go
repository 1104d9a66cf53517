package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// ProblemKind says what is wrong with a run directory.
type ProblemKind string

// The kinds of problems.
const (
	// Torn: the last line was cut off while it was written. The engine or the host crashed.
	Torn ProblemKind = "torn"
	// Cut: the chain does not begin with run_start or does not end with run_end.
	Cut ProblemKind = "cut"
	// Edited: something does not have the digest that something else names.
	Edited ProblemKind = "edited"
	// Missing: a line or a file is not there.
	Missing ProblemKind = "missing"
	// Reordered: a line is not where its number belongs.
	Reordered ProblemKind = "reordered"
	// Illegal: a line or a file is not what the schema says. [Verify] finds it.
	Illegal ProblemKind = "illegal"
	// Wrong: a line or a file contradicts the others. [Verify] finds it.
	Wrong ProblemKind = "wrong"
	// Added: a file is there that nothing names. [Verify] finds it.
	Added ProblemKind = "added"
	// Unsigned: none of the keys that were named signed it. [CheckHead] finds it.
	Unsigned ProblemKind = "unsigned"
)

// Problem is one thing that is wrong with a run directory.
type Problem struct {
	Kind ProblemKind
	// File relative to the run directory.
	File string
	// Line counts from 1; 0 for a whole file.
	Line int
	Text string
}

func (p Problem) Error() string {
	if p.Line > 0 {
		return fmt.Sprintf("%s:%d: %s: %s", p.File, p.Line, p.Kind, p.Text)
	}
	return fmt.Sprintf("%s: %s: %s", p.File, p.Kind, p.Text)
}

// ReadEvents returns the receipts of a run as they stand there, without those that a
// resume says count no more; it does not check that they are a chain. torn is the number of a last line that was cut
// off while it was written, 0 if there is none; it is not among the receipts.
func ReadEvents(dir string) (receipts []bench.Receipt, torn int, err error) {
	_, torn, err = eachLine(filepath.Join(dir, EventsFile), func(number int, line []byte) error {
		var r bench.Receipt
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("%s:%d: %w", EventsFile, number, err)
		}
		receipts = append(receipts, r)
		return nil
	})
	if err != nil {
		return nil, 0, &engine.Error{Op: "read events", Err: err}
	}
	return counted(receipts), torn, nil
}

// link is a line of the chain.
type link struct {
	line   int
	seq    int64
	prev   bench.SHA256
	digest bench.SHA256
	event  string
	legal  bool
	step   string
	// checkpoint is the digest of the handle that a dump step sealed.
	checkpoint bench.SHA256
	// unsealed says that it is of a dump that made none.
	unsealed bool
	// log is the file that a failure names.
	log string
	// evidence and digests that the line names
	evidence []bench.Evidence
	digests  map[string]bench.SHA256
}

// VerifyChain finds what was changed in a run directory since it was written:
// lines edited, missing, reordered or torn; evidence, manifest, plan or host
// facts missing or changed; a record of another chain. A chain can be told from
// one that was written anew from some line on only by the digest of its last
// line, which the record names: keep that elsewhere. The error says that the
// directory could not be read.
func VerifyChain(dir string) ([]Problem, error) {
	links, torn, err := readLinks(dir)
	if err != nil {
		return nil, err
	}
	damage, crash := checkLines(links, torn)
	problems := append(damage, crash...)
	sortByLine(problems)
	for _, check := range []func(string, []link) ([]Problem, error){checkEvidence, checkFiles, checkRecord} {
		more, err := check(dir, links)
		if err != nil {
			return nil, err
		}
		problems = append(problems, more...)
	}
	return problems, nil
}

// checkLines is what the lines of a chain say of themselves: what only a change
// can have made of them, and what a crash leaves as well.
func checkLines(links []link, torn int) (damage, crash []Problem) {
	damage = order(EventsFile, links)
	damage = append(damage, tied(links)...)
	changed, unended := ends(links)
	damage, crash = append(damage, changed...), unended
	if torn > 0 {
		crash = append(crash, Problem{Torn, EventsFile, torn, cutOff})
	}
	return damage, crash
}

// noStart is what is said of a chain without a beginning.
const noStart = "the first line is not run_start"

// cutOff is what is said of a torn line.
const cutOff = "the line was cut off while it was written"

func sortByLine(problems []Problem) {
	slices.SortStableFunc(problems, func(a, b Problem) int { return a.Line - b.Line })
}

func readLinks(dir string) (links []link, torn int, err error) {
	_, torn, err = eachLine(filepath.Join(dir, EventsFile), func(number int, line []byte) error {
		l := link{line: number, digest: canonical.Sum(line)}
		var r bench.Receipt
		if exactly(line, &r) {
			l.legal, l.seq, l.prev, l.event, l.step, l.evidence, l.digests = true, r.Seq, r.Prev, r.Event, r.Step, r.Evidence, r.Digests
			l.checkpoint = sealedBy(r)
			l.unsealed = r.Kind == "dump" && l.checkpoint == "" && r.Verdict != engine.NotRun
			if r.Error != nil {
				l.log = r.Error.Log
			}
		}
		for _, id := range r.Void { // a checkpoint that is made anew is not the old one's
			for i := range links {
				if links[i].step == id {
					links[i].checkpoint, links[i].unsealed = "", false
				}
			}
		}
		links = append(links, l)
		return nil
	})
	if err != nil {
		return nil, 0, &engine.Error{Op: "read events", Err: err}
	}
	return links, torn, nil
}

// exactly decodes a line that is one value with known fields and nothing else.
func exactly(line []byte, v any) bool {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	return json.Valid(line) && d.Decode(v) == nil
}

// order checks the numbers of the lines. An illegible line is taken for the one
// that belongs where it stands, and gets its number.
func order(file string, links []link) (problems []Problem) {
	add := func(kind ProblemKind, line int, format string, args ...any) {
		problems = append(problems, Problem{kind, file, line, fmt.Sprintf(format, args...)})
	}
	var legal []int64
	for _, l := range links {
		if l.legal {
			legal = append(legal, l.seq)
		}
	}
	slices.Sort(legal)
	next := int64(0)
	for i := range links {
		l := &links[i]
		switch {
		case !l.legal:
			l.seq = next
			next++
			add(Edited, l.line, "%s", noLineOf(file))
		case l.seq == next:
			next++
		case l.seq < next:
			add(Reordered, l.line, "it has number %d, which was there or had its place before", l.seq)
		default:
			kind := Missing
			if at, _ := slices.BinarySearch(legal, next); at < len(legal) && legal[at] < l.seq { // every line before has a number below next
				kind = Reordered
			}
			if next == l.seq-1 {
				add(kind, l.line, "it has number %d; number %d belongs before it", l.seq, next)
			} else {
				add(kind, l.line, "it has number %d; numbers %d to %d belong before it", l.seq, next, l.seq-1)
			}
			next = l.seq + 1
		}
	}
	return problems
}

// noLineOf is what is said of an illegible line.
func noLineOf(file string) string {
	if file == LedgerFile {
		return "it is no line of a ledger"
	}
	return "it is no receipt"
}

// tied checks that each line names the digest of the one with the number before.
func tied(links []link) (problems []Problem) {
	first := map[int64]link{}
	for _, l := range links {
		if _, twice := first[l.seq]; !twice {
			first[l.seq] = l
		}
	}
	for _, l := range links {
		before, known := first[l.seq-1]
		switch {
		case !l.legal:
		case l.seq == 0 && l.prev != noLine:
			problems = append(problems, Problem{Edited, EventsFile, l.line, "it is the first and names a line before it"})
		case known && before.digest != l.prev && before.legal: // an illegible one is named already
			problems = append(problems, Problem{Edited, EventsFile, before.line, fmt.Sprintf("its digest is not the one that line %d names", l.line)})
		}
	}
	return problems
}

// ends checks how the chain begins and ends. A chain without an end is what a
// crash leaves.
func ends(links []link) (problems, crash []Problem) {
	if len(links) == 0 {
		return nil, []Problem{{Cut, EventsFile, 0, "it has no line"}}
	}
	if links[0].legal && links[0].event != "run_start" {
		problems = append(problems, Problem{Cut, EventsFile, links[0].line, noStart})
	}
	if last := links[len(links)-1]; last.legal && last.event != "run_end" {
		crash = append(crash, Problem{Cut, EventsFile, last.line, "the last line is not run_end: the run did not end, or its end is missing"})
	}
	for _, l := range links[1:] {
		if l.event == "run_start" {
			problems = append(problems, Problem{Reordered, EventsFile, l.line, "run_start is not the first line"})
		}
	}
	for _, l := range links[:len(links)-1] {
		if l.event == "run_end" {
			problems = append(problems, Problem{Reordered, EventsFile, l.line, "run_end is not the last line"})
		}
	}
	return problems, crash
}

func checkEvidence(dir string, links []link) (problems []Problem, err error) {
	store := OpenEvidence(dir)
	done := map[string]bool{}
	for _, l := range links {
		for _, e := range l.evidence {
			path := store.Path(e)
			if done[path+string(e.Sha256)] {
				continue
			}
			done[path+string(e.Sha256)] = true
			file := filepath.Join(EvidenceFolder, filepath.Base(path))
			found, err := compareFile(path, file, e.Sha256, fmt.Sprintf("line %d of %s", l.line, EventsFile))
			if err != nil {
				return nil, err
			}
			problems = append(problems, found...)
		}
	}
	return problems, nil
}

// checkFiles compares the files that run_start names.
func checkFiles(dir string, links []link) (problems []Problem, err error) {
	if len(links) == 0 {
		return nil, nil
	}
	for _, f := range []struct{ digest, file string }{{"manifest", ManifestFile}, {"plan", PlanFile}, {"host", HostFile}, {"registration", RegistrationFile}} {
		want, named := links[0].digests[f.digest]
		if !named {
			continue
		}
		found, err := compareFile(filepath.Join(dir, f.file), f.file, want, "run_start")
		if err != nil {
			return nil, err
		}
		problems = append(problems, found...)
	}
	return problems, nil
}

func compareFile(path, name string, want bench.SHA256, named string) ([]Problem, error) {
	data, err := ReadRegular(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []Problem{{Missing, name, 0, named + " names it"}}, nil
	case err != nil:
		return nil, &engine.Error{Op: "read run directory", Err: err}
	case canonical.Sum(data) != want:
		return []Problem{{Edited, name, 0, "its digest is not the one that " + named + " names"}}, nil
	}
	return nil, nil
}

// checkRecord compares the last line with the one that the record names.
func checkRecord(dir string, links []link) ([]Problem, error) {
	data, err := read(dir, RecordFile)
	if err != nil || data == nil {
		return nil, err
	}
	var r bench.Record
	if err := json.Unmarshal(data, &r); err != nil {
		return []Problem{{Edited, RecordFile, 0, "it is no record: " + err.Error()}}, nil
	}
	if len(links) == 0 || r.Digests["events"] != links[len(links)-1].digest {
		return []Problem{{Edited, EventsFile, max(1, len(links)), "its last line is not the one that " + RecordFile + " names"}}, nil
	}
	return nil, nil
}

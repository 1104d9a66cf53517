package record

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"sort"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// entry is a line of a ledger.
type entry struct {
	link
	bench.LedgerLine
	// sum is the digest of the file up to and with this line.
	sum bench.SHA256
}

// ledger checks the ledger's lines, one by one and against each other. They
// carry no digest of the line before, since they are written inside measurement
// windows: an edit that leaves them legal shows only against the record.
func (v *verifier) ledger() error {
	entries, torn, err := readEntries(v.dir)
	if errors.Is(err, fs.ErrNotExist) {
		if len(v.links) == 0 && v.report.Record == nil { // it is made after events.jsonl
			v.crash(Problem{Missing, LedgerFile, 0, endedBefore})
		} else {
			v.damage(Problem{Missing, LedgerFile, 0, "each run has one"})
		}
		return nil
	}
	if err != nil {
		return err
	}
	v.report.LedgerLines = len(entries)
	links := make([]link, len(entries))
	for i, e := range entries {
		links[i] = e.link
	}
	damage := order(LedgerFile, links)
	follow := follower{things: map[int64]*thing{}}
	for i := range entries {
		entries[i].link = links[i] // with its number, which order has found out
	}
	damage = append(damage, follow.check(entries)...)
	illegal, err := v.schema(LedgerFile, "LedgerLine", damage)
	if err != nil {
		return err
	}
	v.judged = append(v.judged, illegal...)
	sortByLine(damage)
	v.damage(damage...)
	if torn > 0 {
		v.crash(Problem{Torn, LedgerFile, torn, cutOff})
	}
	v.report.Owned = follow.owned()
	v.cover(entries)
	return nil
}

// cover finds the lines that the record's digest covers. Those behind them were
// written later, by a sweep.
func (v *verifier) cover(entries []entry) {
	if v.report.Record == nil {
		return
	}
	want := v.report.Record.Digests["ledger"]
	none := sha256.Sum256(nil)
	v.covered = want
	if want == "" { // the schema speaks against such a record
		return
	}
	if want == bench.SHA256(hex.EncodeToString(none[:])) {
		v.report.Later = len(entries)
		return
	}
	for i, e := range entries {
		if e.sum == want {
			v.report.Later = len(entries) - i - 1
			return
		}
	}
	v.damage(Problem{Edited, LedgerFile, 0, "no first lines of it have the digest that " + RecordFile + " names"})
}

func readEntries(dir string) (entries []entry, torn int, err error) {
	h := sha256.New()
	_, torn, err = eachLine(filepath.Join(dir, LedgerFile), func(number int, line []byte) error {
		h.Write(line)
		h.Write([]byte{'\n'})
		e := entry{link: link{line: number}, sum: bench.SHA256(hex.EncodeToString(h.Sum(nil)))}
		if exactly(line, &e.LedgerLine) {
			e.legal, e.seq = true, e.LedgerLine.Seq
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return nil, 0, &engine.Error{Op: "read ledger", Err: err}
	}
	return entries, torn, nil
}

// thing is something that a ledger speaks of.
type thing struct {
	intent entry
	bound  *bench.Identity
	// gone is the line that says so; 0 while it is owned.
	gone int
}

// follower goes through a ledger and checks that each line follows from those before it.
type follower struct {
	things map[int64]*thing
}

func (f *follower) check(entries []entry) (problems []Problem) {
	problems = boots(entries)
	lost, twice := lostOf(entries)
	for i, e := range entries {
		if !e.legal || twice[i] {
			continue
		}
		for _, text := range f.follow(e, lost) {
			problems = append(problems, Problem{Wrong, LedgerFile, e.line, text})
		}
	}
	return problems
}

// boots finds lines of another boot between lines of one boot. A ledger goes
// from one boot to the next, and never back.
func boots(entries []entry) (problems []Problem) {
	first, last := map[string]int{}, map[string]int{}
	for i, e := range entries {
		if !e.legal {
			continue
		}
		if _, seen := first[e.Boot]; !seen {
			first[e.Boot] = i
		}
		last[e.Boot] = i
	}
	reach := make([]int, len(entries)+1) // the last line of a boot that began before each line
	for i, e := range entries {
		reach[i+1] = reach[i]
		if e.legal && first[e.Boot] == i {
			reach[i+1] = max(reach[i], last[e.Boot])
		}
	}
	for i, e := range entries {
		if e.legal && reach[first[e.Boot]] > i {
			problems = append(problems, Problem{Wrong, LedgerFile, e.line, "it is of another boot than the lines around it"})
		}
	}
	return problems
}

// follow takes one line in and says what is wrong with it.
func (f *follower) follow(e entry, lost gaps) (texts []string) {
	t := f.things[e.Id]
	if e.Op == "intent" {
		switch {
		case e.Id != e.seq:
			texts = append(texts, fmt.Sprintf("an intent is numbered as its line, %d, and not %d", e.seq, e.Id))
		case e.Identity != nil:
			texts = append(texts, "an intent has no identity yet")
		}
		f.things[e.seq] = &thing{intent: e}
		return texts
	}
	switch {
	case t == nil && lost.between(e.Id, e.Id+1): // what is lost is named already
		return texts
	case t == nil:
		return append(texts, fmt.Sprintf("%s of %d, of which there is no intent", e.Op, e.Id))
	case t.gone > 0 && e.Op == "gone":
		return append(texts, fmt.Sprintf("%s of %d, which is gone since line %d", e.Op, e.Id, t.gone))
	case t.gone > 0:
		return append(texts, fmt.Sprintf("%s of %d after it was gone in line %d", e.Op, e.Id, t.gone))
	}
	if e.Kind != t.intent.Kind || e.Claim != t.intent.Claim {
		texts = append(texts, fmt.Sprintf("kind and claim are not those of the intent in line %d", t.intent.line))
	}
	switch e.Op {
	case "bind":
		if e.Identity == nil {
			texts = append(texts, "a bind has an identity")
		}
		t.bound = e.Identity
	case "gone":
		if !reflect.DeepEqual(e.Identity, t.bound) && !lost.between(t.intent.seq, e.seq) {
			texts = append(texts, fmt.Sprintf("its identity is not the one that %d was bound to", e.Id))
		}
		t.gone = e.line
	}
	return texts
}

// gap has the numbers of from up to and without to.
type gap struct{ from, to int64 }

// gaps are numbers of lines that are named as missing, out of order or illegible:
// sorted, and none touches another. A line may claim any number, so none is counted out.
type gaps []gap

// lostOf finds them, and the entries that have the number of one before them.
func lostOf(entries []entry) (lost gaps, twice map[int]bool) {
	var all gaps
	seen, twice := map[int64]bool{}, map[int]bool{}
	next := int64(0)
	for i, e := range entries {
		if e.seq < 0 || e.seq == math.MaxInt64 { // no number of a line
			twice[i] = true
			continue
		}
		if next < e.seq {
			all = append(all, gap{next, e.seq})
		}
		next = max(next, e.seq+1)
		if twice[i] = seen[e.seq]; twice[i] || !e.legal {
			all = append(all, gap{e.seq, e.seq + 1})
		}
		seen[e.seq] = seen[e.seq] || e.legal
	}
	slices.SortFunc(all, func(a, b gap) int { return cmp.Compare(a.from, b.from) })
	for _, g := range all {
		if last := len(lost) - 1; last >= 0 && g.from <= lost[last].to {
			lost[last].to = max(lost[last].to, g.to)
		} else {
			lost = append(lost, g)
		}
	}
	return lost, twice
}

// between says whether a number of from up to and without to is lost.
func (l gaps) between(from, to int64) bool {
	i := sort.Search(len(l), func(i int) bool { return l[i].to > from })
	return i < len(l) && l[i].from < to
}

// owned is what is not gone, oldest first.
func (f *follower) owned() (list []Owned) {
	for _, id := range slices.Sorted(maps.Keys(f.things)) {
		if t := f.things[id]; t.gone == 0 {
			list = append(list, Owned{ID: id, Kind: t.intent.Kind, Claim: t.intent.Claim, Identity: t.bound, Boot: t.intent.Boot})
		}
	}
	return list
}

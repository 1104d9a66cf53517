package record

import (
	"encoding/json"
	"path/filepath"
	"slices"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// slot checks the handle of a slot by hand and takes back what is no problem of
// one: it has no record, its chain ends when it is released, and one that a run
// left has its ledger in the run's directory.
func (v *verifier) slot() error {
	data, err := v.file(HandleFile)
	if err != nil || data == nil {
		return err
	}
	found, err := illegal("SlotHandle", data)
	if err != nil {
		return err
	}
	if found != "" {
		v.judged = append(v.judged, Problem{Illegal, HandleFile, 0, found})
	}
	var h bench.SlotHandle
	if err := json.Unmarshal(data, &h); err != nil {
		v.damage(Problem{Edited, HandleFile, 0, "it is no handle: " + err.Error()})
		return nil
	}
	last, err := lastHandle(v.dir)
	if err != nil {
		return err
	}
	if last != "" && last != canonical.Sum(data) {
		v.damage(Problem{Edited, HandleFile, 0, "its digest is not the one that the last command in " + EventsFile + " names"})
	}
	v.report.Crash = slices.DeleteFunc(v.report.Crash, func(p Problem) bool {
		return p.Kind == Missing && p.File == RecordFile || p.Kind == Cut && p.File == EventsFile && !v.ended
	})
	if h.Run != "" {
		v.report.Damage = slices.DeleteFunc(v.report.Damage, func(p Problem) bool { return p.Kind == Missing && p.File == LedgerFile })
	}
	return nil
}

// lastHandle is the digest of the handle that the last command on a slot wrote,
// as its receipt has it; empty if none has.
func lastHandle(dir string) (digest bench.SHA256, err error) {
	_, _, err = eachLine(filepath.Join(dir, EventsFile), func(_ int, line []byte) error {
		var r bench.Receipt
		if !exactly(line, &r) {
			return nil // named already
		}
		if d := HandleNamed(r); d != "" {
			digest = d
		}
		return nil
	})
	if err != nil {
		return "", &engine.Error{Op: "read events", Err: err}
	}
	return digest, nil
}

// KindCommand is the kind of the receipt of a command on a slot by hand, and
// HandleFact the fact in it that has the digest of the slot's handle.
const (
	KindCommand = "command"
	HandleFact  = "handle"
)

// HandleNamed is the digest of the handle that a command's receipt names; empty if it names none.
func HandleNamed(r bench.Receipt) bench.SHA256 {
	if r.Kind != KindCommand {
		return ""
	}
	for _, f := range r.Facts {
		if f.Name == HandleFact && f.Known {
			return bench.SHA256(f.Value)
		}
	}
	return ""
}

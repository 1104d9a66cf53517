package sweep

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Runs lists the run directories at or below a path: the path itself, or what
// lies one or two folders below it, as the run command lays them out. Sorted.
func Runs(path string) ([]string, error) {
	if record.IsRun(path) {
		return []string{path}, nil
	}
	if info, err := os.Stat(path); err != nil {
		return nil, &engine.Error{Op: "find runs", Err: err}
	} else if !info.IsDir() {
		return nil, isRun(path)
	}
	var runs []string
	for _, below := range []string{"*", "*/*"} {
		found, err := filepath.Glob(filepath.Join(escape(path), below))
		if err != nil {
			return nil, &engine.Error{Op: "find runs", Err: err}
		}
		for _, dir := range found {
			if record.IsRun(dir) {
				runs = append(runs, dir)
			}
		}
	}
	slices.Sort(runs)
	return slices.Compact(runs), nil
}

// escape lets a path stand for itself in a pattern.
func escape(path string) string {
	var out []byte
	for i := range len(path) {
		switch path[i] {
		case '*', '?', '[', '\\':
			out = append(out, '\\')
		}
		out = append(out, path[i])
	}
	return string(out)
}

// Orphan is a scratch directory that no ledger of the known runs names. Whether
// its run lies elsewhere, lives, or was deleted, nobody can say: it is reported
// and never taken away.
type Orphan struct {
	Path string `json:"path"`
	// Claim is the random claim of the run that made it; its control groups are drums-CLAIM.
	Claim string `json:"claim"`
}

// Orphans lists the scratch directories of the state directory that are of none of the runs.
func Orphans(state string, runs []string) ([]Orphan, error) {
	entries, err := os.ReadDir(filepath.Join(state, "work"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &engine.Error{Op: "list scratch directories", Err: err}
	}
	known := map[string]bool{}
	for _, dir := range runs {
		c, err := readClaim(filepath.Join(dir, record.LedgerFile))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		known[c.id] = true
	}
	var orphans []Orphan
	for _, e := range entries {
		if e.IsDir() && randomID.MatchString(e.Name()) && !known[e.Name()] {
			orphans = append(orphans, Orphan{Path: filepath.Join(state, "work", e.Name()), Claim: e.Name()})
		}
	}
	return orphans, nil
}

// Kept lists the runs that a slot by hand lives in (STATE/slots/NAME, or the run
// that left it there), with the slot's name. Such a slot lives without an engine
// because somebody wants it to. One whose handle cannot be read counts as kept.
func Kept(state string) (map[string]string, error) {
	handles, err := filepath.Glob(filepath.Join(escape(state), "slots", "*", "handle.json"))
	if err != nil {
		return nil, &engine.Error{Op: "find slots", Err: err}
	}
	kept := map[string]string{}
	for _, path := range handles {
		dir := filepath.Dir(path)
		var h bench.SlotHandle
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &h)
		}
		switch {
		case err != nil || h.State != "gone" && h.Run == "":
			kept[dir] = filepath.Base(dir)
		case h.State != "gone":
			kept[h.Run] = filepath.Base(dir)
		}
	}
	return kept, nil
}

// Pending says whether a run's ledger has things that are not written down as gone.
func Pending(run string) (bool, error) {
	open, _, err := record.ReadLedger(filepath.Join(run, record.LedgerFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return len(open) > 0, err
}

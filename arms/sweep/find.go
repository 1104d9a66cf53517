package sweep

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
)

// Runs lists the run directories at or below a path: the path itself, or what
// lies one or two folders below it, as the run command lays them out. Sorted.
func Runs(path string) ([]string, error) {
	if isRun(path) == nil {
		return []string{path}, nil
	}
	if info, err := os.Stat(path); err != nil {
		return nil, &engine.Error{Op: "find runs", Err: err}
	} else if !info.IsDir() {
		return nil, isRun(path)
	}
	var runs []string
	for _, below := range []string{"*", "*/*"} {
		for _, name := range []string{record.LedgerFile, record.EventsFile} {
			found, err := filepath.Glob(filepath.Join(escape(path), below, name))
			if err != nil {
				return nil, &engine.Error{Op: "find runs", Err: err}
			}
			for _, f := range found {
				runs = append(runs, filepath.Dir(f))
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

// Pending says whether a run's ledger has things that are not written down as gone.
func Pending(run string) (bool, error) {
	open, _, err := record.ReadLedger(filepath.Join(run, record.LedgerFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return len(open) > 0, err
}

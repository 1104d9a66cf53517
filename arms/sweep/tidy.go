package sweep

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
)

// halfWritten are the files of a run directory that are written beside their
// final name first (record.Dir, record.Evidence).
var halfWritten = []struct {
	dir  string
	name *regexp.Regexp
}{
	{".", regexp.MustCompile(`^\.(manifest|plan|host|record)\.json[0-9]+$`)},
	{record.EvidenceFolder, regexp.MustCompile(`^\.new-[0-9]+$`)},
}

// temporary removes files of the run directory that were never finished. The
// directory is the run's own, and nobody writes there while it is held.
func (s *sweeper) temporary(r *Report) error {
	root, err := os.OpenRoot(s.RunDir)
	if err != nil {
		return &engine.Error{Op: "sweep run directory", Err: err}
	}
	defer root.Close()
	for _, half := range halfWritten {
		entries, err := fs.ReadDir(root.FS(), half.dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return &engine.Error{Op: "sweep run directory", Err: err}
		}
		for _, e := range entries {
			if !e.Type().IsRegular() || !half.name.MatchString(e.Name()) {
				continue
			}
			path := filepath.Join(half.dir, e.Name())
			t := Thing{ID: -1, Kind: "file", What: filepath.Join(s.RunDir, path), Outcome: Taken, Reason: "it was never finished"}
			if s.DryRun {
				t.Outcome = Planned
			} else if err := root.Remove(path); err != nil {
				t.Outcome, t.Reason = Failed, err.Error()
			}
			r.Things = append(r.Things, t)
		}
	}
	return nil
}

package main

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/register"
	site "github.com/drumsbench/drumsbench/engine/report"
	"github.com/drumsbench/drumsbench/engine/wholefile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// runIndex remembers what records say by the stat identity of their files. It is
// a cache: one that is not there, cannot be read or is of another form is empty,
// and everything in it can be read again.
type runIndex struct {
	path string
	runs map[string]indexedRun
	// judged are the states of the runs of registered experiments, by their first registration.
	judged map[bench.SHA256]judgedRuns
	// seen are the runs of this listing, changed says that there is something to keep.
	seen    map[string]bool
	changed bool
}

// indexedRun is a run's line with the identity of the file that it was read from.
type indexedRun struct {
	Dev, Ino    uint64
	Size, Mtime int64
	Ctime       int64
	Line        listedRun
}

// indexForm is what an index begins with: the form of what follows. A change in
// how a line is made of a record takes another.
const indexForm = "drumsbench runs 2"

func openRunIndex(path string) *runIndex {
	x := &runIndex{path: path, runs: map[string]indexedRun{}, judged: map[bench.SHA256]judgedRuns{}, seen: map[string]bool{}}
	f, err := os.Open(path)
	if err != nil {
		return x
	}
	defer f.Close()
	d := gob.NewDecoder(f)
	var form string
	runs := map[string]indexedRun{}
	judged := map[bench.SHA256]judgedRuns{}
	if d.Decode(&form) == nil && form == indexForm && d.Decode(&runs) == nil && d.Decode(&judged) == nil {
		x.runs, x.judged = runs, judged
	}
	return x
}

// look is the line of the run in a directory; not known if the directory went away.
func (x *runIndex) look(dir string) (r listedRun, known bool, err error) {
	full, err := filepath.Abs(dir)
	if err != nil {
		return r, false, err
	}
	path := filepath.Join(full, record.RecordFile)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		r, err = unrecorded(full)
		return r, err == nil, err
	}
	if err != nil {
		return r, false, err
	}
	now := identityOf(info)
	if was, had := x.runs[full]; had {
		now.Line = was.Line
		if was == now && now.Ino != 0 {
			x.seen[full] = true
			return was.Line, true, nil
		}
	}
	data, err := record.ReadRegular(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r, false, nil
	case errors.Is(err, record.ErrIrregular), errors.Is(err, record.ErrHuge): // its line says that it cannot be read
		data = nil
	case err != nil:
		return r, false, err
	}
	now.Line = lineOf(full, data)
	x.runs[full], x.seen[full], x.changed = now, true, true
	return now.Line, true, nil
}

// lineOf makes a record's line; of the record only what the line needs is decoded.
func lineOf(dir string, data []byte) listedRun {
	var r struct {
		Run      string
		Manifest string
		Arm      string
		Reset    string
		Verdict  bench.RunVerdict
		Reason   string
		Started  bench.Time
		// Registration that it names.
		Registration bench.SHA256
		Rollouts     []struct {
			Warmup  bool
			Control string
		}
	}
	line := listedRun{Path: dir}
	if err := json.Unmarshal(data, &r); err != nil {
		line.Run, line.State, line.Reason = filepath.Base(dir), string(site.Failed), "its record cannot be read"
		return line
	}
	line.Run, line.Manifest, line.Arm, line.Reset, line.Verdict, line.Reason, line.Started = r.Run, r.Manifest, r.Arm, r.Reset, r.Verdict, r.Reason, r.Started
	line.Registration = r.Registration
	line.State = string(site.StateOf(r.Verdict, true))
	for _, o := range r.Rollouts {
		if !o.Warmup && o.Control == "" {
			line.Measured++
		}
	}
	return line
}

// unrecorded is the line of a run without a record: it runs, or it crashed, or it
// is a slot by hand.
func unrecorded(dir string) (listedRun, error) {
	line := listedRun{Path: dir, Run: filepath.Base(dir), State: string(site.Failed), Reason: "it has no record"}
	release, err := record.HoldToRead(dir)
	if errors.Is(err, record.ErrRunning) {
		line.State, line.Reason = stateRunning, ""
	} else if err != nil {
		return line, err
	} else {
		_ = release() // the descriptor closes in any case
	}
	if m, _, err := record.ReadManifest(dir); err == nil {
		line.Manifest = string(m.Name)
	}
	if lost := register.LostIn(dir, line.Reason); lost != nil {
		line.Registration = lost.Registration
	}
	return line, nil
}

// save keeps the index, without the runs below folders that are not there any more.
func (x *runIndex) save(folders []string) error {
	for path := range x.runs {
		for _, folder := range folders {
			full, err := filepath.Abs(folder)
			if err == nil && !x.seen[path] && (path == full || strings.HasPrefix(path, full+string(filepath.Separator))) {
				delete(x.runs, path)
				x.changed = true
			}
		}
	}
	if !x.changed {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(x.path), 0o755); err != nil {
		return err
	}
	var data bytes.Buffer
	e := gob.NewEncoder(&data)
	if err := errors.Join(e.Encode(indexForm), e.Encode(x.runs), e.Encode(x.judged)); err != nil {
		return err
	}
	return wholefile.Write(x.path, data.Bytes(), 0o644)
}

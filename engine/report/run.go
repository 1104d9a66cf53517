// Package report draws runs and comparisons: pages, and the same data as
// Markdown, CSV, JSON and JUnit. It exists so that people can look at records
// without trusting whoever draws them.
//
// Always holds: nothing on a page is typed in, every value is of a record or of
// the files beside it; a run that did not pass, or whose directory is not sound,
// yields no number; controls and warm-ups yield none either; what a record says
// is escaped, since it may come from a guest; a page loads nothing from a
// network, and works without scripts. It reads files and writes files; it starts
// no program.
package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Run is a run as it lies in its directory.
type Run struct {
	// Dir is its directory.
	Dir      string
	Record   bench.Record
	Manifest bench.Manifest
	Plan     bench.Plan
	Receipts []Receipt
	Reviews  []bench.Review
	Ledger   []bench.LedgerLine
	// Problems that the check of the directory found. A run with one yields no number.
	Problems []record.Problem
	// Registered is the registration that the run belongs to; nil for none.
	Registered *register.Registered
	// Experiment is what Input.Judge made of that; nil until then.
	Experiment *bench.JudgedExperiment
}

// Receipt is a line of the chain with its own digest.
type Receipt struct {
	bench.Receipt
	Digest bench.SHA256
}

// NoRecord is a run without a record that could be drawn: it crashed, an engine
// works in it, or what is there cannot be read.
type NoRecord struct {
	// Dir is the last part of its path.
	Dir    string
	Reason string
	// Lost is what it says of its registration; nil where it names none.
	Lost *register.Lost `json:"-"`
}

// Load reads a run and checks its directory, by the program with this digest. A
// run that has no record to draw is a NoRecord and no error; the error says that
// nothing could be read.
func Load(dir string, program bench.SHA256) (*Run, *NoRecord, error) {
	none := func(reason string) (*Run, *NoRecord, error) {
		return nil, &NoRecord{Dir: filepath.Base(dir), Reason: reason, Lost: register.LostIn(dir, reason)}, nil
	}
	release, err := record.HoldToRead(dir)
	if errors.Is(err, record.ErrRunning) {
		return none("an engine works in it")
	}
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = release() }() // the descriptor closes in any case
	check, err := record.VerifyAs(dir, program)
	if err != nil {
		return nil, nil, err
	}
	if check.Record == nil {
		return none("it has no record that can be read: the run ended before one was written, or it was taken away or changed")
	}
	r := Run{Dir: dir, Record: *check.Record, Problems: slices.Concat(check.Damage, check.Crash, check.Unknown)}
	if err := r.files(); err != nil {
		return none(err.Error())
	}
	r.registration()
	return &r, nil, nil
}

// files reads what lies beside the record.
func (r *Run) files() error {
	for name, v := range map[string]any{record.ManifestFile: &r.Manifest, record.PlanFile: &r.Plan} {
		data, err := record.ReadRegular(filepath.Join(r.Dir, name))
		if err == nil {
			err = json.Unmarshal(data, v)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
	}
	err := eachLine(filepath.Join(r.Dir, record.EventsFile), func(line []byte) error {
		e := Receipt{Digest: canonical.Sum(line)}
		err := json.Unmarshal(line, &e.Receipt)
		r.Receipts = append(r.Receipts, e)
		return err
	})
	record.Void(len(r.Receipts), func(i int) *bench.Receipt { return &r.Receipts[i].Receipt })
	if err == nil {
		err = eachLine(filepath.Join(r.Dir, record.LedgerFile), func(line []byte) error {
			var l bench.LedgerLine
			err := json.Unmarshal(line, &l)
			r.Ledger = append(r.Ledger, l)
			return err
		})
	}
	if err == nil {
		r.Reviews, err = record.ReadReviews(r.Dir)
	}
	return err
}

// eachLine calls f with each whole line; a torn one is what the check has named.
func eachLine(path string, f func([]byte) error) error {
	data, err := record.ReadRegular(path)
	if err != nil {
		return err
	}
	for number := 1; ; number++ {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		if !whole {
			return nil
		}
		if err := f(line); err != nil {
			return fmt.Errorf("%s:%d: %w", filepath.Base(path), number, err)
		}
		data = rest
	}
}

// State of a run on the pages. It is computed, never chosen.
type State string

// The states, as the first line that holds:
//
//	failed       the directory is not sound, a gate was missed or could not be
//	             judged, a step failed, or a bar that names the run's arm and reset
//	             was missed, in whatever registration of its experiment
//	verified     its experiment is: it was registered before it ran, every registered
//	             run is there and passed, and every bar of every registration was met
//	preliminary  everything else
//
// planned is an experiment that is registered and has no run.
const (
	Verified    State = "verified"
	Preliminary State = "preliminary"
	Failed      State = "failed"
	Planned     State = "planned"
)

// States in the order in which pages list them.
var States = []State{Verified, Preliminary, Failed, Planned}

// Meaning of a state, as pages print it.
func (s State) Meaning() string {
	switch s {
	case Verified:
		return "Registered before it ran; every gate passed, every bar was met, on enough runs and rollouts."
	case Preliminary:
		return "Every gate passed, or a person has still to look. Not registered, or not enough data for its bars: a real observation and not yet a result."
	case Failed:
		return "A gate was missed or could not be judged, a step failed, or the run's directory is not sound: kept on the record, without a number. Or a registered bar was missed: the numbers show by how much."
	case Planned:
		return "Registered and not run. No numbers."
	}
	return ""
}

// StateOf computes the state of a run that belongs to no experiment by its verdict
// and by whether its directory was found sound.
func StateOf(v bench.RunVerdict, sound bool) State {
	if sound && (v == engine.RunPassed || v == engine.RunReview) {
		return Preliminary
	}
	return Failed
}

// Sound says that the check of the directory found nothing.
func (r *Run) Sound() bool { return len(r.Problems) == 0 }

// State of the run.
func (r *Run) State() State { return stateOf(r.Record, r.Sound(), r.Experiment) }

// Counts says whether the run yields numbers.
func (r *Run) Counts() bool { return r.Sound() && r.Record.Verdict == engine.RunPassed }

// Emulated says whether the processor was emulated: every number of such a run is marked.
func (r *Run) Emulated() bool { return engine.Emulated(r.Record.Facts) }

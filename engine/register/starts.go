package register

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Start is a run that was begun under a registration. It is written down before
// the run is, so that no run can be left out afterwards because its numbers did
// not please.
type Start struct {
	// Registration that the run names, Time of its run_start: the two tell runs apart.
	Registration bench.SHA256 `json:"registration"`
	Time         bench.Time   `json:"time"`
	// Run is the absolute path that its directory had.
	Run string `json:"run"`
	// torn says why the line cannot be read. Such a start is of no run there is.
	torn string
}

// Known is what a host knows of registrations beside the runs that are judged.
type Known struct {
	// Registrations that may amend those of the runs.
	Registrations []Registered
	// Starts of runs by the registration that they name. Where one has none, this
	// host knows of no start, which may all have been on another.
	Starts map[bench.SHA256][]Start
}

// startsSuffix of the files that name starts, after the registration's digest.
const startsSuffix = ".starts.jsonl"

// AddStart appends a start to the registration's file in folder, and syncs it.
func AddStart(folder string, s Start) (err error) {
	defer func() {
		if err != nil {
			err = &engine.Error{Op: "write down start of registered run", Err: err}
		}
	}()
	line, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(folder, string(s.Registration)+startsSuffix), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	d, err := os.Open(folder) // the file may be new
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ReadStarts reads every file of starts in folder. A line that cannot be read is a
// start that no run can answer to.
func ReadStarts(folder string) (map[bench.SHA256][]Start, error) {
	out := map[bench.SHA256][]Start{}
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, &engine.Error{Op: "read starts of registered runs", Err: err}
	}
	for _, e := range entries {
		digest, is := strings.CutSuffix(e.Name(), startsSuffix)
		if !is {
			continue
		}
		data, err := record.ReadRegular(filepath.Join(folder, e.Name()))
		if err != nil {
			return nil, &engine.Error{Op: "read starts of registered runs", Err: err}
		}
		of := bench.SHA256(digest)
		for i, line := range strings.Split(strings.TrimSuffix(string(data), "\n"), "\n") {
			var s Start
			if err := json.Unmarshal([]byte(line), &s); err != nil || s.Registration != of || s.Time == "" {
				s = Start{Registration: of, torn: fmt.Sprintf("line %d of %s, which names a start, cannot be read", i+1, e.Name())}
			}
			out[of] = append(out[of], s)
		}
	}
	return out, nil
}

// sink writes a start down before the receipt that begins the run.
type sink struct {
	engine.Sink
	folder string
	start  Start
}

// StartsIn is a sink of events that names the run's start in folder first. Where
// that fails the run does not begin.
func StartsIn(folder string, registration bench.SHA256, run string, events engine.Sink) engine.Sink {
	return sink{events, folder, Start{Registration: registration, Run: run}}
}

func (s sink) Append(r bench.Receipt) error {
	if r.Event == "run_start" {
		s.start.Time = r.Time
		if err := AddStart(s.folder, s.start); err != nil {
			return err
		}
	}
	return s.Sink.Append(r)
}

// Lost is a run that names a registration and has no record that could be judged.
type Lost struct {
	// Dir as it was named.
	Dir          string
	Registration bench.SHA256
	// Registered is its registration; nil where the directory's copy is not the one.
	Registered *Registered
	// Started is the time of its run_start.
	Started bench.Time
	Why     string
}

// LostIn reads what the first line of a run's chain says of its registration; nil
// where it names none, or there is no such line.
func LostIn(dir, why string) *Lost {
	data, err := record.ReadRegular(filepath.Join(dir, record.EventsFile))
	if err != nil {
		return nil
	}
	line, _, whole := bytes.Cut(data, []byte("\n"))
	var first bench.Receipt
	if !whole || json.Unmarshal(line, &first) != nil || first.Event != "run_start" || first.Digests["registration"] == "" {
		return nil
	}
	l := Lost{Dir: dir, Registration: first.Digests["registration"], Started: first.Time, Why: why}
	if data, err := record.ReadRegular(filepath.Join(dir, record.RegistrationFile)); err == nil && canonical.Sum(data) == l.Registration {
		if r, err := Parse(data); err == nil {
			l.Registered = &r
		}
	}
	return &l
}

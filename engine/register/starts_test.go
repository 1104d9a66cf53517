package register

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func judgeKnown(runs []Run, lost []Lost, known Known) bench.JudgedExperiment {
	return Judge(runs, lost, known, nil, compare.Options{Program: recordtest.Program}).Experiments[0]
}

// Of several runs under one registration nobody can show the one that pleases.
func TestStartsThatAreNotShown(t *testing.T) {
	o := recordtest.Run{Rollouts: 8, Bars: []bench.Bar{bar("quick", "1h")}}
	r := registered(t, o)
	runs := ran(t, r, o)
	mine := Start{Registration: r.Digest, Time: runs[0].Record.Started, Run: "/runs/best"}
	other := Start{Registration: r.Digest, Time: "2020-02-02T00:00:00Z", Run: "/runs/worst"}
	stranger := Start{Registration: recordtest.Program, Time: other.Time, Run: "/runs/stranger"}
	for _, c := range []struct {
		name   string
		starts []Start
		after  string // written behind the starts, by hand
		state  string
		says   string
		notes  int
	}{
		{"this one alone", []Start{mine, stranger}, "", Verified, "", 0},
		{"another one", []Start{mine, other}, "", Preliminary, "run /runs/worst was started under this registration", 0},
		{"only another one", []Start{other}, "", Preliminary, "run /runs/worst was started", 1},
		{"twice", []Start{mine, mine}, "", Preliminary, "run /runs/best was started", 0},
		{"a torn line", []Start{mine}, `{"registration":"`, Preliminary, "line 2 of", 0},
		{"an empty line", []Start{mine}, "\n", Preliminary, "line 2 of", 0},
		{"not known here", nil, "", Verified, "", 1},
	} {
		folder := filepath.Join(t.TempDir(), "registrations")
		for _, s := range c.starts {
			if err := AddStart(folder, s); err != nil {
				t.Fatal(err)
			}
		}
		if c.after != "" {
			file := filepath.Join(folder, string(r.Digest)+startsSuffix)
			data, err := os.ReadFile(file)
			if err == nil {
				err = os.WriteFile(file, append(data, c.after...), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		starts, err := ReadStarts(folder)
		if err != nil {
			t.Fatal(err)
		}
		e := judgeKnown(runs, nil, Known{Starts: starts})
		verdict := map[string]bench.BarVerdict{Verified: Pass, Preliminary: Unknown}[c.state]
		if e.State != c.state || e.Judgements[0].Verdict != verdict || len(e.Notes) != c.notes || !strings.Contains(strings.Join(e.Reasons, "\n"), c.says) {
			t.Errorf("%s: %s %s %q %q", c.name, e.State, e.Judgements[0].Verdict, e.Reasons, e.Notes)
		}
	}
}

// What was started and is not there is not planned.
func TestStartedIsNotPlanned(t *testing.T) {
	r := registered(t, recordtest.Run{Rollouts: 8, Bars: []bench.Bar{bar("quick", "1h")}})
	known := Known{Starts: map[bench.SHA256][]Start{r.Digest: {{Registration: r.Digest, Time: "2020-02-02T00:00:00Z", Run: "/gone"}}}}
	if e := Judge(nil, nil, known, []Registered{r}, compare.Options{}).Experiments[0]; e.State != Preliminary {
		t.Errorf("%+v", e)
	}
}

type events struct{ list []string }

func (e *events) Append(r bench.Receipt) error {
	e.list = append(e.list, r.Event)
	return nil
}

// The start is on disk before the run's first line is; where it cannot be, there is no run.
func TestStartIsWrittenFirst(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "registrations")
	var e events
	s := StartsIn(folder, recordtest.Program, "/runs/one", &e)
	for _, event := range []string{"run_start", "step", "run_end"} {
		if err := s.Append(bench.Receipt{Event: event, Time: "2020-02-02T00:00:00Z"}); err != nil {
			t.Fatal(err)
		}
	}
	starts, err := ReadStarts(folder)
	if list := starts[recordtest.Program]; err != nil || len(e.list) != 3 || len(list) != 1 || list[0].Run != "/runs/one" || list[0].Time != "2020-02-02T00:00:00Z" {
		t.Errorf("%v %v %+v", err, e.list, starts)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e.list = nil
	if err := StartsIn(file, recordtest.Program, "/runs/two", &e).Append(bench.Receipt{Event: "run_start"}); err == nil || len(e.list) != 0 {
		t.Errorf("%v %v", err, e.list)
	}
}

// A run that crashed belongs to its experiment, which cannot be verified without it.
func TestLost(t *testing.T) {
	o := recordtest.Run{Rollouts: 8, Bars: []bench.Bar{bar("quick", "1h")}}
	r := registered(t, o)
	runs := ran(t, r, o)
	dir := filepath.Join(t.TempDir(), "crashed")
	o.Registration = r.JSON
	o.Make(t, dir)
	if err := os.Remove(filepath.Join(dir, record.RecordFile)); err != nil {
		t.Fatal(err)
	}
	l := LostIn(dir, "it crashed")
	if l == nil || l.Registered == nil || l.Registration != r.Digest || l.Started == "" {
		t.Fatalf("%+v", l)
	}
	for name, with := range map[string][]Run{"alone": nil, "beside a good one": runs} {
		e := judgeKnown(with, []Lost{*l}, Known{})
		if e.State != Preliminary || e.Judgements[0].Verdict == Pass || !strings.Contains(strings.Join(e.Reasons, "\n"), "has no record that can be judged: it crashed") {
			t.Errorf("%s: %s %+v", name, e.State, e.Reasons)
		}
	}
	// Its start is answered for; it is no other run.
	known := Known{Starts: map[bench.SHA256][]Start{r.Digest: {{Registration: r.Digest, Time: l.Started, Run: dir}}}}
	if e := judgeKnown(nil, []Lost{*l}, known); strings.Contains(strings.Join(e.Reasons, "\n"), "is not among these") {
		t.Errorf("%q", e.Reasons)
	}
	// The digest is of the chain, whatever became of the copy.
	if err := os.Remove(filepath.Join(dir, record.RegistrationFile)); err != nil {
		t.Fatal(err)
	}
	if l = LostIn(dir, "it crashed"); l == nil || l.Registered != nil || judgeKnown(runs, []Lost{*l}, Known{}).State != Preliminary {
		t.Errorf("%+v", l)
	}
	if err := os.WriteFile(filepath.Join(dir, record.EventsFile), nil, 0o600); err != nil || LostIn(dir, "") != nil {
		t.Error(errors.Join(err, errors.New("a run without a line names a registration")))
	}
}

// Runs that were not in their turn verify nothing.
func TestTurns(t *testing.T) {
	o := recordtest.Run{Rollouts: 8, Resets: []string{"restore", "cold"}, Bars: []bench.Bar{bar("quick", "1h")}}
	cold := o
	cold.Reset = "cold"
	r := registered(t, o)
	made := ran(t, r, o, cold)
	if e := judgeKnown(made, nil, Known{}); e.State != Verified {
		t.Fatalf("%+v", e)
	}
	// The other way round: cold was first.
	set := func(runs []Run, i int, name, value string, known bool) {
		for k, f := range runs[i].Record.Facts {
			if f.Name == "experiment."+name {
				runs[i].Record.Facts[k].Value, runs[i].Record.Facts[k].Known = value, known
			}
		}
	}
	for _, c := range []struct {
		name   string
		change func([]Run)
	}{
		{"the other way round", func(runs []Run) { set(runs, 0, "position", "1", true); set(runs, 1, "position", "0", true) }},
		{"another block", func(runs []Run) { set(runs, 1, "block", "1", true) }},
		{"another order", func(runs []Run) { set(runs, 1, "order", "sequence", true) }},
		{"more blocks", func(runs []Run) { set(runs, 1, "blocks", "2", true) }},
		{"not known", func(runs []Run) { set(runs, 1, "position", "", false) }},
		{"not said", func(runs []Run) { runs[1].Record.Facts = nil }},
	} {
		runs := slices.Clone(made)
		for i := range runs {
			runs[i].Record.Facts = slices.Clone(runs[i].Record.Facts)
		}
		c.change(runs)
		e := judgeKnown(runs, nil, Known{})
		if e.State != Preliminary || e.Judgements[0].Verdict != Unknown || !strings.Contains(strings.Join(e.Reasons, "\n"), "it did not run in its turn") {
			t.Errorf("%s: %s %+v", c.name, e.State, e.Reasons)
		}
	}
}

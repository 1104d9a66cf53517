package report

import (
	"fmt"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The sections say what the records say: with another record another page.
func TestDensitySections(t *testing.T) {
	known := func(name, value string) bench.Fact { return bench.Fact{Name: name, Known: true, Value: value} }
	level := func(slots, trial, used int) *Run {
		r := load(t, recordtest.Run{Name: fmt.Sprintf("x/level%d-%d", slots, trial), Facts: []bench.Fact{
			known("experiment.part", "level"), known("experiment.slots", fmt.Sprint(slots)), known("experiment.block", fmt.Sprint(trial)),
			known("baseline-before/host-memory", `{"used":"0","low":"0","high":"0","readings":1}`), known("baseline-after/host-memory", `{"used":"0","low":"0","high":"0","readings":1}`),
			known("density/level", fmt.Sprintf(`{"host":{"used":"%d","low":"0","high":"0","readings":1},"slots":[],"engine":"1"}`, used<<20)),
			known("survey/host-probe", `{"memcpy":"5000000000","busy":"0.5","noise":["others worked"],"elapsed":"1"}`),
		}})
		return r
	}
	var runs []*Run
	for trial := range 4 {
		for _, n := range []int{1, 2, 4} {
			runs = append(runs, level(n, trial, 10+(20+trial)*n))
		}
	}
	s, err := densitySection(runs)
	if err != nil || s == nil {
		t.Fatal(s, err)
	}
	if got := cells(s.Tables[0].Rows[0]); !strings.HasPrefix(got, "host memory of one more slot | 21.50 | ") || !strings.Contains(got, " | MiB | 4 | ") {
		t.Error(got)
	}
	if len(s.Figures) != 1 || !strings.Contains(s.Figures[0].Caption, "21.50 MiB") || strings.Count(string(s.Figures[0].SVG), "<path") < 3 {
		t.Errorf("%+v", s.Figures)
	}
	if notes := strings.Join(s.Notes, "\n"); !strings.Contains(notes, "others worked") {
		t.Error(notes)
	}
	// A damaged run is no number, and takes its level from the slope.
	runs[0].Problems = []record.Problem{{Kind: record.Edited, File: record.EventsFile}}
	if s, err = densitySection(runs); err != nil || !strings.Contains(cells(s.Tables[0].Rows[0]), "too few levels") {
		t.Errorf("%+v, %v", s, err)
	}
	h, err := hostSection(runs[1])
	if err != nil || len(h.Tables[0].Rows) != 1 || !strings.HasPrefix(cells(h.Tables[0].Rows[0]), "before | NO | 5.00 | unknown") || len(h.Notes) != 1 {
		t.Errorf("%+v, %v", h, err)
	}
	ordinary := load(t, recordtest.Run{})
	if s, err := densitySection([]*Run{ordinary}); s != nil || err != nil {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := hostSection(ordinary); s != nil || err != nil {
		t.Errorf("%+v, %v", s, err)
	}
}

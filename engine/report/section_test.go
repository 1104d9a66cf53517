package report

import (
	"encoding/csv"
	"fmt"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// cells of a table's row as text.
func cells(r []Cell) string {
	var list []string
	for _, c := range r {
		list = append(list, c.Text)
	}
	return strings.Join(list, " | ")
}

// sectionOf is the section with an id.
func sectionOf(t *testing.T, list []Section, id string) Section {
	t.Helper()
	for _, s := range list {
		if s.ID == id {
			return s
		}
	}
	t.Fatalf("no section %s", id)
	return Section{}
}

// Failures are counted over the rollouts that were begun, of failed records too:
// each class by itself, each failed reset and each time-out on a line.
func TestAttempts(t *testing.T) {
	good := load(t, recordtest.Run{Rollouts: 3, Controls: true, Tools: true})
	bad := load(t, recordtest.Run{Name: "run/bad", Rollouts: 3, Gate: "state", Verdict: engine.Fail, Findings: []bench.Finding{{Verdict: engine.Fail, Subject: "/etc/motd", Text: "it was not reset"}}})
	late := load(t, recordtest.Run{Name: "run/late", Rollouts: 2})
	for i := range late.Record.Steps { // as a guest that does not come up in time
		if s := &late.Record.Steps[i]; s.Step == "r0/readiness" {
			s.Verdict, s.Error = engine.Fail, &bench.Failure{Op: "wait", Text: "the guest server did not answer", Cause: engine.CauseDeadline}
		}
	}
	late.Record.Rollouts[0].Class = record.EnvFailure
	damaged := load(t, recordtest.Run{Name: "run/damaged"})
	damaged.Problems = []record.Problem{{Kind: record.Edited, File: record.EventsFile}}

	s, err := attemptsSection([]*Run{good, bad, late, damaged})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Tables) != 2 || len(s.Tables[0].Rows) != 1 || len(s.Notes) != 1 || !strings.HasPrefix(s.Notes[0], "1 ") {
		t.Fatalf("%+v", s)
	}
	// 5 of the first, 1 of the second, whose others were not begun, 2 of the third.
	if got := cells(s.Tables[0].Rows[0]); !strings.HasPrefix(got, "fake | restore | 3 | 8 | 1 of 8 | ") || !strings.Contains(got, " | 0 | 0 | 1 | 7 of 8 | ") {
		t.Error(got)
	}
	var lines []string
	for _, r := range s.Tables[1].Rows {
		lines = append(lines, cells(r))
	}
	want := []string{
		"r0/gate-state | gate state | 0 | failed | invalid | /etc/motd: it was not reset | run/bad",
		"r0/readiness | readiness | 0 | time-out | env_failure | the guest server did not answer | run/late",
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s", strings.Join(lines, "\n"))
	}
	files := write(t, Input{Runs: []*Run{good, bad, late}})
	for _, name := range []string{"index.html", "data/report.md", "data/tables.csv", "data/report.json"} {
		for _, text := range []string{"r0/readiness", "time-out", "the guest server did not answer"} {
			if !strings.Contains(files[name], text) {
				t.Errorf("%s does not have %q", name, text)
			}
		}
	}
}

// The tools' own times stand beside ours, of measured rollouts alone, and follow the receipts.
func TestTools(t *testing.T) {
	r := load(t, recordtest.Run{Rollouts: 7, Controls: true, Tools: true})
	sections, err := gather(r, runSections)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, row := range sectionOf(t, sections, "tools").Tables[0].Rows {
		lines = append(lines, cells(row))
	}
	all := strings.Join(lines, "\n")
	for _, want := range []string{"frozen | dump | criu | 5.00 ms | ", "restore | restore | criu | 4.00 ms | 4.00 ms to 4.00 ms | 4.00 ms | 4.00 ms | 7", "pages restored | restore | criu | 200 | ", "the part criu | restore | ours | "} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is missing in\n%s", want, all)
		}
	}
	for i := range r.Receipts {
		for k := range r.Receipts[i].Facts {
			if f := &r.Receipts[i].Facts[k]; f.Name == "tool.criu.restore-ns" {
				f.Value = "77000000"
			}
		}
	}
	files := write(t, Input{Runs: []*Run{r}})
	if page := pageOf(t, files); !strings.Contains(page, "77.0 ms") {
		t.Error("the page does not follow the receipts")
	}
	rows, err := csv.NewReader(strings.NewReader(files["data/tables.csv"])).ReadAll()
	found := false
	for _, row := range rows {
		found = found || fmt.Sprint(row[1:]) == "[tools tools 3 restore p50 77.0 ms 7.7e+07]" || row[1] == "tools" && row[4] == "restore" && row[5] == "p50" && row[7] == "7.7e+07"
	}
	if err != nil || !found {
		t.Errorf("%v %v", err, rows)
	}
	r.Record.Verdict = engine.RunFailed
	if s, err := toolsSection(r); err != nil || s != nil {
		t.Errorf("a run that failed has numbers of its tools: %v %v", s, err)
	}
}

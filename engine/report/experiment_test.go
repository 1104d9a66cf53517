package report

import (
	"encoding/json"
	"encoding/xml"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func usableBar(max bench.Amount) []bench.Bar {
	return []bench.Bar{{Name: "quick", Metric: "usable", Of: bench.BarSide{Arm: "fake", Reset: "restore"}, P50: &bench.Bound{Max: max}, N: 7}}
}

func registration(t *testing.T, o recordtest.Run) register.Registered {
	t.Helper()
	r, err := register.New(o.Plans(), recordtest.Engine, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The state of a registered run is computed from its experiment, and the pages
// have the verdicts of the registration and of each amendment beside each other.
func TestRegisteredStates(t *testing.T) {
	easy, hard := recordtest.Run{Rollouts: 8, Bars: usableBar("1h")}, recordtest.Run{Rollouts: 8, Bars: usableBar("0.000001ms")}
	small := recordtest.Run{Rollouts: 3, Bars: usableBar("1h")}
	gate := easy
	gate.Gate, gate.Verdict = "locks", engine.Fail
	for _, c := range []struct {
		name  string
		run   recordtest.Run
		amend []bench.Bar
		state State
		says  []string
	}{
		{"met", easy, nil, Verified, []string{"Registered experiment"}},
		{"missed", hard, nil, Failed, []string{"Bar missed", "above max 0.000001ms"}},
		{"missed, and amended", hard, easy.Bars, Failed, []string{"Amendment 1", "at most 0.000001ms", "at most 1h", "made after the first run", `<span class="badge pass">pass</span>`, `<span class="badge fail">fail</span>`}},
		{"too few", small, nil, Preliminary, []string{"not_enough_data", "the bar asks for 7"}},
		{"a gate missed", gate, nil, Failed, []string{"yields no number"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			first := registration(t, c.run)
			c.run.Registration = first.JSON
			dir := filepath.Join(t.TempDir(), "run")
			c.run.Make(t, dir)
			r, none, err := Load(dir, recordtest.Program)
			if err != nil || none != nil || !r.Sound() || r.Registered == nil {
				t.Fatal(err, none, r.Problems)
			}
			var known []register.Registered
			if c.amend != nil {
				m := c.run.Plans()
				m.Experiment.Bars = c.amend
				second, err := register.Amend(first, m, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				known = append(known, second)
			}
			in := Input{Runs: []*Run{r}}
			in.Judge(known, nil, compare.Options{Program: recordtest.Program})
			if r.State() != c.state {
				t.Errorf("%s, want %s: %+v", r.State(), c.state, in.Experiments)
			}
			files := write(t, in)
			checkLinks(t, files)
			for _, page := range []string{files["index.html"], pageOf(t, files)} {
				for _, want := range c.says {
					if want != "Registered experiment" && want != "Bar missed" && !strings.Contains(page, want) {
						t.Errorf("a page does not say %q", want)
					}
				}
				if !strings.Contains(page, string(first.Digest[:12])) {
					t.Error("a page does not name the registration")
				}
			}
			for _, want := range c.says {
				if !strings.Contains(files["index.html"]+pageOf(t, files), want) {
					t.Errorf("no page says %q", want)
				}
			}
			if !strings.Contains(files["data/report.md"], "## Experiments") || !strings.Contains(files["data/report.md"], string(first.Digest)) {
				t.Error("report.md has no experiment")
			}
			var d Data
			if err := json.Unmarshal([]byte(files["data/report.json"]), &d); err != nil || len(d.Experiments) != 1 || len(d.Experiments[0].Judgements) != 1+len(known) || d.Runs[0].State != c.state {
				t.Errorf("%v %+v", err, d.Experiments)
			}
			var j junitSuites
			if err := xml.Unmarshal([]byte(files["data/junit.xml"]), &j); err != nil || len(j.Suites) != 2 || (j.Suites[1].Failures+j.Suites[1].Errors == 0) != (c.state == Verified) {
				t.Errorf("%v %+v", err, j)
			}
			if strings.Contains(files["index.html"], "not fixed before it") {
				t.Error("a registered run is called unregistered")
			}
		})
	}
}

// Registered and not run is planned, and counts no record.
func TestPlanned(t *testing.T) {
	first := registration(t, recordtest.Run{Rollouts: 8, Bars: usableBar("1h")})
	var in Input
	in.Judge(nil, []register.Registered{first}, compare.Options{})
	files := write(t, in)
	for _, want := range []string{"Not run yet: no numbers.", `<span class="badge planned">planned</span><b>1</b>`, "at most 1h"} {
		if !strings.Contains(files["index.html"], want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if strings.Contains(files["index.html"], `badge not_enough_data"`) {
		t.Error("what was not run has a verdict")
	}
}

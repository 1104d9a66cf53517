package report

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func usableBar(max bench.Amount) []bench.Bar {
	return []bench.Bar{{Name: "quick", Metric: "usable", Of: bench.BarSide{Arm: "fake", Reset: "restore"}, P50: &bench.Bound{Max: max}, N: 7}}
}

// inTurn are the facts of a run that is the first of its experiment.
func inTurn(o recordtest.Run) []bench.Fact {
	m := o.Plans()
	return register.Schedule(register.ArmsInTurn(m), m.Experiment.Reset, m.Experiment)[0].Facts(m.Experiment)
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
			c.run.Facts = inTurn(c.run)
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
			in.Judge(register.Known{Registrations: known}, nil, compare.Options{Program: recordtest.Program})
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
	in.Judge(register.Known{}, []register.Registered{first}, compare.Options{})
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

// A run that left no record, or whose registration was changed, is a run of its
// experiment all the same, and so is one that was started and is not shown.
func TestLostRunIsCounted(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *testing.T, dir string)
		starts int
		says   string
	}{
		{"no record", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, record.RecordFile)); err != nil {
				t.Fatal(err)
			}
		}, 0, "has no record that can be judged"},
		{"another registration", func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, record.RegistrationFile), []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, 0, "its copy of the registration is not the one"},
		{"not shown", nil, 1, "is not among these"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := recordtest.Run{Rollouts: 8, Bars: usableBar("1h")}
			first := registration(t, o)
			o.Registration, o.Facts = first.JSON, inTurn(o)
			good := load(t, o)
			known := register.Known{Registrations: []register.Registered{first}, Starts: map[bench.SHA256][]register.Start{}}
			in := Input{Runs: []*Run{good}}
			in.Judge(known, nil, compare.Options{Program: recordtest.Program})
			if good.State() != Verified {
				t.Fatalf("%+v", in.Experiments)
			}
			for range c.starts {
				known.Starts[first.Digest] = append(known.Starts[first.Digest], register.Start{Registration: first.Digest, Time: "2020-01-01T00:00:00Z", Run: "/elsewhere"})
			}
			if c.change != nil {
				dir := filepath.Join(t.TempDir(), "lost")
				o.Make(t, dir)
				c.change(t, dir)
				r, none, err := Load(dir, recordtest.Program)
				if err != nil {
					t.Fatal(err)
				}
				if none != nil {
					in.None = append(in.None, *none)
				} else {
					in.Runs = append(in.Runs, r)
				}
			}
			in.Judge(known, nil, compare.Options{Program: recordtest.Program})
			e := in.Experiments.Experiments[0]
			if good.State() == Verified || e.State == register.Verified || e.Judgements[0].Bars[0].Verdict != register.Unknown || !strings.Contains(strings.Join(e.Reasons, "\n"), c.says) {
				t.Errorf("%s: %+v", good.State(), e)
			}
			if files := write(t, in); !strings.Contains(files["index.html"], c.says) {
				t.Error("the page does not say it")
			}
		})
	}
}

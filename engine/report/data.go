package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/markdown"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Data is the JSON of a site: what the pages say, for programs.
type Data struct {
	ApiVersion  bench.APIVersion   `json:"apiVersion"`
	Runs        []RunData          `json:"runs"`
	None        []NoRecord         `json:"withoutRecord"`
	Comparisons []bench.Comparison `json:"comparisons"`
	// Experiments are the judged registrations.
	Experiments []bench.JudgedExperiment `json:"experiments"`
	// Sections over all runs.
	Sections []Section `json:"sections"`
}

// RunData is a run in it.
type RunData struct {
	Run      string           `json:"run"`
	Page     string           `json:"page"`
	State    State            `json:"state"`
	Verdict  bench.RunVerdict `json:"verdict"`
	Reason   string           `json:"reason,omitempty"`
	Emulated bool             `json:"emulated"`
	Arm      string           `json:"arm"`
	Reset    string           `json:"reset"`
	Manifest string           `json:"manifest"`
	Started  bench.Time       `json:"started"`
	Workload bench.SHA256     `json:"workload"`
	Events   bench.SHA256     `json:"events"`
	Hardware string           `json:"hardware"`
	Method   string           `json:"method"`
	Sample   string           `json:"sample"`
	Caveats  []string         `json:"caveats"`
	Gates    int              `json:"gates"`
	Passed   int              `json:"gatesPassed"`
	Metrics  []Metric         `json:"metrics"`
	Problems []string         `json:"problems,omitempty"`
	// Registration that the run belongs to.
	Registration bench.SHA256 `json:"registration,omitempty"`
	Sections     []Section    `json:"sections"`
}

// data writes the same data as Markdown, CSV, JSON and JUnit.
func (w writer) data(x index, in Input) error {
	for name, make := range map[string]func() ([]byte, error){
		"data/report.json": func() ([]byte, error) { return asJSON(x, in) },
		"data/metrics.csv": func() ([]byte, error) { return asCSV(x) },
		"data/tables.csv":  func() ([]byte, error) { return tablesCSV(x) },
		"data/report.md":   func() ([]byte, error) { return []byte(asMarkdown(x)), nil },
		"data/junit.xml":   func() ([]byte, error) { return asJUnit(x) },
	} {
		b, err := make()
		if err != nil {
			return &engine.Error{Op: "write " + name, Err: err}
		}
		if err := w.file(name, b); err != nil {
			return err
		}
	}
	return nil
}

func asJSON(x index, in Input) ([]byte, error) {
	d := Data{ApiVersion: engine.APIVersion, Runs: []RunData{}, None: in.None, Comparisons: in.Comparisons, Experiments: in.Experiments.Experiments, Sections: append([]Section{}, x.Sections...)}
	if d.None == nil {
		d.None = []NoRecord{}
	}
	if d.Comparisons == nil {
		d.Comparisons = []bench.Comparison{}
	}
	if d.Experiments == nil {
		d.Experiments = []bench.JudgedExperiment{}
	}
	for _, v := range x.Runs {
		r := v.Record
		one := RunData{Run: r.Run, Page: v.Path, State: v.State, Verdict: r.Verdict, Reason: v.Failure, Emulated: v.Emulated, Arm: r.Arm, Reset: r.Reset, Manifest: r.Manifest,
			Started: r.Started, Workload: r.Digests["workload"], Events: r.Digests["events"], Hardware: v.Hardware, Method: v.Method, Sample: v.Sample,
			Caveats: v.Caveats, Registration: r.Registration, Gates: v.Gates, Passed: v.Passed, Metrics: []Metric{}, Sections: append([]Section{}, v.Sections...)}
		for _, m := range v.Metrics {
			one.Metrics = append(one.Metrics, m.Metric)
		}
		for _, p := range v.Run.Problems {
			one.Problems = append(one.Problems, p.Error())
		}
		d.Runs = append(d.Runs, one)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	err := e.Encode(d)
	return b.Bytes(), err
}

// number is a value in the metric's own unit; empty where there is none.
func number(v *float64) string { return raw(v) }

func asCSV(x index) ([]byte, error) {
	rows := [][]string{{"run", "state", "verdict", "arm", "reset", "manifest", "started", "workload", "emulated", "metric", "unit", "n", "of", "p50", "p50_low", "p50_high", "confidence", "p95", "min", "max"}}
	for _, v := range x.Runs {
		r := v.Record
		head := []string{r.Run, string(v.State), string(r.Verdict), r.Arm, r.Reset, r.Manifest, string(r.Started), string(r.Digests["workload"]), strconv.FormatBool(v.Emulated)}
		for _, m := range v.Metrics {
			low, high, confidence := "", "", ""
			if s := m.Summary.P50; s != nil && s.Interval != nil {
				low, high, confidence = number(&s.Interval.Low), number(&s.Interval.High), number(&s.Interval.Confidence)
			}
			rows = append(rows, append(append([]string{}, head...), m.Name, m.Unit, fmt.Sprint(m.Summary.N), fmt.Sprint(m.Of),
				m.P50Raw, low, high, confidence, m.P95Raw, m.MinRaw, m.MaxRaw))
		}
		if len(v.Metrics) == 0 { // kept on the record, without a number
			rows = append(rows, append(append([]string{}, head...), make([]string, len(rows[0])-len(head))...))
		}
	}
	return safeCSV(rows)
}

// tablesCSV has the tables of the sections, of the runs and over all of them.
func tablesCSV(x index) ([]byte, error) {
	rows := append([][]string{{"run", "section", "table", "row", "head", "column", "text", "value"}}, tables("", x.Sections)...)
	for _, v := range x.Runs {
		rows = append(rows, tables(v.Record.Run, v.Sections)...)
	}
	return safeCSV(rows)
}

func safeCSV(rows [][]string) ([]byte, error) {
	for _, row := range rows {
		for i, c := range row {
			row[i] = noFormula(c)
		}
	}
	var b bytes.Buffer
	err := csv.NewWriter(&b).WriteAll(rows)
	return b.Bytes(), err
}

// noFormula keeps a spreadsheet from taking a cell for a formula.
func noFormula(c string) string {
	c = terminal.Line(c)
	if _, err := strconv.ParseFloat(c, 64); err != nil && c != "" && strings.ContainsRune("=+-@", rune(c[0])) {
		return "'" + c
	}
	return c
}

func asMarkdown(x index) string {
	var b strings.Builder
	line := func(cells ...string) {
		for i, c := range cells {
			cells[i] = markdown.Escape(c)
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	b.WriteString("# Benchmarks\n\n" + markdown.Escape(x.Exists) + "\n\n")
	for _, s := range x.States {
		fmt.Fprintf(&b, "- **%s** %d: %s\n", s.State, s.Count, s.Meaning)
	}
	experimentsMarkdown(&b, x.Experiments, line)
	if len(x.Comparisons) > 0 {
		b.WriteString("\n## Comparisons\n\n| Comparison | Kind | Verdict | Result or first reason |\n| --- | --- | --- | --- |\n")
		for _, c := range x.Comparisons {
			line(c.Title, c.Kind, c.C.Verdict, c.Line)
		}
	}
	sectionsMarkdown(&b, "##", x.Sections, line)
	for _, v := range x.Runs {
		fmt.Fprintf(&b, "\n## %s\n\n%s, %s, arm %s, %s, %s; gates %d of %d passed\n\n", markdown.Escape(v.Name), v.State, v.Record.Verdict, markdown.Escape(v.Record.Arm), v.Record.Reset, v.Date, v.Passed, v.Gates)
		if v.Failure != "" {
			b.WriteString("No number comes from this run. " + markdown.Escape(v.Failure) + "\n\n")
			for _, m := range v.Missed {
				fmt.Fprintf(&b, "- %s: %s (%s): %s\n", m.Verdict, markdown.Escape(m.Name), markdown.Escape(m.Step), markdown.Escape(m.Why()))
			}
			b.WriteString("\n")
		}
		if len(v.Metrics) > 0 {
			b.WriteString("| Metric | p50 | interval | p95 | n |\n| --- | ---: | --- | ---: | ---: |\n")
			for _, m := range v.Metrics {
				title := m.Title
				if m.Emulated {
					title += " (emulated)"
				}
				line(title, m.P50, m.Interval, m.P95, m.N)
			}
			b.WriteString("\n")
		}
		for _, p := range []pair{{"Hardware", v.Hardware}, {"Workload", v.Workload}, {"Method", v.Method}, {"Sample", v.Sample}} {
			fmt.Fprintf(&b, "- %s: %s\n", p.Name, markdown.Escape(p.Text))
		}
		for _, c := range v.Caveats {
			fmt.Fprintf(&b, "- caveat: %s\n", markdown.Escape(c))
		}
		sectionsMarkdown(&b, "###", v.Sections, line)
	}
	if len(x.None) > 0 {
		b.WriteString("\n## Runs without a record\n\n")
		for _, n := range x.None {
			fmt.Fprintf(&b, "- %s: %s\n", markdown.Escape(n.Dir), markdown.Escape(n.Reason))
		}
	}
	b.WriteString("\n" + x.Method + "\n")
	return b.String()
}

// JUnit: a suite for each run, a case for each gate and for each other step that did not pass.
type (
	junitSuites struct {
		XMLName xml.Name     `xml:"testsuites"`
		Suites  []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name      string      `xml:"name,attr"`
		Timestamp string      `xml:"timestamp,attr,omitempty"`
		Tests     int         `xml:"tests,attr"`
		Failures  int         `xml:"failures,attr"`
		Errors    int         `xml:"errors,attr"`
		Skipped   int         `xml:"skipped,attr"`
		Cases     []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name    string    `xml:"name,attr"`
		Class   string    `xml:"classname,attr"`
		Failure *junitWhy `xml:"failure,omitempty"`
		Error   *junitWhy `xml:"error,omitempty"`
		Skipped *junitWhy `xml:"skipped,omitempty"`
	}
	junitWhy struct {
		Message string `xml:"message,attr"`
	}
)

// A gate that failed is a failure; one that could not be judged, or was not run,
// is an error; one that the arm declares it lacks is skipped. Nothing else passes.
func asJUnit(x index) ([]byte, error) {
	var all junitSuites
	for _, v := range x.Runs {
		s := junitSuite{Name: terminal.Line(v.Name), Timestamp: string(v.Record.Started)}
		add := func(j judged, optional bool) {
			c := junitCase{Name: terminal.Line(j.Name + " " + j.Step), Class: terminal.Line(v.Record.Arm + "." + v.Record.Reset)}
			why := &junitWhy{terminal.Line(strings.TrimSuffix(string(j.Verdict)+": "+j.Why(), ": "))}
			switch {
			case j.Verdict == engine.Pass:
			case j.Verdict == engine.Fail:
				c.Failure = why
				s.Failures++
			case j.Verdict == engine.NotApplicable && optional:
				c.Skipped = why
				s.Skipped++
			default:
				c.Error = why
				s.Errors++
			}
			s.Tests++
			s.Cases = append(s.Cases, c)
		}
		optional := map[string]bool{}
		for _, p := range v.Run.Plan.Steps {
			optional[p.Id] = p.Optional
		}
		for _, j := range v.GateList {
			add(j, optional[j.Step])
		}
		for _, j := range v.Stopped {
			add(j, optional[j.Step])
		}
		add(judged{Name: "verdict", Step: "run", Verdict: runAs(v), Findings: []bench.Finding{{Verdict: runAs(v), Subject: "run", Text: v.Failure}}}, false)
		all.Suites = append(all.Suites, s)
	}
	all.Suites = append(all.Suites, junitExperiments(x.Experiments)...)
	for _, n := range x.None {
		all.Suites = append(all.Suites, junitSuite{Name: terminal.Line(n.Dir), Tests: 1, Errors: 1,
			Cases: []junitCase{{Name: "record", Class: "run", Error: &junitWhy{terminal.Line(n.Reason)}}}})
	}
	b, err := xml.MarshalIndent(all, "", "  ")
	return append([]byte(xml.Header), append(b, '\n')...), err
}

// runAs is a run's verdict, with the check of its directory, as a step's.
func runAs(v *view) bench.Verdict {
	switch {
	case v.Run.Counts():
		return engine.Pass
	case !v.Run.Sound() || v.Record.Verdict == engine.RunFailed:
		return engine.Fail
	case v.Record.Verdict == engine.RunReview:
		return engine.Review
	}
	return engine.VerdictUnknown
}

package report

import (
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/engine/stats"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// load makes a run and reads it.
func load(t testing.TB, o recordtest.Run) *Run {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	o.Make(t, dir)
	r, none, err := Load(dir, recordtest.Program)
	if err != nil || none != nil {
		t.Fatal(err, none)
	}
	return r
}

// write makes a site and returns its files' contents by path.
func write(t testing.TB, in Input) map[string]string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "site")
	if err := Write(dir, in); err != nil {
		t.Fatal(err)
	}
	return read(t, dir)
}

// read gives a site's files' contents by path.
func read(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		files[rel] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// pageOf is the page of the only run.
func pageOf(t testing.TB, files map[string]string) string {
	t.Helper()
	for name, text := range files {
		if strings.HasPrefix(name, "runs/") && strings.HasSuffix(name, "/index.html") {
			return text
		}
	}
	t.Fatal("no run's page")
	return ""
}

func metric(t testing.TB, r *Run, name string) Metric {
	t.Helper()
	for _, m := range r.Metrics() {
		if m.Name == name {
			return m
		}
	}
	t.Fatalf("no metric %s", name)
	return Metric{}
}

// What a page says changes with the record, and with nothing else.
func TestPagesFollowTheRecord(t *testing.T) {
	r := load(t, recordtest.Run{Rollouts: 6, Controls: true, Warmups: 1})
	before := write(t, Input{Runs: []*Run{r}, Program: "test"})
	for name, text := range write(t, Input{Runs: []*Run{r}, Program: "test"}) {
		if before[name] != text {
			t.Errorf("%s is another one the second time", name)
		}
	}
	const odd = 123_456_789_000 // 123.5 s, which no page has
	for _, text := range before {
		if strings.Contains(text, "123.5 s") {
			t.Fatal("the number is there already")
		}
	}
	for i := range r.Record.Rollouts {
		if o := &r.Record.Rollouts[i]; o.Control == "" && !o.Warmup {
			o.Clocks.Usable = bench.Int64(strconv.Itoa(odd))
		}
	}
	r.Record.Differences = append(r.Record.Differences, bench.Difference{Name: "planted", Text: "a difference of a test"})
	r.Record.Facts[1].Value = "77"
	after := write(t, Input{Runs: []*Run{r}, Program: "test"})
	for _, page := range []string{after["index.html"], pageOf(t, after), after["data/report.md"]} {
		for _, want := range []string{"123.5 s", "a difference of a test", "77 CPUs"} {
			if !strings.Contains(page, want) {
				t.Errorf("a page does not have %q", want)
			}
		}
	}
	for _, name := range []string{"data/metrics.csv", "data/report.json"} {
		if !strings.Contains(after[name], "123456789000") && !strings.Contains(after[name], "1.23456789e+11") {
			t.Errorf("%s does not follow the record", name)
		}
	}
}

// Numbers are those of package stats over the measured, valid rollouts.
func TestMetrics(t *testing.T) {
	r := load(t, recordtest.Run{Rollouts: 7, Controls: true, Warmups: 2})
	for i := range r.Record.Rollouts {
		o := &r.Record.Rollouts[i]
		o.Clocks.Usable = bench.Int64(strconv.Itoa((i + 1) * 1e6))
		if o.Control != "" || o.Warmup {
			o.Clocks.Usable = "999000000000"
		}
	}
	r.Record.Rollouts[4].Class = record.FailedValid
	r.Record.Rollouts[5].Class = record.EnvFailure
	r.Record.Rollouts[6].Clocks.Usable = ""
	m := metric(t, r, "usable")
	want := []float64{5e6, 8e6, 9e6, 10e6, 11e6}
	if got := fmt.Sprint(m.Sample); got != fmt.Sprint(want) {
		t.Errorf("sample %s, want %v", got, want)
	}
	if m.Of != 6 || m.Summary.N != 5 || *m.Summary.P50.Value != *stats.Median(want).Value {
		t.Errorf("%+v", m)
	}
	if e := metric(t, r, "rollouts.env_failure"); *e.Summary.P50.Value != 1.0/7 || e.Note != "1 of 7" {
		t.Errorf("%+v", e)
	}
	if v := metric(t, r, "rollouts.valid"); v.Note != "6 of 7" {
		t.Errorf("%+v", v)
	}
	if m := metric(t, r, "private-dirty"); *m.Summary.P50.Value != 9<<20 {
		t.Errorf("%+v", m)
	}
	r.Manifest.Resources.Memory = "64MiB"
	if m := metric(t, r, "private-dirty.share"); *m.Summary.P50.Value != 9.0/64 || !strings.Contains(m.Note, "64MiB") {
		t.Errorf("%+v", m)
	}
	for i := range r.Record.Rollouts { // as with a pool
		r.Record.Rollouts[i].Prepared = "7000000"
	}
	if m := metric(t, r, "prepared"); *m.Summary.P50.Value != 7e6 || m.Summary.N != 6 {
		t.Errorf("%+v", m)
	}
	for name, text := range write(t, Input{Runs: []*Run{r}}) {
		if strings.HasSuffix(name, ".html") && strings.Contains(text, "999.0 s") {
			t.Errorf("%s has the number of a control or warm-up", name)
		}
	}
}

// A run that did not pass, or is not as it was written, has its failure on the
// pages and no number anywhere.
func TestNoNumberWithoutAPass(t *testing.T) {
	damage := func(dir string) error {
		path := filepath.Join(dir, record.LedgerFile)
		data, err := os.ReadFile(path)
		return errors.Join(err, os.WriteFile(path, []byte(strings.Replace(string(data), "/cg", "/cx", 1)), 0o644))
	}
	torn := func(dir string) error { return os.Remove(filepath.Join(dir, record.HostFile)) }
	for _, c := range []struct {
		name   string
		run    recordtest.Run
		damage func(string) error
		state  State
		says   string
	}{
		{"a gate failed", recordtest.Run{Gate: "locks", Verdict: engine.Fail, Findings: []bench.Finding{{Verdict: engine.Fail, Subject: "lock 7", Text: "is lost", Want: "held", Have: "not held", Hint: "repair it"}}}, nil, Failed, "lock 7"},
		{"a gate could not be judged", recordtest.Run{Gate: "live", Verdict: engine.VerdictUnknown}, nil, Failed, "planted"},
		{"a person has to look", recordtest.Run{Gate: "live", Verdict: engine.Review}, nil, Preliminary, "waits for a person"},
		{"its ledger was changed", recordtest.Run{}, damage, Failed, "not sound"},
		{"a file is gone", recordtest.Run{}, torn, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			c.run.Rollouts = 3
			c.run.Make(t, dir)
			if c.damage != nil {
				if err := c.damage(dir); err != nil {
					t.Fatal(err)
				}
			}
			r, none, err := Load(dir, recordtest.Program)
			if err != nil {
				t.Fatal(err)
			}
			if c.state == "" {
				// Without the host's file the site has one source less; its record is damaged all the same.
				if r == nil || r.Sound() || r.Counts() {
					t.Fatalf("%v %+v", none, r)
				}
				checkLinks(t, write(t, Input{Runs: []*Run{r}}))
				return
			}
			if r.State() != c.state || r.Counts() || r.Metrics() != nil || r.Resets().Lanes != nil || r.Timeline().Ticks != nil {
				t.Errorf("state %s, counts %v", r.State(), r.Counts())
			}
			files := write(t, Input{Runs: []*Run{r}})
			for _, page := range []string{files["index.html"], pageOf(t, files), files["data/report.md"]} {
				if !strings.Contains(page, c.says) {
					t.Errorf("a page does not say %q", c.says)
				}
				for _, number := range []string{" ms", " MiB</", "µs", `data-v="1`} {
					if strings.Contains(page, number) {
						i := strings.Index(page, number)
						t.Errorf("a page has a number: %q", page[max(0, i-80):i+10])
					}
				}
			}
			rows, err := csv.NewReader(strings.NewReader(files["data/metrics.csv"])).ReadAll()
			if err != nil || len(rows) != 2 || rows[1][9] != "" || rows[1][13] != "" {
				t.Errorf("%v %v", err, rows)
			}
			var d Data
			if err := json.Unmarshal([]byte(files["data/report.json"]), &d); err != nil || len(d.Runs) != 1 || len(d.Runs[0].Metrics) != 0 || d.Runs[0].State != c.state {
				t.Errorf("%v %+v", err, d)
			}
			var j junitSuites
			if err := xml.Unmarshal([]byte(files["data/junit.xml"]), &j); err != nil || j.Suites[0].Failures+j.Suites[0].Errors == 0 {
				t.Errorf("JUnit says that all is well: %v %+v", err, j)
			}
		})
	}
}

func TestRunsWithoutRecord(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	recordtest.Run{}.Make(t, dir)
	if err := os.Remove(filepath.Join(dir, record.RecordFile)); err != nil {
		t.Fatal(err)
	}
	r, none, err := Load(dir, recordtest.Program)
	if err != nil || r != nil || none == nil {
		t.Fatalf("%v %v %v", r, none, err)
	}
	files := write(t, Input{None: []NoRecord{*none}})
	if !strings.Contains(files["index.html"], "Runs without a record") || !strings.Contains(files["data/junit.xml"], "<error") {
		t.Error("the run is not mentioned")
	}
}

// Every number of an emulated run says so, wherever it stands.
func TestEmulated(t *testing.T) {
	r := load(t, recordtest.Run{Rollouts: 6, Facts: []bench.Fact{{Name: "accelerator", Known: true, Value: "tcg", Source: "query-kvm"}}})
	files := write(t, Input{Runs: []*Run{r}})
	for _, page := range []string{files["index.html"], pageOf(t, files)} {
		tree := parse(t, page)
		rows := 0
		each(tree, "tr", func(n *html.Node) {
			text := textOf(n)
			if strings.Contains(text, " ms") || strings.Contains(text, " MiB") {
				if strings.Contains(text, "takes") || strings.Contains(text, "MiB") || strings.Contains(text, "Reset") {
					rows++
				}
				if strings.Contains(text, "Reset:") && !strings.Contains(text, "emulated") {
					t.Errorf("not marked: %q", text)
				}
			}
		})
		if rows == 0 {
			t.Error("no row has a number")
		}
	}
	for _, m := range r.Metrics() {
		if !m.Emulated {
			t.Errorf("%s is not marked", m.Name)
		}
	}
	if strings.Count(files["data/report.md"], "(emulated)") < 5 || strings.Contains(files["data/metrics.csv"], "false") {
		t.Error("the other forms do not say that it was emulated")
	}
}

func parse(t testing.TB, page string) *html.Node {
	t.Helper()
	tree, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func each(n *html.Node, name string, f func(*html.Node)) {
	if n.Type == html.ElementNode && (name == "" || n.Data == name) {
		f(n)
	}
	for c := n.FirstChild; c != nil; c = c.NextSibling {
		each(c, name, f)
	}
}

func textOf(n *html.Node) string {
	if n.Type == html.TextNode {
		return n.Data
	}
	text := ""
	for c := n.FirstChild; c != nil; c = c.NextSibling {
		text += textOf(c)
	}
	return text
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// hostile is what a guest may call things.
var hostile = []string{"<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "]]><b>", "\x1b[2J\x1b[31mred", "=cmd|' /C calc'!A0", "../../../etc/passwd", "a.html", "</title></svg><script>alert(2)</script>", "[x](javascript:alert(1))|\n# y", "{{.Run}}", "\u202eexe"}

// What comes from a guest is text, in every form.
func TestEscaping(t *testing.T) {
	o := recordtest.Run{Name: "run/" + hostile[0], Arm: hostile[1], Gate: "live", Verdict: engine.Fail, Evidence: map[string][]byte{},
		Settings: map[string]string{hostile[1]: hostile[0]}, Pictures: true}
	for _, h := range hostile {
		o.Findings = append(o.Findings, bench.Finding{Verdict: engine.Fail, Subject: h, Text: h, Want: h, Have: h, Hint: h})
		o.Evidence[h] = []byte("<script>alert(3)</script>" + h)
		o.Differences = append(o.Differences, bench.Difference{Name: h, Text: h})
		o.Facts = append(o.Facts, bench.Fact{Name: "f" + h, Known: true, Value: h, Source: h})
	}
	r := load(t, o)
	files := write(t, Input{Runs: []*Run{r}, None: []NoRecord{{Dir: hostile[0], Reason: hostile[1]}}, Program: hostile[0]})
	for name, text := range files {
		if strings.Contains(text, "\x1b") && !strings.Contains(name, "evidence/") {
			t.Errorf("%s has an escape that a terminal obeys", name)
		}
		if strings.Contains(name, "evidence/") && !strings.HasSuffix(name, ".txt") && !strings.HasSuffix(name, ".png") {
			t.Errorf("evidence %s is neither text nor a picture", name)
		}
		if !strings.HasSuffix(name, ".html") {
			continue
		}
		scripts := 0
		each(parse(t, text), "", func(n *html.Node) {
			switch n.Data {
			case "script":
				scripts++
				if textOf(n) != script {
					t.Errorf("%s has a script that is not ours: %.80q", name, textOf(n))
				}
			case "b":
				if n.Parent.Data != "li" {
					t.Errorf("%s: markup of the guest: %s", name, textOf(n.Parent))
				}
			}
			for _, a := range n.Attr {
				if strings.HasPrefix(a.Key, "on") || a.Key == "style" || strings.Contains(strings.ToLower(a.Val), "javascript:") && (a.Key == "href" || a.Key == "src") {
					t.Errorf("%s: %s has %s=%q", name, n.Data, a.Key, a.Val)
				}
			}
		})
		if scripts != 1 {
			t.Errorf("%s has %d scripts", name, scripts)
		}
	}
	rows, err := csv.NewReader(strings.NewReader(files["data/metrics.csv"])).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		for _, cell := range row {
			if _, err := strconv.ParseFloat(cell, 64); err != nil && cell != "" && strings.ContainsAny(cell[:1], "=+-@") {
				t.Errorf("a spreadsheet takes %q for a formula", cell)
			}
		}
	}
	for _, line := range strings.Split(files["data/report.md"], "\n") {
		if strings.Contains(line, "<script") || strings.HasPrefix(line, "# y") || strings.Contains(line, "[x](javascript") {
			t.Errorf("Markdown: %q", line)
		}
	}
	var j junitSuites
	if err := xml.Unmarshal([]byte(files["data/junit.xml"]), &j); err != nil {
		t.Error(err)
	}
}

// Every link and picture of every page is a file of the site, or a place on the
// page; nothing leads elsewhere.
func TestLinks(t *testing.T) {
	a, b := load(t, recordtest.Run{Rollouts: 2, Pictures: true, Controls: true, Evidence: map[string][]byte{"log": []byte("x")}}), load(t, recordtest.Run{Name: "run/two", Gate: "locks", Verdict: engine.Fail})
	files := write(t, Input{Runs: []*Run{a, b}, Comparisons: comparisons(a)})
	links := checkLinks(t, files)
	if links < 30 {
		t.Errorf("only %d links", links)
	}
}

func checkLinks(t *testing.T, files map[string]string) (links int) {
	t.Helper()
	for name, text := range files {
		if !strings.HasSuffix(name, ".html") {
			continue
		}
		tree := parse(t, text)
		ids := map[string]bool{}
		each(tree, "", func(n *html.Node) {
			if id := attr(n, "id"); id != "" {
				if ids[id] {
					t.Errorf("%s has the id %s twice", name, id)
				}
				ids[id] = true
			}
		})
		each(tree, "", func(n *html.Node) {
			for _, at := range []string{"href", "src"} {
				to := attr(n, at)
				if to == "" {
					continue
				}
				links++
				if fragment, here := strings.CutPrefix(to, "#"); here {
					if !ids[fragment] {
						t.Errorf("%s: nothing is at %s", name, to)
					}
					continue
				}
				path := filepath.Join(filepath.Dir(name), to)
				if _, there := files[path]; !there {
					t.Errorf("%s: %s is no file of the site", name, to)
				}
			}
		})
	}
	return links
}

// comparisons are one that was allowed and one that was refused, of a run with itself.
func comparisons(r *Run) []bench.Comparison {
	side := bench.ComparedSide{Arm: r.Record.Arm, Reset: r.Record.Reset, Slots: 1, Settings: map[string]string{"locks": "repair"}, Differences: []bench.Difference{{Name: "kernel", Text: "shared"}},
		Runs: []bench.ComparedRun{{Run: r.Record.Run, Verdict: r.Record.Verdict, Started: r.Record.Started, Events: r.Record.Digests["events"]}}}
	one, two := []float64{1e6, 2e6, 3e6, 4e6, 5e6, 6e6, 7e6}, []float64{2e6, 4e6, 6e6, 8e6, 10e6, 12e6, 14e6}
	allowed := bench.Comparison{ApiVersion: engine.APIVersion, Kind: "reset", Differ: []string{"reset"}, Verdict: "allowed", Refusals: []bench.Refusal{}, A: side, B: side, Method: "a test's",
		Facts:   []bench.ComparedFact{{Name: "workload", Title: "workload digest", Rule: "equal", Status: "same", A: bench.ComparedValue{Known: true, Value: "x"}, B: bench.ComparedValue{Known: true, Value: "x"}}},
		Metrics: []bench.ComparedMetric{{Name: "usable", Title: "reset: usable", Unit: "ns", A: stats.Summarize(one), B: stats.Summarize(two), Ratio: stats.Ratio(one, two)}}}
	refused := allowed
	refused.Verdict, refused.Refusals = "refused", []bench.Refusal{{Cause: "unknown", Subject: "guest-os", Text: "is unknown on side A", Learn: "run it again"}}
	return []bench.Comparison{allowed, refused}
}

// A comparison has its numbers; a refusal has reasons and none, not even if its file has some.
func TestComparisonPages(t *testing.T) {
	r := load(t, recordtest.Run{})
	files := write(t, Input{Runs: []*Run{r}, Comparisons: comparisons(r)})
	seen := 0
	for name, text := range files {
		if !strings.HasPrefix(name, "comparisons/") {
			continue
		}
		seen++
		refused := strings.Contains(text, "is unknown on side A")
		if numbers := strings.Contains(text, "8.00 ms") && strings.Contains(text, `class="plot"`); numbers == refused {
			t.Errorf("%s: refused %v, numbers %v", name, refused, numbers)
		}
	}
	if seen != 2 {
		t.Errorf("%d pages", seen)
	}
	for _, want := range []string{"p50 4.00 ms beside 8.00 ms, ratio 2", "guest-os: is unknown on side A"} {
		if !strings.Contains(files["index.html"], want) {
			t.Errorf("the index does not say %q", want)
		}
	}
}

// Charts have a mark for each thing that they show.
func TestMarks(t *testing.T) {
	r := load(t, recordtest.Run{Rollouts: 4, Controls: true, Warmups: 1})
	steps := 0
	for _, e := range r.Receipts {
		if e.Event == "step" {
			steps++
		}
	}
	bars := func(c Chart) (n, marks int) {
		for _, l := range c.Lanes {
			n += len(l.Bars)
			marks += len(l.Marks)
			for i, a := range l.Bars {
				if a.X < labelWidth-1 || a.X+a.Width > chartWidth || a.Y+a.Height > c.Height {
					t.Errorf("%s: bar %s is outside", c.ID, a.Title)
				}
				for _, b := range l.Bars[i+1:] {
					if a.Y == b.Y && a.X+a.Width > b.X+1.3 && b.X+b.Width > a.X+1.3 {
						t.Errorf("%s: bars %s and %s overlap", c.ID, a.Title, b.Title)
					}
				}
				if l.Quiet && strings.Contains(a.Title, ",") {
					t.Errorf("a control or warm-up has a number: %s", a.Title)
				}
			}
		}
		return n, marks
	}
	if n, _ := bars(r.Timeline()); n != steps {
		t.Errorf("the timeline has %d bars for %d steps", n, steps)
	}
	// restore, three gates, resume, readiness, gate, reseed of 7 rollouts; four clocks of the 4 that are measured.
	if n, marks := bars(r.Resets()); n != 8*7 || marks != 4*4 {
		t.Errorf("the resets have %d bars and %d marks", n, marks)
	}
	text := pageOf(t, write(t, Input{Runs: []*Run{r}}))
	if n := strings.Count(text, `<rect class="bar`); n != steps+8*7 {
		t.Errorf("the page has %d bars", n)
	}
	// Four series of four points each, and three of memory.
	if n := strings.Count(text, `class="f-s`); n < 4*4+3*4 {
		t.Errorf("the plots have %d points", n)
	}
	for class := range map[string]bool{"f-ink": true, "s-ink": true, "s-grid": true, "s-s1": true, "s-s4": true} {
		if !strings.Contains(text, class) {
			t.Errorf("no mark of class %s: a colour was not taken for its class", class)
		}
	}
	for _, left := range []string{`fill="#0`, `stroke="#0`, `style="`} {
		if strings.Contains(text, left) {
			t.Errorf("the page has %s", left)
		}
	}
}

// The diagram draws one rollout of each shape, every arrow downwards, no box over another.
func TestDiagram(t *testing.T) {
	r := load(t, recordtest.Run{Rollouts: 4, Controls: true, Gate: "locks", Verdict: engine.Fail})
	d := r.Diagram()
	// mount, dump, release; 13 steps of both controls and of a measured rollout.
	if len(d.Nodes) != 3+3*13 || len(d.Alike) != 1 || !strings.Contains(d.Alike[0], "Rollout 2 stands for 3, 4, 5") {
		t.Errorf("%d nodes, %v", len(d.Nodes), d.Alike)
	}
	bad := 0
	for i, a := range d.Nodes {
		if a.X < 0 || a.X+a.Width > d.Width || a.Y+a.Height > d.Height {
			t.Errorf("%s is outside", a.Title)
		}
		if a.Bad == "bad" {
			bad++
		}
		for _, b := range d.Nodes[i+1:] {
			if a.X < b.X+b.Width && b.X < a.X+a.Width && a.Y < b.Y+b.Height && b.Y < a.Y+a.Height {
				t.Errorf("%s and %s overlap", a.Title, b.Title)
			}
		}
	}
	if bad == 0 {
		t.Error("what failed is not marked")
	}
	for _, e := range d.Edges {
		var x1, y1, c1, c2, c3, c4, x2, y2 float64
		if _, err := fmt.Sscanf(e.Path, "M%f %fC%f %f %f %f %f %f", &x1, &y1, &c1, &c2, &c3, &c4, &x2, &y2); err != nil || y2 <= y1 {
			t.Errorf("%s: %v", e.Path, err)
		}
	}
}

func TestWriteRefusesAFullFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, Input{}); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("%v", err)
	}
}

// A state is computed from the verdict and from whether the directory is sound.
func TestStates(t *testing.T) {
	for _, c := range []struct {
		verdict bench.RunVerdict
		sound   bool
		want    State
	}{
		{engine.RunPassed, true, Preliminary}, {engine.RunReview, true, Preliminary}, {engine.RunFailed, true, Failed}, {engine.RunBlocked, true, Failed},
		{engine.RunPassed, false, Failed}, {"", true, Failed}, {"nobody defined it", true, Failed},
	} {
		if got := StateOf(c.verdict, c.sound); got != c.want {
			t.Errorf("%q sound %v: %s, want %s", c.verdict, c.sound, got, c.want)
		}
	}
}

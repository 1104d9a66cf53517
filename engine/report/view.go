package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/density"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// statistics says how the numbers of a record were made.
const statistics = "p50 with the distribution-free interval of its order statistics, p95 by Hyndman and Fan's eighth definition, shares with the interval of Clopper and Pearson; every interval holds at 95% or more. Clocks, parts and memory are of valid rollouts that are neither controls nor warm-ups. Where a sample is too small for a number, it says how many values it takes."

// pair is a name with a text.
type pair struct{ Name, Text string }

// link is a file of the run that is copied into the site.
type link struct{ Text, Index, Run string }

// row is a metric as a table shows it: each number as people read it, and as it sorts.
type row struct {
	Metric
	P50, P95, Min, Max, Interval     string
	P50Raw, P95Raw, MinRaw, MaxRaw   string
	N                                string
	Ratio, RatioInterval, SecondUnit string
}

func raw(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(*v, 'g', -1, 64)
}

func rawOf(e *bench.Estimate) string {
	if e == nil {
		return ""
	}
	return raw(e.Value)
}

func rowOf(m Metric) row {
	out := row{Metric: m, N: fmt.Sprint(m.Summary.N), P50Raw: rawOf(m.Summary.P50), P95Raw: rawOf(m.Summary.P95), MinRaw: raw(m.Summary.Min), MaxRaw: raw(m.Summary.Max)}
	out.P50, out.Interval = estimate(m.Summary.P50, m.Unit)
	out.P95, _ = estimate(m.Summary.P95, m.Unit)
	if e := m.Summary.P95; e != nil && e.Value == nil && e.Few != nil {
		out.P95 = fmt.Sprintf("– (takes %d)", e.Few.Need)
	}
	for _, v := range []struct {
		from *float64
		to   *string
	}{{m.Summary.Min, &out.Min}, {m.Summary.Max, &out.Max}} {
		*v.to = "–"
		if v.from != nil {
			*v.to = amount(*v.from, m.Unit)
		}
	}
	if m.Unit != "share" && m.Of != m.Summary.N && !strings.HasPrefix(m.Name, "dump") {
		out.N += fmt.Sprintf(" of %d", m.Of)
	}
	return out
}

// file is evidence in the site; Path is empty where its bytes are not what was written.
type file struct {
	Name, Path string
	// Width and Height of a picture, 0 of anything else.
	Width, Height int
}

// judged is a step with what it found.
type judged struct {
	Name, Step, Kind, Rollout string
	Verdict                   bench.Verdict
	Findings                  []bench.Finding
	Error                     *bench.Failure
	Evidence                  []file
}

// Why is the first finding that is no pass, or the error.
func (j judged) Why() string {
	for _, f := range j.Findings {
		if f.Verdict != engine.Pass {
			return f.Subject + ": " + f.Text
		}
	}
	if j.Error != nil {
		return j.Error.Text
	}
	return ""
}

// cell is a number of a rollout.
type cell struct{ Text, Raw string }

type rolloutRow struct {
	Index         int64
	Slot          string
	Class         bench.RolloutClass
	Before, After string
	Cells         []cell
	Note          string
	Quiet         bool
}

// shot is a picture with the rollouts that it is of.
type shot struct {
	file
	Caption string
}

type ledgerRow struct {
	Kind                        string
	Intended, Bound, Gone, Left int
}

// view is a run as the templates see it.
type view struct {
	Page         page
	Run          *Run
	Record       bench.Record
	Plan         bench.Plan
	Name, Slug   string
	Path         string // of its page, from the index
	Date         string
	State        State
	Failure      string
	Standing     *standing
	Emulated     bool
	Hardware     string
	Workload     string
	Method       string
	Sample       string
	Statistics   string
	Sources      []link
	Caveats      []string
	Metrics      []row
	Headline     []row
	GateList     []judged
	Missed       []judged
	Stopped      []judged
	Gates        int
	Passed       int
	Rollouts     []rolloutRow
	Shots        []shot
	Timeline     Chart
	Resets       Chart
	Clocks       figure
	Memory       figure
	Diagram      Diagram
	PlanDigest   string
	Receipts     []Receipt
	LedgerList   []ledgerRow
	Reviews      []bench.Review
	Pairs        []pair
	Sections     []Section
	evidenceByID map[string]file
}

// fact of the run's host by name.
func (r *Run) fact(name string) (string, bool) {
	for _, f := range r.Record.Facts {
		if f.Name == name && f.Known {
			return f.Value, true
		}
	}
	return "", false
}

// hardware is the host on a line, what is unknown named as such.
func (r *Run) hardware() string {
	var parts []string
	say := func(name, format string, scale float64) {
		v, known := r.fact(name)
		if !known {
			parts = append(parts, name+" unknown")
			return
		}
		if n, err := strconv.ParseFloat(v, 64); err == nil && scale > 0 {
			v = strconv.FormatFloat(n/scale, 'f', 1, 64)
		}
		parts = append(parts, fmt.Sprintf(format, v))
	}
	say("cpu-model", "%s", 0)
	say("cpus", "%s CPUs", 0)
	say("memory-bytes", "%s GiB memory", 1<<30)
	say("swap-bytes", "%s GiB swap", 1<<30)
	say("machine", "%s", 0)
	say("kernel-release", "kernel %s", 0)
	say("os-release", "%s", 0)
	say("transparent-hugepages", "huge pages %s", 0)
	say("ksm", "KSM %s", 0)
	say("cgroup-mode", "cgroups %s", 0)
	say("load-average", "load before %s", 0)
	if v, known := r.fact("accelerator"); known {
		parts = append(parts, "accelerator "+v)
	}
	return strings.Join(parts, ", ")
}

func (r *Run) workload() string {
	m := r.Manifest
	var who string
	switch p := m.Policy; {
	case p == nil || p.Oracle != nil:
		who = "the task's oracle acts"
	case p.None != nil:
		who = "nobody acts"
	case p.Host != nil:
		who = "a program on the host acts: " + strings.Join(p.Host.Exec, " ")
	}
	text := "task " + string(m.Task.Id)
	if m.Task.Instruction != "" {
		text += ": " + strings.TrimRight(m.Task.Instruction, ".")
	}
	return fmt.Sprintf("%s; %s; image %s %.12s; %d vCPU, %s memory, %s swap, %d pids; digest %.12s", text, who, m.Image.File, m.Image.Sha256,
		m.Resources.Vcpus, m.Resources.Memory, m.Resources.Swap, m.Resources.Pids, r.Record.Digests["workload"])
}

func (r *Run) method() string {
	e := r.Manifest.Experiment
	how := map[string]string{"restore": "each rollout restores one checkpoint", "cold": "each rollout starts cold"}[r.Record.Reset]
	text := fmt.Sprintf("%s; %d rollouts after %d warm-ups, %d at a time, seed %d", how, e.Rollouts, e.Warmup, e.Slots, e.Seed)
	if e.Blocks > 1 {
		block, _ := r.fact("experiment.block")
		text += fmt.Sprintf("; block %s of %d, order %s", block, e.Blocks, e.Order)
	}
	for _, k := range slices.Sorted(maps.Keys(r.Record.Settings)) {
		text += fmt.Sprintf("; %s %s", k, r.Record.Settings[k])
	}
	return text
}

func (r *Run) sample() string {
	measured := Measured(r.Record)
	controls, warm := 0, 0
	for _, o := range r.Record.Rollouts {
		if o.Control != "" {
			controls++
		} else if o.Warmup {
			warm++
		}
	}
	if !r.Counts() {
		return fmt.Sprintf("none: the run yields no number (%d rollouts, %d controls and %d warm-ups planned)", len(measured), controls, warm)
	}
	return fmt.Sprintf("%d measured rollouts, %d of them valid; %d controls and %d warm-ups beside them give no number", len(measured), len(valid(measured)), controls, warm)
}

// caveats are what has to be known beside the numbers, each of it from the record.
func (r *Run) caveats() (list []string) {
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	for _, n := range density.Noise(r.Record) {
		when, why, _ := strings.Cut(strings.TrimPrefix(n, r.Record.Run+": "), ": ")
		if why == density.NotProbed {
			add("Whether the host was quiet %s the run is not known: it was not probed.", when)
		} else {
			add("The host was not quiet %s the run: %s.", when, why)
		}
	}
	if r.Emulated() {
		add("The processor was emulated: its times say nothing about hardware.")
	}
	for _, d := range r.Record.Differences {
		add("%s: %s", d.Name, d.Text)
	}
	if r.Record.Registration == "" && r.State() == Preliminary {
		add("No registration names this run, so its bars were not fixed before it.")
	}
	if e := r.Experiment; e != nil {
		for _, why := range e.Reasons {
			add("Its experiment is %s: %s.", e.State, strings.TrimSuffix(why, "."))
		}
	}
	if n := len(valid(Measured(r.Record))); r.Counts() && n < 20 {
		add("%d valid rollouts: a 95th percentile takes 20.", n)
	}
	controls := map[string]bool{}
	for _, o := range r.Record.Rollouts {
		controls[o.Control] = true
	}
	if r.Counts() && (!controls["none"] || !controls["oracle"]) {
		add("No control rollout shows that this task's score is 0 when nobody acts and 1 when the oracle does.")
	}
	for _, k := range slices.Sorted(maps.Keys(r.Record.Tags)) {
		add("Set on the command line: %s=%s.", k, r.Record.Tags[k])
	}
	var unknown []string
	for _, f := range r.Record.Facts {
		switch {
		case strings.HasPrefix(f.Name, "repinned.") && f.Value != "no":
			add("%s: %s", f.Name, cmp.Or(f.Value, f.Reason))
		case !f.Known:
			unknown = append(unknown, f.Name)
		}
	}
	if len(unknown) > 0 {
		add("Unknown on this host: %s.", strings.Join(unknown, ", "))
	}
	if owned := r.owned(); owned > 0 {
		add("The ledger says that the run still owns %d things on the host.", owned)
	}
	add("Made by drumsbench %s, sha256 %.12s, %s.", r.Record.Engine.Version, r.Record.Engine.Sha256, r.Record.Engine.Go)
	for _, p := range r.Problems {
		add("The directory is not sound: %s", p.Error())
	}
	return list
}

// failure says why no number comes from the run; empty if some do.
func (r *Run) failure() string {
	switch {
	case r.Counts():
		return ""
	case !r.Sound():
		return fmt.Sprintf("The run's directory is not sound: %s", r.Problems[0].Error())
	case r.Record.Verdict == engine.RunReview:
		return "It waits for a person: " + r.Record.Reason
	case r.Record.Reason != "":
		return r.Record.Reason
	}
	return "The run's verdict is " + string(r.Record.Verdict) + "."
}

func (r *Run) ledger() (rows []ledgerRow) {
	by := map[string]*ledgerRow{}
	var order []string
	for _, l := range r.Ledger {
		row := by[l.Kind]
		if row == nil {
			row = &ledgerRow{Kind: l.Kind}
			by[l.Kind], order = row, append(order, l.Kind)
		}
		switch l.Op {
		case "intent":
			row.Intended++
		case "bind":
			row.Bound++
		case "gone":
			row.Gone++
		}
	}
	slices.Sort(order)
	for _, k := range order {
		by[k].Left = by[k].Intended - by[k].Gone
		rows = append(rows, *by[k])
	}
	return rows
}

func (r *Run) owned() (n int) {
	for _, l := range r.ledger() {
		n += l.Left
	}
	return n
}

func score(v *float64) string {
	if v == nil {
		return "–"
	}
	return strconv.FormatFloat(*v, 'g', -1, 64)
}

func (r *Run) rollouts() (list []rolloutRow) {
	for _, o := range r.Record.Rollouts {
		row := rolloutRow{Index: o.Index, Slot: o.Slot, Class: o.Class, Before: score(o.Before), After: score(o.After), Note: o.Reason}
		what := ""
		switch {
		case o.Control == "oracle":
			what = "control: the oracle acts"
		case o.Control == "none":
			what = "control: nobody acts"
		case o.Control != "":
			what = "control: " + o.Control
		case o.Warmup:
			what = "warm-up"
		}
		if what != "" {
			row.Quiet = true
			row.Note = strings.TrimSuffix(what+"; "+o.Reason, "; ")
		}
		number := func(v bench.Int64, unit string) {
			c := cell{Text: "–"}
			if n := appendNumber(nil, v); n != nil && !row.Quiet && r.Counts() {
				c = cell{Text: amount(n[0], unit), Raw: string(v)}
			}
			row.Cells = append(row.Cells, c)
		}
		clocks, memory := o.Clocks, o.Memory
		if clocks == nil {
			clocks = &bench.Clocks{}
		}
		if memory == nil {
			memory = &bench.Memory{}
		}
		for _, k := range clockList {
			number(k.of(clocks), "ns")
		}
		number(memory.PrivateDirty, "bytes")
		list = append(list, row)
	}
	return list
}

// steps lists gates and, of the others, those that did not pass.
func (v *view) steps() {
	plan := map[string]bench.Step{}
	for _, s := range v.Run.Plan.Steps {
		plan[s.Id] = s
	}
	evidence := map[string][]bench.Evidence{}
	for _, e := range v.Run.Receipts {
		if e.Event == "step" {
			evidence[e.Step] = e.Evidence
		}
	}
	for _, o := range v.Record.Steps {
		s := plan[o.Step]
		j := judged{Name: o.Kind, Step: o.Step, Kind: o.Kind, Verdict: o.Verdict, Findings: o.Findings, Error: o.Error}
		if s.Rollout != nil {
			j.Rollout = strconv.FormatInt(*s.Rollout, 10)
		}
		for _, e := range evidence[o.Step] {
			f := v.evidenceByID[evidenceID(e)]
			f.Name = e.Name
			if f.Path == "" {
				f.Name += " " + short(string(e.Sha256), 13)
			}
			j.Evidence = append(j.Evidence, f)
		}
		if o.Kind != "gate" {
			if o.Verdict != engine.Pass && o.Verdict != engine.NotRun {
				v.Stopped = append(v.Stopped, j)
				v.Missed = append(v.Missed, j)
			}
			continue
		}
		var p bench.GateParams
		if json.Unmarshal([]byte(s.Params), &p) == nil && p.Gate != "" {
			j.Name = p.Gate
		}
		v.Gates++
		switch {
		case o.Verdict == engine.Pass:
			v.Passed++
		case o.Verdict == engine.NotRun, o.Verdict == engine.NotApplicable && s.Optional:
		default:
			v.Missed = append(v.Missed, j)
		}
		v.GateList = append(v.GateList, j)
	}
	// What decides stands first.
	slices.SortStableFunc(v.GateList, func(a, b judged) int { return rankOf(a.Verdict) - rankOf(b.Verdict) })
}

func rankOf(v bench.Verdict) int {
	return slices.Index([]bench.Verdict{engine.Fail, engine.VerdictUnknown, engine.Review, engine.NotApplicable, engine.NotRun, engine.Pass}, v)
}

func evidenceID(e bench.Evidence) string { return string(e.Sha256) + " " + e.Name }

// shots are the pictures of the rollouts, those that are equal once.
func (v *view) shots() {
	plan := map[string]bench.Step{}
	for _, s := range v.Run.Plan.Steps {
		plan[s.Id] = s
	}
	type group struct {
		shot
		name     string
		rollouts []string
	}
	const base = "base"
	var list []*group
	by := map[string]*group{}
	for _, e := range v.Run.Receipts {
		s, planned := plan[e.Step]
		if e.Event != "step" || !planned {
			continue
		}
		for _, ev := range e.Evidence {
			f := v.evidenceByID[evidenceID(ev)]
			if f.Width == 0 {
				continue
			}
			name := strings.TrimSuffix(ev.Name, ".png")
			switch name {
			case "screen-before":
				name = "before the act"
			case "screen-after":
				name = "after the act"
			case "screen":
				name = "when it was ready"
			}
			k := f.Path + " " + name
			g := by[k]
			if g == nil {
				g = &group{shot: shot{file: f}, name: name}
				by[k], list = g, append(list, g)
			}
			where := base
			if s.Rollout != nil {
				where = strconv.FormatInt(*s.Rollout, 10)
				if note := noteOf(s); note != "" {
					where += " (" + note + ")"
				}
			}
			if !slices.Contains(g.rollouts, where) {
				g.rollouts = append(g.rollouts, where)
			}
		}
	}
	for _, g := range list {
		g.Caption = g.name
		if g.rollouts[0] == base {
			g.Caption += ", before the rollouts"
			g.rollouts = g.rollouts[1:]
			if len(g.rollouts) > 0 {
				g.Caption += " and in"
			}
		} else {
			g.Caption += ","
		}
		switch len(g.rollouts) {
		case 0:
		case 1:
			g.Caption += " rollout " + g.rollouts[0]
		default:
			g.Caption += " rollouts " + strings.Join(g.rollouts, ", ")
		}
		v.Shots = append(v.Shots, g.shot)
	}
}

// pairs are the run's own words: settings, tags, digests.
func (r *Run) pairs() (list []pair) {
	for _, k := range slices.Sorted(maps.Keys(r.Record.Settings)) {
		list = append(list, pair{"setting " + k, r.Record.Settings[k]})
	}
	for _, k := range slices.Sorted(maps.Keys(r.Record.Tags)) {
		list = append(list, pair{"tag " + k, r.Record.Tags[k]})
	}
	for _, k := range slices.Sorted(maps.Keys(r.Record.Digests)) {
		list = append(list, pair{"digest " + k, string(r.Record.Digests[k])})
	}
	if r.Record.Checkpoint != "" {
		list = append(list, pair{"checkpoint", string(r.Record.Checkpoint)})
	}
	e := r.Record.Engine
	return append(list, pair{"engine", fmt.Sprintf("%s, sha256 %s, %s, schema %s", e.Version, e.Sha256, e.Go, e.Schema)})
}

// headline are the numbers that come first.
func headline(rows []row) (list []row) {
	for _, name := range []string{"mechanism", "ready", "usable", "private-dirty"} {
		for _, m := range rows {
			if m.Name == name {
				list = append(list, m)
			}
		}
	}
	return list
}

// figure is a plot with its key.
type figure struct {
	SVG  template.HTML
	Keys []seriesKey
}

// seriesKey says how a series is drawn: its class, and its dashes or its shape.
type seriesKey struct{ Class, Dash, Shape, Name string }

func keys(list []series, lines bool) (out []seriesKey) {
	for i, s := range list {
		k := seriesKey{Class: fmt.Sprintf("s%d", i%4+1), Name: fmt.Sprintf("%s (n %d)", s.name, len(s.values))}
		if lines {
			var parts []string
			for _, d := range dashes[i%4] {
				parts = append(parts, strconv.FormatFloat(d.Points(), 'g', -1, 64))
			}
			k.Dash = strings.Join(parts, " ")
		} else {
			k.Shape = []string{"circle", "square", "pyramid"}[i%3]
		}
		out = append(out, k)
	}
	return out
}

// plots of the run's clocks and of its memory.
func (v *view) plots(metrics []Metric) (err error) {
	var clocks, memory []series
	of := func(m Metric) series {
		s := series{name: m.Title[strings.Index(m.Title, ": ")+2:]}
		for _, x := range m.Sample {
			n := x / 1e6 // a plot is in ms throughout, however long it is
			if m.Unit == "bytes" {
				n, _ = scaled(x, m.Unit)
			}
			s.values = append(s.values, n)
		}
		return s
	}
	for _, m := range metrics {
		switch {
		case slices.ContainsFunc(clockList, func(c clock) bool { return c.name == m.Name }):
			clocks = append(clocks, of(m))
		case m.Unit == "bytes" && m.Name != "stored": // that is disk
			memory = append(memory, of(m))
		}
	}
	emulated := ""
	if v.Emulated {
		emulated = ", emulated"
	}
	if len(clocks) > 0 {
		v.Clocks.Keys = keys(clocks, true)
		v.Clocks.SVG, err = distribution("clocks", "Latency distributions", "Empirical distribution of each clock of the reset, in ms.", "ms from the start of the reset"+emulated, clocks)
	}
	if err == nil && len(memory) > 0 {
		v.Memory.Keys = keys(memory, false)
		v.Memory.SVG, err = byRollout("memory", "Memory of the slots", "Memory of a slot in MiB for each measured rollout.", "MiB"+emulated, memory)
	}
	return err
}

// see makes a run's view; its evidence is in the site already.
func see(r *Run, p page, slug string, evidence map[string]file) (*view, error) {
	v := &view{
		Page: p, Run: r, Record: r.Record, Plan: r.Plan, Name: r.Record.Run, Slug: slug, Path: "runs/" + slug + "/index.html",
		Date: strings.Replace(string(r.Record.Started), "T", " ", 1)[:min(19, len(r.Record.Started))] + " UTC", State: r.State(), Standing: r.standing(), Failure: r.failure(), Emulated: r.Emulated(),
		Hardware: r.hardware(), Workload: r.workload(), Method: r.method(), Sample: r.sample(), Statistics: statistics,
		Caveats: r.caveats(), Rollouts: r.rollouts(), Timeline: r.Timeline(), Resets: r.Resets(), Diagram: r.Diagram(),
		PlanDigest: string(r.Record.Digests["plan"]), Receipts: r.Receipts, LedgerList: r.ledger(), Reviews: r.Reviews, Pairs: r.pairs(), evidenceByID: evidence,
	}
	for _, name := range append(slices.Clone(sourceFiles), record.ReviewsFile) {
		if _, err := os.Lstat(filepath.Join(r.Dir, name)); err == nil {
			v.Sources = append(v.Sources, link{name, "runs/" + slug + "/" + name, name})
		}
	}
	metrics := r.Metrics()
	for _, m := range metrics {
		v.Metrics = append(v.Metrics, rowOf(m))
	}
	v.Headline = headline(v.Metrics)
	v.steps()
	v.shots()
	var err error
	if v.Sections, err = gather(r, runSections); err != nil {
		return nil, err
	}
	return v, v.plots(metrics)
}

// sourceFiles of a run, copied into the site.
var sourceFiles = []string{record.RecordFile, record.EventsFile, record.LedgerFile, record.ManifestFile, record.PlanFile, record.HostFile, record.RegistrationFile}

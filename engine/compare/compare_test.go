package compare

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// sides of each kind of comparison.
func sides(t testing.TB, kind bench.ComparisonKind) (a, b Run) {
	t.Helper()
	a = sample(t, "drums", "restore", 100)
	switch kind {
	case Repeat:
		b = another(a)
	case Arm:
		b = sample(t, "oci", "restore", 200)
	case Reset:
		b = sample(t, "drums", "cold", 200)
	case Setting:
		b = sample(t, "drums", "restore", 200)
		b.Record.Settings = map[string]string{"of": "something else"}
	case Slots:
		b = sample(t, "drums", "restore", 200)
		b.Manifest.Experiment.Slots = 4
		plan, err := compiler(b.Manifest, "restore")
		if err != nil {
			t.Fatal(err)
		}
		b.Record.Digests["plan"] = plan
	}
	if kind == Arm { // the same plan on every arm
		b.Record.Digests["plan"] = a.Record.Digests["plan"]
	}
	return a, b
}

var allKinds = []bench.ComparisonKind{Repeat, Arm, Reset, Setting, Slots}

func factTable(t testing.TB) []bench.SamenessFact {
	t.Helper()
	s, err := Sameness()
	if err != nil {
		t.Fatal(err)
	}
	return s.Facts
}

// The table itself: each fact once, from one place, and all that the comparison is promised to look at.
func TestSamenessTable(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range factTable(t) {
		if seen[string(f.Name)] || f.Title == "" || f.Learn == "" {
			t.Errorf("%+v", f)
		}
		seen[string(f.Name)] = true
		n := 0
		for _, set := range []bool{f.From.Digest != "", f.From.Record != "", f.From.Manifest != "", f.From.Host != "", f.From.Step != nil, f.From.Rollouts != ""} {
			if set {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s: from %d places", f.Name, n)
		}
		for _, k := range allKinds {
			if ruleOf(f, k) == "" {
				t.Errorf("%s: no rule for %s", f.Name, k)
			}
		}
	}
	for _, name := range []string{
		"image", "task", "act", "checker", "guest-server", "vcpus", "memory", "swap", "pids", "workload", "plan", "reset", "display", "guest-os",
		"guest-packages", "seed", "host", "host-machine", "host-kernel", "cpu-model", "cgroup-mode", "transparent-hugepages", "ksm", "host-swap",
		"clock-source", "accelerator", "criu", "runc", "engine", "schema", "page-cache", "rollouts", "rollout-order",
	} {
		if !seen[name] {
			t.Errorf("no fact %s", name)
		}
	}
}

func TestAllowed(t *testing.T) {
	for _, kind := range allKinds {
		a, b := sides(t, kind)
		c := compareTwo(t, a, b)
		if c.Kind != kind || c.Verdict != Allowed || len(c.Refusals) != 0 || len(c.Metrics) == 0 {
			t.Errorf("%s: %s %s %+v", kind, c.Kind, c.Verdict, c.Refusals)
			continue
		}
		for _, m := range c.Metrics {
			if m.Name == "mechanism" && (m.A.N != 8 || *m.A.Min != 103e6 || *m.A.Max != 110e6 || *m.A.P50.Value != 106.5e6 || m.A.P50.Interval == nil || m.A.P95.Few == nil) {
				t.Errorf("%s: %+v counts warm-ups or controls, or not all else", kind, m.A)
			}
			if m.Name == "score" && (m.A.N != 8 || *m.A.P50.Value != 1) {
				t.Errorf("%s: %+v", kind, m.A)
			}
			if m.Name == "span.drums" && kind == Arm && (m.B.N != 0 || m.Ratio.Few == nil) {
				t.Errorf("a part that only one arm has: %+v", m)
			}
		}
		text := Text(bench.Comparisons{Comparisons: []bench.Comparison{c}}, false)
		for _, want := range []string{"METRIC", "mechanism", "declared differences", "both: both: of both", "A, drums", "106.5"} {
			if kind != Arm && want == "A, drums" {
				continue
			}
			if !strings.Contains(text, want) {
				t.Errorf("%s: the text lacks %q:\n%s", kind, want, text)
			}
		}
	}
}

func TestItself(t *testing.T) {
	a := sample(t, "drums", "restore", 100)
	for name, runs := range map[string][]Run{"alone": {a}, "twice": {a, a}} {
		result, err := Compare(runs, options)
		if err != nil || len(result.Comparisons) != 1 {
			t.Fatal(err)
		}
		c := result.Comparisons[0]
		if c.Kind != Repeat || c.Verdict != Allowed {
			t.Errorf("%s: %s %+v", name, c.Kind, c.Refusals)
		}
		for _, f := range c.Facts {
			if f.Status != "same" {
				t.Errorf("%s: %s is %s", name, f.Name, f.Status)
			}
		}
		for _, m := range c.Metrics {
			if m.Ratio.Value != nil && *m.Ratio.Value != 1 {
				t.Errorf("%s: %s is %v times itself", name, m.Name, *m.Ratio.Value)
			}
		}
	}
}

// hide takes a fact out of the files of a run: of one step only, if steps have it.
func hide(t testing.TB, dir string, f bench.SamenessFact) {
	t.Helper()
	edit := func(name string, change func(map[string]any)) {
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for line := range strings.Lines(string(data)) {
			v := map[string]any{}
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Fatal(err)
			}
			change(v)
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, string(b))
		}
		if err := os.WriteFile(path, []byte(strings.Join(out, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	field := func(path string) func(map[string]any) {
		names := strings.Split(path, ".")
		return func(v map[string]any) {
			for _, n := range names[:len(names)-1] {
				v = v[n].(map[string]any)
			}
			delete(v, names[len(names)-1])
		}
	}
	without := func(v map[string]any, name string) {
		facts, _ := v["facts"].([]any)
		v["facts"] = slices.DeleteFunc(facts, func(x any) bool { return x.(map[string]any)["name"] == name })
	}
	switch from := f.From; {
	case from.Digest != "":
		edit(record.RecordFile, field("digests."+from.Digest))
	case from.Record != "":
		edit(record.RecordFile, field(from.Record))
	case from.Manifest != "":
		edit(record.ManifestFile, field(from.Manifest))
	case from.Host != "":
		edit(record.RecordFile, func(v map[string]any) { without(v, from.Host) })
	case from.Step != nil:
		done := false
		edit(record.EventsFile, func(v map[string]any) {
			if done || v["kind"] != from.Step.Kind || from.Step.Gate != "" && !strings.Contains(v["step"].(string), from.Step.Gate) {
				return
			}
			if facts, ok := v["facts"].([]any); ok && len(facts) > 0 {
				done = true
				without(v, from.Step.Fact)
			}
		})
		if !done {
			t.Fatalf("%s: no step has it", f.Name)
		}
	case from.Rollouts == "controls":
		edit(record.RecordFile, func(v map[string]any) { v["rollouts"] = v["rollouts"].([]any)[1:] })
	case from.Rollouts == "order":
		edit(record.RecordFile, func(v map[string]any) { v["rollouts"] = []any{} })
	}
}

// With any one fact hidden, whichever it is and in whichever kind of comparison,
// there is a refusal that names it, and no number. A fact that the schema wants
// is an error already when the run is read.
func TestHidingAnyFactRefuses(t *testing.T) {
	_, whole := sides(t, Arm)
	if _, err := Load(write(t, whole)); err != nil {
		t.Fatalf("the run as it is: %v", err)
	}
	for _, f := range factTable(t) {
		for _, kind := range []bench.ComparisonKind{Arm, Reset} {
			a, b := sides(t, kind)
			if len(f.Arms) > 0 && !slices.Contains(f.Arms, b.Record.Arm) {
				b.Record.Arm = f.Arms[0]
			}
			dir := write(t, b)
			hide(t, dir, f)
			hidden, err := Load(dir)
			if f.Name == "act" { // the oracle acts where the manifest names nobody
				continue
			}
			if err != nil {
				// Not what the schema says, or not all of it: refused before it is compared.
				if last := f.From.Record + f.From.Manifest; last == "" || !strings.Contains(err.Error(), last[strings.LastIndex(last, ".")+1:]) {
					t.Errorf("%s: %v", f.Name, err)
				}
				continue
			}
			result, err := Compare([]Run{a, hidden}, options)
			if err != nil {
				t.Fatal(err)
			}
			c := result.Comparisons[0]
			i := slices.IndexFunc(c.Refusals, func(r bench.Refusal) bool { return r.Subject == string(f.Name) && r.Cause == "unknown" })
			if c.Verdict != Refused || i < 0 || c.Metrics != nil {
				t.Errorf("%s hidden, kind %s: %s %+v", f.Name, kind, c.Verdict, c.Refusals)
				continue
			}
			if c.Refusals[i].Learn != f.Learn {
				t.Errorf("%s: does not say how to learn it: %+v", f.Name, c.Refusals[i])
			}
			text := Text(result, true)
			for _, want := range []string{"refused, no number is printed", f.Title + " is unknown: B: ", "hint: "} {
				if !strings.Contains(text, want) {
					t.Errorf("%s: the refusal lacks %q:\n%s", f.Name, want, text)
				}
			}
			if strings.Contains(text, "METRIC") || strings.Contains(Markdown(result), "## Numbers") {
				t.Errorf("%s: numbers in a refusal:\n%s", f.Name, text)
			}
		}
	}
}

// change makes a fact another one in a run, in all of its places.
func change(r *Run, f bench.SamenessFact) {
	switch from := f.From; {
	case from.Digest != "":
		r.Record.Digests[from.Digest] = digestOf("another")
	case from.Host != "":
		for i := range r.Record.Facts {
			if r.Record.Facts[i].Name == from.Host {
				r.Record.Facts[i].Value = "another"
			}
		}
	case from.Step != nil:
		for _, receipt := range r.Steps {
			for i := range receipt.Facts {
				if receipt.Kind == from.Step.Kind && receipt.Facts[i].Name == from.Step.Fact {
					if m := from.Step.Member; m != "" {
						v := map[string]any{}
						_ = json.Unmarshal([]byte(receipt.Facts[i].Value), &v)
						v[m] = 12345
						data, _ := json.Marshal(v)
						receipt.Facts[i].Value = string(data)
						continue
					}
					receipt.Facts[i].Value = "another"
				}
			}
		}
	case from.Rollouts == "order":
		r.Record.Rollouts = r.Record.Rollouts[:len(r.Record.Rollouts)-1]
	}
}

// Each fact that must be the same refuses when it differs; one that may differ is
// printed under the result.
func TestEachRule(t *testing.T) {
	tried := 0
	for _, f := range factTable(t) {
		for _, kind := range allKinds {
			a, b := sides(t, kind)
			before, _ := json.Marshal([]any{b.Record, b.Steps})
			change(&b, f)
			if after, _ := json.Marshal([]any{b.Record, b.Steps}); string(after) == string(before) {
				continue // of the record or manifest: below
			}
			tried++
			c := compareTwo(t, a, b)
			refused := slices.ContainsFunc(c.Refusals, func(r bench.Refusal) bool { return r.Subject == string(f.Name) })
			used := len(f.Arms) == 0 || slices.Contains(f.Arms, a.Record.Arm) && slices.Contains(f.Arms, b.Record.Arm)
			want := used && ruleOf(f, kind) != "declared"
			if refused != want {
				t.Errorf("%s differs, kind %s, rule %s: refused %v, want %v: %+v", f.Name, kind, ruleOf(f, kind), refused, want, c.Refusals)
			}
			text := Text(bench.Comparisons{Comparisons: []bench.Comparison{c}}, true)
			if used && !refused && !strings.Contains(text, "  "+f.Title+": A ") {
				t.Errorf("%s: the declared difference is not printed:\n%s", f.Name, text)
			}
		}
	}
	if tried < 100 {
		t.Errorf("only %d were tried", tried)
	}
}

func TestFieldsThatDiffer(t *testing.T) {
	for name, edit := range map[string]func(*Run){
		"seed":    func(r *Run) { r.Manifest.Experiment.Seed++ },
		"task":    func(r *Run) { r.Manifest.Task.Id = "other" },
		"act":     func(r *Run) { r.Manifest.Policy = &bench.Policy{None: &bench.NonePolicy{}} },
		"checker": func(r *Run) { r.Manifest.Checker.Exec = []string{"/bin/false"} },
		"warmup":  func(r *Run) { r.Manifest.Experiment.Warmup++ },
		"blocks":  func(r *Run) { r.Manifest.Experiment.Blocks++ },
		"engine":  func(r *Run) { r.Record.Engine.Sha256 = noDigest },
	} {
		a, b := sides(t, Arm)
		edit(&b)
		c := compareTwo(t, a, b)
		if !slices.ContainsFunc(c.Refusals, func(r bench.Refusal) bool { return r.Subject == name && r.Cause == "different" }) {
			t.Errorf("%s: %s %+v", name, c.Verdict, c.Refusals)
		}
	}
	// Without a policy the oracle acts: saying so changes nothing.
	a, b := sides(t, Arm)
	b.Manifest.Policy = &bench.Policy{Oracle: &bench.OraclePolicy{}}
	if c := compareTwo(t, a, b); c.Verdict != Allowed {
		t.Errorf("%+v", c.Refusals)
	}
}

func TestUnknownEqualsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.Custom(func(t *rapid.T) bench.ComparedValue {
			return bench.ComparedValue{Known: rapid.Bool().Draw(t, "known"), Value: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "value"), Reason: "r"}
		})
		a, b := value.Draw(t, "a"), value.Draw(t, "b")
		s := status(a, b)
		if s != status(b, a) {
			t.Fatal("not symmetric")
		}
		if (s == "unknown") != (!a.Known || !b.Known) || s == "same" && a.Value != b.Value {
			t.Fatalf("%s of %+v and %+v", s, a, b)
		}
	})
	a := sample(t, "drums", "restore", 100)
	a.Record.Facts = slices.DeleteFunc(a.Record.Facts, func(f bench.Fact) bool { return f.Name == "ksm" })
	result, err := Compare([]Run{a, a}, options)
	if err != nil || result.Comparisons[0].Verdict != Refused {
		t.Errorf("a run with something unknown passed for the same as itself: %+v, %v", result, err)
	}
}

// Which side is named first decides what is called A, and nothing else.
func TestSymmetric(t *testing.T) {
	facts := factTable(t)
	rapid.Check(t, func(rt *rapid.T) {
		kind := rapid.SampledFrom(allKinds).Draw(rt, "kind")
		a, b := sides(t, kind)
		for range rapid.IntRange(0, 2).Draw(rt, "changes") {
			f := rapid.SampledFrom(facts).Draw(rt, "fact")
			change(&b, f)
		}
		x, y := compareTwo(t, a, b), compareTwo(t, b, a)
		if x.Verdict != y.Verdict || x.Kind != y.Kind || len(x.Refusals) != len(y.Refusals) {
			rt.Fatalf("%s and %s: %+v, %+v", x.Verdict, y.Verdict, x.Refusals, y.Refusals)
		}
		for i, f := range x.Facts {
			g := y.Facts[i]
			if f.Status != g.Status || f.Refuses != g.Refuses || f.A != g.B || f.B != g.A {
				rt.Fatalf("%+v and %+v", f, g)
			}
		}
		for i, m := range x.Metrics {
			n := y.Metrics[i]
			if diff := cmp.Diff([]bench.Summary{m.A, m.B}, []bench.Summary{n.B, n.A}); diff != "" {
				rt.Fatal(diff)
			}
			if m.Ratio.Value != nil {
				if p := *m.Ratio.Value * *n.Ratio.Value; p < 1-1e-9 || p > 1+1e-9 {
					rt.Fatalf("%s: %v and %v", m.Name, *m.Ratio.Value, *n.Ratio.Value)
				}
			}
		}
	})
}

func TestEmulated(t *testing.T) {
	set := func(r Run, v string) Run {
		for i := range r.Record.Facts {
			if r.Record.Facts[i].Name == "accelerator" {
				r.Record.Facts[i].Value = v
			}
		}
		return r
	}
	for _, c := range []struct{ a, b, cause string }{
		{engine.Native, "tcg", "emulated"}, {"tcg", engine.Native, "emulated"}, {"kvm", "tcg", "emulated"},
		{engine.Native, "kvm", ""}, {"tcg", "tcg", ""},
	} {
		a, b := sides(t, Arm)
		got := compareTwo(t, set(a, c.a), set(b, c.b))
		cause := ""
		if len(got.Refusals) > 0 {
			cause = got.Refusals[0].Cause
		}
		if cause != c.cause {
			t.Errorf("%s and %s: %+v", c.a, c.b, got.Refusals)
		}
	}
}

func TestRunsThatDidNotPass(t *testing.T) {
	for _, v := range []bench.RunVerdict{engine.RunFailed, engine.RunBlocked, engine.RunReview} {
		a, b := sides(t, Arm)
		good := another(b)
		b.Record.Verdict, b.Record.Reason = v, "the reason"
		// Also where another run of the same side passed: leaving the bad one out would choose the runs that look well.
		result, err := Compare([]Run{a, good, b}, options)
		if err != nil {
			t.Fatal(err)
		}
		c := result.Comparisons[0]
		text := Text(result, true)
		if c.Verdict != Refused || c.Metrics != nil || c.Refusals[0].Cause != "runs" || !strings.Contains(text, "the reason") || strings.Contains(text, "METRIC") {
			t.Errorf("%s: %s %+v\n%s", v, c.Verdict, c.Refusals, text)
		}
	}
}

func TestMoreThanOneThingDiffers(t *testing.T) {
	a := sample(t, "drums", "restore", 100)
	b := sample(t, "oci", "cold", 100)
	c := compareTwo(t, a, b)
	if c.Verdict != Refused || c.Kind != "" || c.Refusals[0].Cause != "kind" || c.Refusals[0].Subject != "arm, reset" {
		t.Errorf("%+v", c.Refusals)
	}
}

// An experiment's runs: each pair of sides that differ in one thing, blocks together.
func TestExperiment(t *testing.T) {
	var runs []Run
	for _, arm := range []string{"drums", "oci"} {
		for _, reset := range []string{"restore", "cold"} {
			r := sample(t, arm, reset, 100)
			r.Record.Digests["plan"] = sample(t, "drums", reset, 100).Record.Digests["plan"]
			runs = append(runs, r, another(r))
		}
	}
	result, err := Compare(runs, options)
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, c := range result.Comparisons {
		have = append(have, heading(c)+" "+c.Verdict)
		for _, m := range c.Metrics {
			if m.Name == "usable" && (m.A.N != 16 || m.B.N != 16) {
				t.Errorf("%s: %d and %d values of two runs of eight", heading(c), m.A.N, m.B.N)
			}
		}
	}
	want := []string{"reset, restore and cold (drums) allowed", "arm, drums and oci (restore) allowed", "arm, drums and oci (cold) allowed", "reset, restore and cold (oci) allowed"}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Error(diff)
	}
	// A run that is named again does not count again.
	more, err := Compare(append(slices.Clone(runs), runs[0], runs[2]), options)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(result, more); diff != "" {
		t.Error(diff)
	}
	// Blocks that differ among themselves have no value in common.
	runs[1].Record.Facts = slices.Clone(runs[1].Record.Facts)
	runs[1].Record.Facts[11].Value = "1"
	result, err = Compare(runs[:3], options)
	if err != nil {
		t.Fatal(err)
	}
	if r := result.Comparisons[0].Refusals; len(r) != 1 || r[0].Subject != "ksm" || !strings.Contains(r[0].Text, "differs between runs") {
		t.Errorf("%+v", r)
	}
}

// A plan that the manifest does not compile to is of no comparison of resets; nor is one that this program cannot judge.
func TestCompiledPlan(t *testing.T) {
	a, b := sides(t, Reset)
	b.Record.Digests["plan"] = digestOf("from a checkpoint")
	if c := compareTwo(t, a, b); c.Verdict != Refused || c.Refusals[0].Subject != "plan" || !strings.Contains(c.Refusals[0].Text, "is not the one that its manifest compiles to") {
		t.Errorf("%+v", c.Refusals)
	}
	a, b = sides(t, Reset)
	result, err := Compare([]Run{a, b}, Options{Program: digestOf("a later one"), Compile: func(bench.Manifest, string) (bench.SHA256, error) { return digestOf("a new plan"), nil }})
	if err != nil {
		t.Fatal(err)
	}
	if r := result.Comparisons[0].Refusals; len(r) != 1 || r[0].Cause != "unknown" || !strings.Contains(r[0].Text, "not the program that ran it") {
		t.Errorf("%+v", r)
	}
}

// A fact read in several rollouts has to be the same in each.
func TestRolloutsThatDiffer(t *testing.T) {
	a, b := sides(t, Arm)
	b.Steps["r4/inspect"].Facts[1].Value = "another system"
	c := compareTwo(t, a, b)
	if len(c.Refusals) != 1 || c.Refusals[0].Subject != "guest-os" || !strings.Contains(c.Refusals[0].Text, "another system in r4/inspect") {
		t.Errorf("%+v", c.Refusals)
	}
	a, b = sides(t, Arm)
	delete(b.Steps, "r4/gate-limits")
	c = compareTwo(t, a, b)
	if len(c.Refusals) != 6 || !strings.Contains(c.Refusals[0].Text, "r4/gate-limits: the step was not run") {
		t.Errorf("%+v", c.Refusals)
	}
}

func TestControlsMustHaveScored(t *testing.T) {
	for name, edit := range map[string]func([]bench.Rollout){
		"scored":   func(o []bench.Rollout) { one := 1.0; o[0].After = &one },
		"no score": func(o []bench.Rollout) { o[1].After = nil },
		"missing":  func(o []bench.Rollout) { o[1].Control = "" },
	} {
		a, b := sides(t, Arm)
		edit(b.Record.Rollouts)
		c := compareTwo(t, a, b)
		if !slices.ContainsFunc(c.Refusals, func(r bench.Refusal) bool { return r.Subject == "controls" }) {
			t.Errorf("%s: %+v", name, c.Refusals)
		}
	}
}

// A record with a field that the schema does not have is none.
func TestForeignFieldIsRejected(t *testing.T) {
	for _, name := range []string{record.RecordFile, record.ManifestFile, record.PlanFile} {
		dir := write(t, sample(t, "drums", "restore", 100))
		if _, err := Load(dir); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		foreign := strings.Replace(string(data), "{", `{"speedup":2,`, 1)
		if err := os.WriteFile(path, []byte(foreign), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "speedup") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Dumps are of runs: the task's own, and those of rounds that are no warm-up; what did not pass is none.
func TestDumps(t *testing.T) {
	a, b := sides(t, Arm)
	round := int64(0)
	for i, s := range []bench.Step{{Id: "base/dump"}, {Id: "t0/dump", Round: &round, Warmup: true}, {Id: "t1/dump", Round: &round}, {Id: "t2/dump", Round: &round}, {Id: "base/other"}} {
		verdict := engine.Pass
		if i == 3 {
			verdict = engine.Fail
		}
		if s.Kind = "dump"; i == 4 {
			s.Kind = "mount"
		}
		a.Plan.Steps = append(a.Plan.Steps, s)
		a.Record.Steps = append(a.Record.Steps, bench.StepOutcome{Step: s.Id, Kind: s.Kind, Verdict: verdict, Nanoseconds: bench.Int64(strconv.Itoa(i + 1))})
	}
	again := another(a)
	again.Record.Steps[0].Nanoseconds = "7"
	for name, want := range map[string][]float64{"dump": {1, 7}, "dump.branch": {3, 3}} {
		if got := Values([]Run{a, again, b}, name); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		i := slices.IndexFunc(metrics([]Run{a, again}, []Run{b}), func(m bench.ComparedMetric) bool { return m.Name == name && m.A.N == 2 && m.B.N == 0 })
		if i < 0 {
			t.Errorf("a comparison lacks %s", name)
		}
	}
}

func TestFormats(t *testing.T) {
	a, b := sides(t, Arm)
	b.Record.Differences[1].Text = "with | a bar, \x1b[31m and <script>"
	c := bench.Comparisons{Comparisons: []bench.Comparison{compareTwo(t, a, b)}}
	md := Markdown(c)
	for _, want := range []string{"| reset: usable | ms | A | 8 | 109.5 |", "too few", `with \| a bar`, "&lt;script>", "## Declared differences", "kernel release"} {
		if !strings.Contains(md, want) {
			t.Errorf("markdown lacks %q:\n%s", want, md)
		}
	}
	csv, err := CSV(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1,arm,allowed,metric,usable,A,p50,1.095e+08\n", "1,arm,allowed,metric,usable,A,p95.too-few,8 of 20\n", "1,arm,allowed,fact,ksm,A,value,0\n", "metric,usable,,ratio.low,"} {
		if !strings.Contains(csv, want) {
			t.Errorf("csv lacks %q:\n%s", want, csv)
		}
	}
	for _, text := range []string{md, Text(c, false)} {
		if strings.Contains(text, "\x1b") {
			t.Errorf("a guest's text can move the cursor:\n%q", text)
		}
	}
}

package register

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// An interval that straddles a bar is no pass, and no fail.
func TestWithin(t *testing.T) {
	with := func(low, value, high float64) bench.Estimate {
		return bench.Estimate{Value: &value, Interval: &bench.Interval{Low: low, High: high, Confidence: 0.95}}
	}
	five := 5.0
	for _, c := range []struct {
		name  string
		e     bench.Estimate
		bound bench.Bound
		want  bench.BarVerdict
		need  int64
	}{
		{"below the largest", with(1e6, 2e6, 3e6), bench.Bound{Max: "4ms"}, Pass, 0},
		{"at the largest", with(1e6, 2e6, 3e6), bench.Bound{Max: "3ms"}, Pass, 0},
		{"the number is good, its interval straddles", with(1e6, 2e6, 3e6), bench.Bound{Max: "2.5ms"}, NotEnough, 40},
		{"the number is bad, its interval straddles", with(1e6, 2e6, 3e6), bench.Bound{Max: "1.5ms"}, NotEnough, 40},
		{"the number is the bar", with(1e6, 2e6, 3e6), bench.Bound{Max: "2ms"}, NotEnough, 0},
		{"above the largest", with(3e6, 4e6, 5e6), bench.Bound{Max: "2ms"}, Fail, 0},
		{"above the smallest", with(3, 4, 5), bench.Bound{Min: "3"}, Pass, 0},
		{"below the smallest", with(3, 4, 5), bench.Bound{Min: "5.1"}, Fail, 0},
		{"between", with(3, 4, 5), bench.Bound{Min: "2", Max: "6"}, Pass, 0},
		{"over both", with(3, 4, 5), bench.Bound{Min: "3.5", Max: "4.5"}, NotEnough, 40},
		{"a size", with(1<<20, 2<<20, 3<<20), bench.Bound{Max: "3MiB"}, Pass, 0},
		{"no interval, too few", bench.Estimate{Value: &five, Few: &bench.TooFew{Have: 5, Need: 6}}, bench.Bound{Max: "9"}, NotEnough, 6},
		{"no interval at all", bench.Estimate{Value: &five, Reason: "shares"}, bench.Bound{Max: "9"}, Unknown, 0},
		{"nothing", bench.Estimate{}, bench.Bound{Max: "9"}, Unknown, 0},
		{"an interval of NaN", with(math.NaN(), 1, math.NaN()), bench.Bound{Max: "9"}, Unknown, 0},
		{"a bound that is none", with(1, 1, 1), bench.Bound{Max: "fast"}, Unknown, 0},
	} {
		v, reason, few := Within(c.e, c.bound, 10)
		need := int64(0)
		if few != nil {
			need = few.Need
		}
		if v != c.want || need != c.need || (v == Pass) != (reason == "") {
			t.Errorf("%s: %s, need %d: %q", c.name, v, need, reason)
		}
	}
}

// The interval of the 95th percentile, against binomial sums of big fractions.
func TestPercentile95(t *testing.T) {
	if needP95 != 72 {
		t.Errorf("needs %d values; 0.95^n is at most 0.025 from 72 on", needP95)
	}
	for _, n := range []int{72, 73, 100, 250} {
		sample := make([]float64, n)
		for i := range sample {
			sample[i] = float64(i + 1) // the order statistics are their own ranks
		}
		rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, k int) { sample[i], sample[k] = sample[k], sample[i] })
		e := percentile95(sample)
		// below[k] is the probability that at most k of n lie below the percentile.
		below := make([]*big.Rat, n+1)
		sum := new(big.Rat)
		for k := range n + 1 {
			q := new(big.Int).Exp(big.NewInt(19), big.NewInt(int64(k)), nil)
			term := new(big.Rat).SetFrac(q.Mul(q, new(big.Int).Binomial(int64(n), int64(k))), new(big.Int).Exp(big.NewInt(20), big.NewInt(int64(n)), nil))
			sum = new(big.Rat).Add(sum, term)
			below[k] = sum
		}
		limit := big.NewRat(25, 1000)
		low := 1
		for below[low].Cmp(limit) <= 0 { // fewer than low+1 below
			low++
		}
		high := n
		for new(big.Rat).Sub(big.NewRat(1, 1), below[high-2]).Cmp(limit) <= 0 { // at least high-1 below
			high--
		}
		if e.Interval == nil || e.Interval.Low != float64(low) || e.Interval.High != float64(high) || e.Interval.Confidence < 0.95 {
			t.Errorf("n %d: %+v, want ranks %d and %d", n, e.Interval, low, high)
		}
	}
	if e := percentile95(make([]float64, 71)); e.Interval != nil || e.Few == nil || e.Few.Need != 72 {
		t.Errorf("%+v", e)
	}
}

// The same against what SciPy gave: testdata/tool.py of package stats.
func TestPercentile95AgainstATool(t *testing.T) {
	var want struct {
		Tool  string
		Tails []struct{ Values, Interval []float64 }
	}
	data, err := os.ReadFile("../stats/testdata/tool.json")
	if err == nil {
		err = json.Unmarshal(data, &want)
	}
	if err != nil || len(want.Tails) == 0 {
		t.Fatal(err, want.Tool)
	}
	for _, w := range want.Tails {
		i := percentile95(w.Values).Interval
		if i == nil || i.Low != w.Interval[0] || i.High != w.Interval[1] || math.Abs(i.Confidence-w.Interval[2]) > 1e-9 {
			t.Errorf("n %d: %+v, %s has %v", len(w.Values), i, want.Tool, w.Interval)
		}
	}
}

func bar(name, max string) bench.Bar {
	return bench.Bar{Name: bench.Name(name), Metric: "usable", Of: bench.BarSide{Arm: "fake", Reset: "restore"}, P50: &bench.Bound{Max: bench.Amount(max)}, N: 7}
}

var soon = time.Date(2020, 1, 2, 3, 4, 5, 6, time.UTC)

// registered registers what a run of recordtest is of.
func registered(t *testing.T, o recordtest.Run) Registered {
	t.Helper()
	r, err := New(o.Plans(), recordtest.Engine, soon)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// checked are the kinds of runs that were found sound.
var checked = map[string]bool{}

// ran makes runs under a registration and reads them.
func ran(t *testing.T, r Registered, list ...recordtest.Run) (runs []Run) {
	t.Helper()
	for i, o := range list {
		dir := filepath.Join(t.TempDir(), "run")
		o.Registration = r.JSON
		turns := Schedule(ArmsInTurn(r.Manifest), r.Manifest.Experiment.Reset, r.Manifest.Experiment)
		o.Facts = append(slices.Clone(o.Facts), turns[i%len(turns)].Facts(r.Manifest.Experiment)...)
		o.Name = fmt.Sprintf("run/%d", i)
		o.Make(t, dir)
		if shape := fmt.Sprint(o.Arm, o.Reset, o.Gate, o.Verdict, o.Controls, len(o.Facts)); !checked[shape] { // one of each, since it takes the longest
			checked[shape] = true
			check, err := record.Verify(dir)
			if err != nil || len(check.Damage)+len(check.Crash)+len(check.Unknown) > 0 {
				t.Fatal(err, check)
			}
		}
		one, err := compare.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		reg, belongs, err := Of(dir, one.Record)
		if err != nil || !belongs || reg.Digest != r.Digest {
			t.Fatal(err, belongs)
		}
		runs = append(runs, Run{Run: one, Registered: reg})
	}
	return runs
}

func TestRegistration(t *testing.T) {
	o := recordtest.Run{Rollouts: 8, Bars: []bench.Bar{bar("quick", "1h")}}
	r := registered(t, o)
	if again := registered(t, o); again.Digest != r.Digest || canonical.Sum(r.JSON) != r.Digest {
		t.Error("the same registration has two digests")
	}
	if r.Time != "2020-01-02T03:04:05.000000006Z" || r.Method.Rollouts != 8 || r.Method.Statistics != compare.Method || r.First() != r.Digest {
		t.Errorf("%+v", r.Method)
	}
	// Bars are in neither workload nor plan, and have a digest of their own.
	p := registered(t, recordtest.Run{Rollouts: 8, Bars: []bench.Bar{bar("quick", "2h")}})
	for name, same := range map[string]bool{"workload": true, "frozen": true, "method": true, "bars": false, "manifest": false} {
		if (p.Digests[name] == r.Digests[name]) != same {
			t.Errorf("digest %s: the same %v, want %v", name, !same, same)
		}
	}
	if err := r.Admit(o.Plans(), recordtest.Engine); err != nil {
		t.Error(err)
	}
	more := o
	more.Rollouts = 9
	if err := r.Admit(more.Plans(), recordtest.Engine); !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), "experiment.rollouts is 9, registered is 8") {
		t.Errorf("%v", err)
	}
	other := recordtest.Engine
	other.Sha256 = bench.SHA256(strings.Repeat("1", 64))
	if err := r.Admit(o.Plans(), other); !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), "this program is") {
		t.Errorf("%v", err)
	}
	for _, c := range []struct {
		bars []bench.Bar
		says string
	}{
		{nil, "it has no bars"},
		{[]bench.Bar{{Name: "b", Metric: "speed", P50: &bench.Bound{Max: "1"}}}, `no metric "speed"`},
		{[]bench.Bar{{Name: "b", Metric: "usable", P50: &bench.Bound{Max: "1"}}}, "1 is no time"},
		{[]bench.Bar{{Name: "b", Metric: "pss", P50: &bench.Bound{Max: "1s"}}}, "1s is no size"},
		{[]bench.Bar{{Name: "b", Metric: "usable", Over: &bench.BarSide{}, P50: &bench.Bound{Max: "1s"}}}, "1s is no plain number"},
		{[]bench.Bar{{Name: "b", Metric: "score", P50: &bench.Bound{Min: "1s"}}}, "1s is no plain number"},
	} {
		m := o.Plans()
		m.Experiment.Bars = c.bars
		if _, err := New(m, recordtest.Engine, soon); !errors.Is(err, engine.ErrUsage) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
}

// How a baseline is run is under the digest: its pool, its snapshots, its accelerator.
// A run of another configuration is none of the registration's.
func TestRegisteredConfiguration(t *testing.T) {
	m := recordtest.Run{Rollouts: 8, Bars: []bench.Bar{bar("quick", "1h")}}.Plans()
	m.Arms.Qemu = &bench.QEMUSettings{Accel: "kvm", Snapshot: "file", Headroom: "512MiB"}
	m.Experiment.Pool = 2
	r, err := New(m, recordtest.Engine, soon)
	if err != nil {
		t.Fatal(err)
	}
	if r.Method.Pool != 2 || r.Manifest.Arms.Qemu.Snapshot != "file" {
		t.Errorf("%+v %+v", r.Method, r.Manifest.Arms.Qemu)
	}
	for says, change := range map[string]func(*bench.Manifest){
		"experiment.pool is 0, registered is 2": func(m *bench.Manifest) { m.Experiment.Pool = 0 },
		`arms.qemu.snapshot is "loadvm", registered is "file"`: func(m *bench.Manifest) {
			m.Arms.Qemu = &bench.QEMUSettings{Accel: "kvm", Snapshot: "loadvm", Headroom: "512MiB"}
		},
		`arms.qemu.accel is "tcg", registered is "kvm"`: func(m *bench.Manifest) {
			m.Arms.Qemu = &bench.QEMUSettings{Accel: "tcg", Snapshot: "file", Headroom: "512MiB"}
		},
		`arms.qemu.headroom is "128MiB", registered is "512MiB"`: func(m *bench.Manifest) {
			m.Arms.Qemu = &bench.QEMUSettings{Accel: "kvm", Snapshot: "file", Headroom: "128MiB"}
		},
	} {
		other := m
		change(&other)
		if err := r.Admit(other, recordtest.Engine); !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
		if o, err := New(other, recordtest.Engine, soon); err != nil || o.Digest == r.Digest || o.Digests["manifest"] == r.Digests["manifest"] {
			t.Errorf("%s: the same digest, or %v", says, err)
		}
	}
}

// A registration that was changed by hand is found out, wherever it was changed.
func TestChangedRegistration(t *testing.T) {
	o := recordtest.Run{Rollouts: 8, Bars: []bench.Bar{bar("quick", "1h")}}
	first := registered(t, o)
	o.Bars = []bench.Bar{bar("quick", "2h")}
	second, err := Amend(first, o.Plans(), soon.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(second.JSON)
	if err != nil || again.First() != first.Digest || again.Amends != first.Digest || len(again.History()) != 2 {
		t.Fatalf("%v %+v", err, again.Amends)
	}
	for name, change := range map[string]func(*bench.Registration){
		"bar":         func(r *bench.Registration) { r.Manifest.Experiment.Bars[0].P50.Max = "3h" },
		"n":           func(r *bench.Registration) { r.Manifest.Experiment.Bars[0].N = 1 },
		"rollouts":    func(r *bench.Registration) { r.Manifest.Experiment.Rollouts = 7 },
		"method":      func(r *bench.Registration) { r.Method.Blocks = 2 },
		"judging":     func(r *bench.Registration) { r.Method.Judging = "as I like" },
		"first's bar": func(r *bench.Registration) { r.Amended.Manifest.Experiment.Bars[0].P50.Max = "3h" },
		"first":       func(r *bench.Registration) { r.Amended = nil },
		"both":        func(r *bench.Registration) { r.Amended, r.Amends = nil, ""; r.Digests["bars"] = first.Digest },
		"time":        func(r *bench.Registration) { r.Time = first.Time },
		"program":     func(r *bench.Registration) { r.Engine.Version = "w" },
		"first, with the digests made good": func(r *bench.Registration) {
			r.Amended.Manifest.Experiment.Bars[0].P50.Max = "3h"
			var err error
			if r.Amended.Digests, err = digests(*r.Amended); err != nil {
				t.Error(err)
			}
		},
	} {
		var r bench.Registration
		if err := json.Unmarshal(second.JSON, &r); err != nil {
			t.Fatal(err)
		}
		change(&r)
		data, err := canonical.JSON(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(data); !errors.Is(err, engine.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Parse(append(slices.Clone(second.JSON), '\n')); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("a line feed: %v", err)
	}
	if _, err := Parse([]byte("{}")); err == nil {
		t.Error("nothing is a registration")
	}
}

// An amendment changes bars, later, and nothing else.
func TestAmend(t *testing.T) {
	o := recordtest.Run{Rollouts: 8, Bars: []bench.Bar{bar("quick", "1h")}}
	first := registered(t, o)
	if _, err := Amend(first, o.Plans(), soon.Add(1)); !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), "no bar differs") {
		t.Errorf("%v", err)
	}
	o.Bars = []bench.Bar{bar("quick", "2h")}
	if _, err := Amend(first, o.Plans(), soon); !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), "not before now") {
		t.Errorf("%v", err)
	}
	o.Rollouts = 9
	if _, err := Amend(first, o.Plans(), soon.Add(1)); !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), "experiment.rollouts is 9") {
		t.Errorf("%v", err)
	}
}

// judgeOne judges the only experiment, and checks the result against the schema.
func judgeOne(t *testing.T, runs []Run, known ...Registered) bench.JudgedExperiment {
	t.Helper()
	all := Judge(runs, nil, Known{Registrations: known}, nil, compare.Options{Program: recordtest.Program, Compile: func(bench.Manifest, string) (bench.SHA256, error) { return recordtest.Program, nil }})
	data, err := canonical.JSON(all)
	if err == nil {
		err = compile.Validate("Judgements", data)
	}
	if err != nil || len(all.Experiments) != 1 {
		t.Fatalf("%v %+v", err, all)
	}
	for _, text := range []string{Text(all), Markdown(all)} {
		for _, r := range all.Experiments[0].Reasons {
			if !strings.Contains(strings.ReplaceAll(text, `\`, ""), r) {
				t.Errorf("%q is not said in:\n%s", r, text)
			}
		}
	}
	return all.Experiments[0]
}

func TestStates(t *testing.T) {
	quick := recordtest.Run{Rollouts: 8, Bars: []bench.Bar{bar("quick", "1h")}}
	score := bench.Bar{Name: "right", Metric: "score", Of: bench.BarSide{Arm: "fake", Reset: "restore"}, P50: &bench.Bound{Min: "0.9"}, N: 8}
	failing := quick
	failing.Gate, failing.Verdict = "locks", engine.Fail
	blocked := quick
	blocked.Gate, blocked.Verdict = "locks", engine.VerdictUnknown
	review := quick
	review.Gate, review.Verdict = "live", engine.Review
	few := recordtest.Run{Rollouts: 6, Bars: quick.Bars}
	slow := recordtest.Run{Rollouts: 8, Bars: []bench.Bar{bar("quick", "1h"), bar("never", "0.000001ms")}}
	blocks := recordtest.Run{Rollouts: 8, Blocks: 2, Bars: quick.Bars}
	p95 := recordtest.Run{Rollouts: 8, Bars: []bench.Bar{{Name: "tail", Metric: "usable", Of: score.Of, P95: &bench.Bound{Max: "1h"}, N: 8}}}
	shares := recordtest.Run{Rollouts: 8, Bars: []bench.Bar{score}}
	sides := recordtest.Run{Rollouts: 8, Resets: []string{"restore", "cold"}, Bars: []bench.Bar{{Name: "faster", Metric: "usable", Of: score.Of,
		Over: &bench.BarSide{Arm: "fake", Reset: "cold"}, P50: &bench.Bound{Max: "1000"}, N: 8}}}
	cold := sides
	cold.Reset = "cold"
	for _, c := range []struct {
		name  string
		of    recordtest.Run
		runs  []recordtest.Run
		state string
		bar   bench.BarVerdict
		says  string
	}{
		{"every bar met", quick, []recordtest.Run{quick}, Verified, Pass, ""},
		{"a bar missed", slow, []recordtest.Run{slow}, Failed, Fail, "above max 0.000001ms"},
		{"a gate missed", quick, []recordtest.Run{failing}, Failed, Unknown, "run run/0 failed"},
		{"a gate not judged", quick, []recordtest.Run{blocked}, Failed, Unknown, "was blocked"},
		{"a person has to look", quick, []recordtest.Run{review}, Preliminary, Unknown, "waits for a review"},
		{"fewer rollouts than the bar's n", few, []recordtest.Run{few}, Preliminary, NotEnough, "6 values of usable from valid measured rollouts, the bar asks for 7"},
		{"too few for a 95th percentile", p95, []recordtest.Run{p95}, Preliminary, NotEnough, "8 values, it takes 72"},
		{"a share that straddles", shares, []recordtest.Run{shares}, Preliminary, NotEnough, "straddles min 0.9"},
		{"fewer runs than registered", blocks, []recordtest.Run{blocks}, Preliminary, NotEnough, "1 of 2 registered runs"},
		{"runs that may not be taken together", blocks, []recordtest.Run{blocks, blocks}, Preliminary, Unknown, "may not be taken together"},
		{"more runs than registered", quick, []recordtest.Run{quick, quick}, Preliminary, Unknown, "2 runs, registered are 1"},
		{"one side of a ratio", sides, []recordtest.Run{sides}, Preliminary, NotEnough, "fake cold: 0 of 1 registered runs"},
		{"a ratio whose comparison is refused", sides, []recordtest.Run{sides, cold}, Preliminary, Unknown, "the two sides may not be compared"},
		{"not run", quick, nil, Planned, NotEnough, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := registered(t, c.of)
			runs := ran(t, r, c.runs...)
			var e bench.JudgedExperiment
			if len(runs) > 0 {
				e = judgeOne(t, runs)
			} else {
				e = Judge(nil, nil, Known{}, []Registered{r}, compare.Options{}).Experiments[0]
			}
			if e.State != c.state || e.Judgements[0].Verdict != c.bar {
				t.Errorf("%s, bars %s, want %s and %s: %v", e.State, e.Judgements[0].Verdict, c.state, c.bar, e.Reasons)
			}
			if text := strings.Join(e.Reasons, "\n"); !strings.Contains(text, c.says) || (c.state == Verified) != (text == "") && c.state != Planned {
				t.Errorf("it says %q, want %q", text, c.says)
			}
		})
	}
}

// The numbers of an emulated processor are marked.
func TestEmulated(t *testing.T) {
	o := recordtest.Run{Rollouts: 8, Bars: []bench.Bar{bar("quick", "1h")}, Facts: []bench.Fact{{Name: "accelerator", Known: true, Value: "tcg", Source: "query-kvm"}}}
	e := judgeOne(t, ran(t, registered(t, o), o))
	if r := e.Judgements[0].Bars[0]; !r.Emulated || !strings.HasSuffix(LineOf(r).Value, " ms (emulated)") {
		t.Errorf("%+v", r)
	}
}

// A bar that was missed stays missed, whatever is asked for afterwards; and an
// amendment that asks for more can fail what passed.
func TestAmendmentKeepsTheFirstVerdict(t *testing.T) {
	hard := recordtest.Run{Rollouts: 8, Bars: []bench.Bar{bar("quick", "0.000001ms")}}
	easy := hard
	easy.Bars = []bench.Bar{bar("quick", "1h")}
	for _, c := range []struct {
		name        string
		first, then recordtest.Run
		want        []bench.BarVerdict
		state       string
	}{
		{"missed, then met", hard, easy, []bench.BarVerdict{Fail, Pass}, Failed},
		{"met, then missed", easy, hard, []bench.BarVerdict{Pass, Fail}, Failed},
	} {
		first := registered(t, c.first)
		runs := ran(t, first, c.first)
		second, err := Amend(first, c.then.Plans(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		e := judgeOne(t, runs, second)
		if e.State != c.state || len(e.Judgements) != 2 || e.Judgements[0].Verdict != c.want[0] || e.Judgements[1].Verdict != c.want[1] {
			t.Errorf("%s: %s %+v", c.name, e.State, e.Judgements)
		}
		if After(e.Judgements[0], e) != "" || After(e.Judgements[1], e) == "" {
			t.Errorf("%s: which was made after the run is not said", c.name)
		}
		// A registration of something else changes nothing.
		stranger := registered(t, recordtest.Run{Rollouts: 8, Manifest: "other", Bars: hard.Bars})
		if e := judgeOne(t, runs, stranger); len(e.Judgements) != 1 {
			t.Errorf("%s: judged by a stranger", c.name)
		}
	}
	// A run that is started under an amendment is judged by the first one too.
	first := registered(t, hard)
	second, err := Amend(first, easy.Plans(), soon.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if e := judgeOne(t, ran(t, second, easy)); e.State != Failed || e.Registration != first.Digest || len(e.Judgements) != 2 {
		t.Errorf("%s %+v", e.State, e.Reasons)
	}
}

// What is not as the registration lays it down counts for nothing.
func TestStrays(t *testing.T) {
	o := recordtest.Run{Rollouts: 8, Bars: []bench.Bar{bar("quick", "1h")}}
	for _, c := range []struct {
		name   string
		change func(*Run)
		says   string
		state  string
	}{
		{"registered later", func(r *Run) { r.Record.Started = "2019-01-01T00:00:00Z" }, "registered was it at", Preliminary},
		{"another manifest", func(r *Run) { r.Record.Digests["manifest"] = recordtest.Program }, "not the registered one", Preliminary},
		{"another program", func(r *Run) { r.Record.Engine.Version = "w" }, "its program is", Preliminary},
		{"another rule", func(r *Run) { r.Registered.Method.Judging = "another" }, "counts or judges otherwise", Preliminary},
		{"not sound", func(r *Run) { r.Unsound = true }, "not sound", Failed},
	} {
		runs := ran(t, registered(t, o), o)
		c.change(&runs[0])
		e := judgeOne(t, runs)
		if e.State != c.state || e.Judgements[0].Verdict != Unknown || !strings.Contains(strings.Join(e.Reasons, "\n"), c.says) {
			t.Errorf("%s: %s %v", c.name, e.State, e.Reasons)
		}
	}
}

// A run's own state: missed bars of its side fail it, and it is verified only with the rest.
func TestStanding(t *testing.T) {
	restore, cold := bench.BarSide{Arm: "fake", Reset: "restore"}, bench.BarSide{Arm: "fake", Reset: "cold"}
	with := func(state string, of bench.BarSide, over *bench.BarSide, v bench.BarVerdict) bench.JudgedExperiment {
		return bench.JudgedExperiment{State: state, Judgements: []bench.Judgement{{Bars: []bench.BarResult{{Bar: bench.Bar{Of: of, Over: over}, Verdict: v}}}}}
	}
	for _, c := range []struct {
		e    bench.JudgedExperiment
		want string
	}{
		{with(Verified, restore, nil, Pass), Verified},
		{with(Failed, restore, nil, Fail), Failed},
		{with(Failed, cold, nil, Fail), Preliminary},
		{with(Failed, cold, &restore, Fail), Failed},
		{with(Preliminary, restore, nil, NotEnough), Preliminary},
	} {
		if state, _ := Standing(c.e, bench.Record{Arm: "fake", Reset: "restore"}); state != c.want {
			t.Errorf("%+v: %s, want %s", c.e, state, c.want)
		}
	}
}

// Every metric that a comparison prints can have a bar, and the schema admits its name.
func TestMetricNames(t *testing.T) {
	for _, name := range append(compare.MetricNames(), "span.criu.freezing") {
		if name == "span." {
			continue
		}
		b := bar("b", "1")
		b.Metric = name
		data, err := canonical.JSON(b)
		if err == nil {
			err = compile.Validate("Bar", data)
		}
		if _, known := compare.Unit(name); err != nil || !known {
			t.Errorf("%s: %v %v", name, known, err)
		}
	}
}

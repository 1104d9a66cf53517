package profile

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const ms = 1_000_000

func at(n int64) bench.Int64 { return bench.Int64(fmt.Sprint(n * ms)) }

func told(facts map[string]int64) (list []bench.Fact) {
	for name, v := range facts {
		list = append(list, bench.Fact{Name: name, Known: true, Value: fmt.Sprint(v * ms)})
	}
	return list
}

// known is a reset whose parts are known: 200 ms, of them 5 in no part and 3 between steps.
func known(zero int64, facts map[string]int64) []bench.Receipt {
	step := func(kind string, from, to int64) bench.Receipt {
		return bench.Receipt{Event: "step", Kind: kind, Step: kind, Start: at(zero + from), End: at(zero + to)}
	}
	restore := step("restore", 0, 120)
	for _, s := range []struct {
		name     string
		from, to int64
	}{{"kill", 0, 10}, {"clear", 6, 10}, {"layer", 12, 20}, {"criu", 20, 110}, {"repair", 112, 119}, {"own", 30, 32}} {
		restore.Spans = append(restore.Spans, bench.Span{Name: s.name, Start: at(s.from), End: at(s.to)})
	}
	resume := step("resume", 130, 134)
	resume.Facts = told(facts)
	ready := step("readiness", 135, 180)
	ready.Facts = told(map[string]int64{"first_answer_ns": zero + 145})
	// Two gates of the stopped tree side by side, one after; what follows the reset is none of it.
	return []bench.Receipt{restore, step("gate", 121, 128), step("gate", 120, 130), resume, ready, step("gate", 180, 186), step("reseed", 188, 200), step("evaluate", 200, 900)}
}

var own = map[string]int64{"tool.criu.restore-ns": 70, "tool.criu.forking-ns": 5}

func profiled(t *testing.T, resets ...[]bench.Receipt) (bench.Profile, map[string]bench.ProfilePart) {
	t.Helper()
	var plan bench.Plan
	var receipts []bench.Receipt
	r := bench.Record{Run: "a/b", Arm: "drums", Reset: "restore", Verdict: engine.RunPassed}
	for i, members := range resets {
		index := int64(i)
		for k, m := range members {
			m.Step = fmt.Sprintf("r%d/%d", i, k)
			plan.Steps = append(plan.Steps, bench.Step{Id: m.Step, Kind: m.Kind, Rollout: &index})
			receipts = append(receipts, m)
		}
		r.Rollouts = append(r.Rollouts, bench.Rollout{Index: index, Class: record.Success})
	}
	p := Of(r, plan, receipts)
	parts := map[string]bench.ProfilePart{}
	sum := 0.0
	for _, k := range p.Parts {
		parts[k.Name] = k
		if k.Share != nil {
			sum += *k.Share
		}
		if k.P50 == nil && k.Reason == "" {
			t.Errorf("%s has neither a number nor a reason", k.Name)
		}
		if k.Owner == "" && k.Name != lost {
			t.Errorf("%s has no owner", k.Name)
		}
	}
	if p.N > 0 && math.Abs(sum-1) > 1e-9 {
		t.Errorf("shares add up to %v", sum)
	}
	return p, parts
}

func TestKnownParts(t *testing.T) {
	p, parts := profiled(t, known(1000, own), known(5000, own))
	if p.N != 2 || *p.Whole.Value != 200*ms {
		t.Fatalf("%d resets, whole %v", p.N, *p.Whole.Value)
	}
	for name, want := range map[string]float64{
		"kill": 6, "clear": 4, "layer": 8, "own": 2, start: 18, forks: 5, rest: 65, "repair": 7,
		"gates before": 10, "resume": 4, "first answer": 10, "ready": 35, "gates after": 6, "reseed": 12, between: 3, lost: 5,
	} {
		k := parts[name]
		if k.P50 == nil || *k.P50.Value != want*ms || k.N != 2 || math.Abs(*k.Share-want/200) > 1e-9 {
			t.Errorf("%s is %+v, want %v ms", name, k, want)
		}
		delete(parts, name)
	}
	for _, name := range []string{namespaces, helpers, pages} {
		if k := parts[name]; k.P50 != nil || k.N != 0 || !strings.Contains(k.Reason, "debug") {
			t.Errorf("%s without a log: %+v", name, k)
		}
		delete(parts, name)
	}
	if len(parts) > 0 {
		t.Errorf("more parts: %v", parts)
	}
}

func TestPartsOfTheLog(t *testing.T) {
	with := map[string]int64{"tool.criu.restore-ns": 70, "tool.criu.forking-ns": 5, "tool.criu.log-namespaces-ns": 20, "tool.criu.log-helpers-ns": 12, "tool.criu.log-pages-ns": 30}
	_, parts := profiled(t, known(0, with))
	for name, want := range map[string]float64{start: 18, namespaces: 20, helpers: 12, forks: 5, pages: 30, rest: 3} {
		if k := parts[name]; k.P50 == nil || *k.P50.Value != want*ms {
			t.Errorf("%s is %+v, want %v ms", name, k, want)
		}
	}
	with["tool.criu.log-pages-ns"] = 60
	_, parts = profiled(t, known(0, with))
	if k := parts[pages]; k.P50 != nil || k.Reason == "" {
		t.Errorf("times that do not fit: %+v", k)
	}
	if k := parts[rest]; *k.P50.Value != 65*ms {
		t.Errorf("the rest is %v", *k.P50.Value)
	}
}

// What criu says of itself is missing, or cannot be: its time is one part, the others are not known.
func TestPartsThatCannotBe(t *testing.T) {
	for why, facts := range map[string]map[string]int64{
		"not in the record": nil, "longer than the time": {"tool.criu.restore-ns": 95, "tool.criu.forking-ns": 5},
	} {
		_, parts := profiled(t, known(0, facts))
		if k := parts[whole]; k.P50 == nil || *k.P50.Value != 88*ms { // "own" was in it
			t.Errorf("%s: %+v", why, k)
		}
		for _, name := range []string{start, namespaces, helpers, forks, pages, rest} {
			if k := parts[name]; k.P50 != nil || !strings.Contains(k.Reason, why) {
				t.Errorf("%s: %s is %+v", why, name, k)
			}
		}
	}
	none := known(0, own)
	none[4].Facts = nil
	_, parts := profiled(t, none)
	if k := parts["first answer"]; k.P50 != nil || k.Reason == "" || *parts["ready"].P50.Value != 45*ms {
		t.Errorf("no first answer: %+v, ready %+v", k, parts["ready"])
	}
}

// A run that did not pass, a control, a warm-up and a rollout that is not valid give no number.
func TestNoNumber(t *testing.T) {
	var plan bench.Plan
	var receipts []bench.Receipt
	for k, m := range known(0, own) {
		index := int64(0)
		m.Step = fmt.Sprint(k)
		plan.Steps = append(plan.Steps, bench.Step{Id: m.Step, Rollout: &index})
		receipts = append(receipts, m)
	}
	for name, change := range map[string]func(*bench.Record){
		"failed":  func(r *bench.Record) { r.Verdict = engine.RunFailed },
		"control": func(r *bench.Record) { r.Rollouts[0].Control = "none" },
		"warm-up": func(r *bench.Record) { r.Rollouts[0].Warmup = true },
		"invalid": func(r *bench.Record) { r.Rollouts[0].Class = record.Invalid },
	} {
		r := bench.Record{Verdict: engine.RunPassed, Rollouts: []bench.Rollout{{Class: record.Success}}}
		if p := Of(r, plan, receipts); p.N != 1 {
			t.Fatalf("nothing planted: %+v", p)
		}
		change(&r)
		if p := Of(r, plan, receipts); p.N != 0 || len(p.Parts) != 0 || p.Whole.Value != nil {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if p, _ := profiled(t, known(0, own)[:4]); p.N != 0 {
		t.Errorf("a reset that was never ready counts: %+v", p)
	}
}

package record

import (
	"fmt"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// at is a step that ran from one millisecond to another.
func at(kind, params string, from, to int, more func(*bench.Receipt)) step {
	ns := func(ms int) bench.Int64 { return bench.Int64(fmt.Sprint(ms * 1e6)) }
	s := step{plan: bench.Step{Kind: kind, Params: params}, receipt: bench.Receipt{Kind: kind, Verdict: engine.Pass, Start: ns(from), End: ns(to)}}
	if more != nil {
		more(&s.receipt)
	}
	return s
}

func known(name string, v int) bench.Fact {
	return bench.Fact{Name: name, Known: true, Value: fmt.Sprint(v)}
}

func span(name string, from, to int) bench.Span {
	return bench.Span{Name: name, Start: bench.Int64(fmt.Sprint(from * 1e6)), End: bench.Int64(fmt.Sprint(to * 1e6))}
}

func memoryFacts(dirty int, more ...bench.Fact) func(*bench.Receipt) {
	return func(r *bench.Receipt) {
		r.Facts = append([]bench.Fact{known("memory.private_dirty", dirty), known("memory.pss", 2), known("memory.harness", 3), known("memory.processes", 4)}, more...)
	}
}

// reset is one of 100 ms: 5 verify, 30 of the end of the old tree of which 10 clear it away, 5 layer, 20 criu, a gate of 10, resume 5,
// readiness 20, reseed 5. What nobody else does is 5 + 10 + 5 + 10 + 5.
func resetSteps() []step {
	return []step{
		at("restore", "{}", 0, 60, func(r *bench.Receipt) {
			r.Spans = []bench.Span{span("verify", 0, 5), span("kill", 5, 35), span("clear", 25, 35), span("layer", 35, 40), span("criu", 40, 60)}
		}),
		at("gate", `{"gate":"locks"}`, 60, 70, nil),
		at("resume", "{}", 70, 75, nil),
		at("readiness", "{}", 75, 95, func(r *bench.Receipt) { r.Facts = []bench.Fact{known("first_answer_ns", 80e6)} }),
		at("reseed", "{}", 95, 100, nil),
		at("measure", "{}", 100, 110, memoryFacts(10, known("pages.set-there-ns", 7), known("pages.serve-ns", 100))),
		at("measure", `{"after":"30s"}`, 110, 200, memoryFacts(20)),
		at("act", "{}", 200, 230, func(r *bench.Receipt) { r.Facts = []bench.Fact{known("pages.serve-ns", 150)} }),
	}
}

func TestOwnWorkOfAReset(t *testing.T) {
	r := rollout(2, resetSteps())
	if r.Own != "35000000" {
		t.Errorf("own is %s", r.Own)
	}
	if r.Act != "30000000" || r.WorkingSet != "7" || r.Touched != "50" {
		t.Errorf("act %s, working set %s, touched %s", r.Act, r.WorkingSet, r.Touched)
	}
	if r.Memory == nil || r.Memory.PrivateDirty != "10" || r.Later == nil || r.Later.PrivateDirty != "20" {
		t.Errorf("memory %v, later %v", r.Memory, r.Later)
	}
}

// A reading that failed is none, and never taken from the other one; a slot that is not usable has no work of the engine's.
func TestNoClockOfWhatDidNotHappen(t *testing.T) {
	steps := resetSteps()
	steps[5].receipt.Verdict = engine.Fail
	if r := rollout(2, steps); r.Memory != nil || r.Later == nil || r.WorkingSet != "" || r.Touched != "" {
		t.Errorf("memory %v, later %v, working set %q, touched %q", r.Memory, r.Later, r.WorkingSet, r.Touched)
	}
	steps = resetSteps()
	steps[4].receipt.Verdict = engine.Fail
	steps[7].receipt.Verdict = engine.NotRun
	if r := rollout(2, steps); r.Own != "" || r.Act != "" {
		t.Errorf("own %q, act %q", r.Own, r.Act)
	}
	plain := resetSteps()
	plain[5] = at("measure", "{}", 100, 110, memoryFacts(10))
	if r := rollout(2, plain); r.WorkingSet != "" || r.Touched != "" {
		t.Errorf("working set %q, touched %q", r.WorkingSet, r.Touched)
	}
}

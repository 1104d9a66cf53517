package record

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Classes of rollouts. Only the first two are valid.
const (
	Success             bench.RolloutClass = "success"
	FailedValid         bench.RolloutClass = "failed_valid"
	Invalid             bench.RolloutClass = "invalid"
	EnvFailure          bench.RolloutClass = "env_failure"
	Contamination       bench.RolloutClass = "contamination"
	VerifierUnavailable bench.RolloutClass = "verifier_unavailable"
)

// rollouts groups the steps by rollout.
func rollouts(steps []step) []bench.Rollout {
	by := map[int64][]step{}
	for _, s := range steps {
		if s.plan.Rollout != nil && !s.plan.Release {
			by[*s.plan.Rollout] = append(by[*s.plan.Rollout], s)
		}
	}
	list := []bench.Rollout{}
	for _, index := range slices.Sorted(maps.Keys(by)) {
		list = append(list, rollout(index, by[index]))
	}
	return list
}

func rollout(index int64, members []step) bench.Rollout {
	r := bench.Rollout{Index: index, Before: score(members, "before"), After: score(members, "after"), Clocks: clocks(members), Spans: resetSpans(members)}
	for _, m := range members {
		if r.Slot == "" {
			r.Slot = m.plan.Slot
		}
		r.Warmup = r.Warmup || m.plan.Warmup
		if r.Control == "" {
			r.Control = m.plan.Control
		}
		if r.Branch == "" {
			r.Branch = m.plan.Branch
		}
	}
	r.Memory, r.Later, r.Prepared, r.Stored = memory(members, false), memory(members, true), prepared(members), stored(members)
	r.Own, r.Act = ownWork(members, r.Clocks), act(members)
	r.WorkingSet, r.Touched = filled(members)
	r.Class, r.Reason = classify(members, r.Before, r.After)
	return r
}

// environment are the kinds of steps that give a rollout its slot.
var environment = map[string]bool{"restore": true, "provision": true, "resume": true, "readiness": true, "take": true, "prepare": true, "reseed": true, "drop-cache": true}

// classify decides a rollout, first line that holds:
//
//	a step was interrupted                              invalid
//	reseed judged fail (another rollout's canary)       contamination
//	restore, provision, resume, readiness, prepare,
//	reseed, drop-cache: fail or unknown                             env_failure
//	the canary gate: fail                               contamination
//	evaluate: judged fail, and no score (what the
//	checker stands on changed during the act)           contamination
//	any other gate, or the canary gate unknown          invalid
//	act: fail or unknown                                env_failure if the slot died, else invalid
//	evaluate: an error, unknown, or no score            verifier_unavailable
//	the score before is not 0                           invalid
//	a step was not run                                  invalid
//	the score after                                     1 success, 0 failed_valid
//	no score before or after, or another one            verifier_unavailable
func classify(members []step, before, after *float64) (bench.RolloutClass, string) {
	find := func(is func(step) bool) (step, bool) {
		i := slices.IndexFunc(members, is)
		if i < 0 {
			return step{}, false
		}
		return members[i], true
	}
	for _, rule := range []struct {
		class bench.RolloutClass
		holds func(step) bool
	}{
		{Invalid, func(s step) bool { return s.cause() == engine.CauseInterrupted }},
		{Contamination, func(s step) bool { return s.plan.Kind == "reseed" && s.judgedFail() }},
		{EnvFailure, func(s step) bool { return environment[s.plan.Kind] && s.bad() }},
		{Contamination, func(s step) bool { return s.gate() == "canary" && s.judgedFail() }},
		{Contamination, func(s step) bool { return s.plan.Kind == "evaluate" && s.judgedFail() && s.scoreless() }},
		{Invalid, func(s step) bool { return s.plan.Kind == "gate" && s.bad() }},
		{EnvFailure, func(s step) bool { return s.plan.Kind == "act" && s.bad() && s.cause() == engine.CauseDead }},
		{Invalid, func(s step) bool { return s.plan.Kind == "act" && s.bad() }},
		{VerifierUnavailable, func(s step) bool { return s.plan.Kind == "evaluate" && s.ran() && s.scoreless() }},
	} {
		if s, found := find(rule.holds); found {
			return rule.class, s.reason()
		}
	}
	if before != nil && *before != 0 {
		return Invalid, fmt.Sprintf("not at start: the score before is %v", *before)
	}
	if s, found := find(func(s step) bool { return !s.ran() }); found {
		return Invalid, s.reason()
	}
	switch {
	case before == nil || after == nil:
		return VerifierUnavailable, "the plan asks for no score before or after"
	case *after == 1:
		return Success, ""
	case *after == 0:
		return FailedValid, ""
	}
	return VerifierUnavailable, fmt.Sprintf("the score after is %v, neither 0 nor 1", *after)
}

func (s step) ran() bool { return s.receipt.Verdict != engine.NotRun }

// bad: the step ran and nothing may depend on it.
func (s step) bad() bool { return s.ran() && engine.Stops(s.receipt.Verdict, s.plan.Optional) }

// judgedFail: it is a finding that failed the step, not an error.
func (s step) judgedFail() bool {
	return s.receipt.Verdict == engine.Fail && s.receipt.Error == nil
}

func (s step) cause() string {
	if s.receipt.Error == nil {
		return ""
	}
	return s.receipt.Error.Cause
}

// scoreless: no number can be had from an evaluation.
func (s step) scoreless() bool {
	_, known := s.score()
	return s.receipt.Error != nil || s.receipt.Verdict == engine.VerdictUnknown || !known
}

// gate is the name of the gate that the step is, empty for other steps.
func (s step) gate() string {
	if s.plan.Kind != "gate" {
		return ""
	}
	var p bench.GateParams
	if json.Unmarshal([]byte(s.plan.Params), &p) != nil {
		return ""
	}
	return p.Gate
}

// reason is the step's own account of its verdict.
func (s step) reason() string {
	return engine.StepReason(engine.OutcomeOf(s.receipt))
}

func (s step) fact(name string) (string, bool) {
	for _, f := range s.receipt.Facts {
		if f.Name == name {
			return f.Value, f.Known
		}
	}
	return "", false
}

func (s step) score() (float64, bool) {
	text, known := s.fact("score")
	if !known {
		return 0, false
	}
	v, err := strconv.ParseFloat(text, 64)
	return v, err == nil
}

// score of the evaluation before or after, nil if there is none.
func score(members []step, when string) *float64 {
	for _, s := range members {
		var p bench.EvaluateParams
		if s.plan.Kind != "evaluate" || json.Unmarshal([]byte(s.plan.Params), &p) != nil || p.When != when || s.scoreless() {
			continue
		}
		v, _ := s.score()
		return &v
	}
	return nil
}

// begins is the step with which a reset begins, or -1.
func begins(members []step) int {
	return slices.IndexFunc(members, func(s step) bool { return s.plan.Kind == "restore" || s.plan.Kind == "provision" })
}

// taken is the step by which a rollout took its slot from a pool, or -1.
func taken(members []step) int {
	return slices.IndexFunc(members, func(s step) bool { return s.plan.Kind == "take" })
}

// prepared is how long a slot took to become ready in a pool; empty without one.
func prepared(members []step) bench.Int64 {
	first, last := begins(members), taken(members)
	if first < 0 || last < first {
		return ""
	}
	start, known := number(members[first].receipt.Start)
	latest := start
	for _, s := range members[first:last] {
		if end, ran := number(s.receipt.End); ran && good(s) {
			latest = max(latest, end)
		} else {
			return ""
		}
	}
	if !known {
		return ""
	}
	return bench.Int64(strconv.FormatInt(latest-start, 10))
}

// clocks of the reset, from the start of restore or, cold, of provision; with a
// pool from the taking, and no mechanism returns then. A clock that was not
// reached is absent.
func clocks(members []step) *bench.Clocks {
	first := begins(members)
	if pooled := taken(members); pooled >= 0 {
		members, first = members[pooled:], 0
	}
	if first < 0 {
		return nil
	}
	zero, started := number(members[first].receipt.Start)
	if !started {
		return nil
	}
	since := func(at bench.Int64) bench.Int64 {
		if t, known := number(at); known {
			return bench.Int64(strconv.FormatInt(t-zero, 10))
		}
		return ""
	}
	var c bench.Clocks
	if members[first].plan.Kind != "take" && good(members[first]) {
		c.Mechanism = since(members[first].receipt.End)
	}
	for _, s := range members {
		if s.plan.Kind == "act" {
			break
		}
		switch {
		case (s.plan.Kind == "readiness" || s.plan.Kind == "take") && c.Ready == "":
			if answer, known := s.fact("first_answer_ns"); known {
				c.Answer = since(bench.Int64(answer))
			}
			if good(s) {
				c.Ready = since(s.receipt.End)
				if s.plan.Kind == "take" { // a cold slot is prepared before; a restored one is reseeded after
					c.Usable = c.Ready
				}
			}
		case s.plan.Kind == "reseed" || s.plan.Kind == "prepare" || s.gate() == "hygiene":
			c.Usable = ""
			if !good(s) {
				return &c
			}
			c.Usable = since(s.receipt.End)
		}
	}
	return &c
}

// measures says whether a step reads the slot's memory once it is usable or, later, once more.
func (s step) measures(later bool) bool {
	var p bench.MeasureParams
	return s.plan.Kind == "measure" && good(s) && json.Unmarshal([]byte(s.plan.Params), &p) == nil && (p.After != "") == later
}

// memory is what the measure step read; nil where it read nothing, or not all.
func memory(members []step, later bool) *bench.Memory {
	for _, s := range members {
		if !s.measures(later) {
			continue
		}
		dirty, a := s.fact("memory.private_dirty")
		pss, b := s.fact("memory.pss")
		harness, c := s.fact("memory.harness")
		text, d := s.fact("memory.processes")
		processes, err := strconv.ParseInt(text, 10, 64)
		if a && b && c && d && err == nil {
			m := &bench.Memory{PrivateDirty: bench.Int64(dirty), Pss: bench.Int64(pss), Harness: bench.Int64(harness), Processes: processes}
			cpu, e := s.fact("cpu.harness")
			life, f := s.fact("cpu.harness_life")
			if e && f {
				m.HarnessCPU, m.HarnessLife = bench.Int64(cpu), bench.Int64(life)
			}
			return m
		}
	}
	return nil
}

// stored is what the slot's layer takes after the act.
func stored(members []step) (n bench.Int64) {
	for _, s := range members {
		if s.plan.Kind == "evaluate" && good(s) {
			if text, known := s.fact(engine.FactSlotStorage); known {
				n = bench.Int64(text)
			}
		}
	}
	return n
}

// act is how long the act took.
func act(members []step) bench.Int64 {
	for _, s := range members {
		if s.plan.Kind == "act" && good(s) {
			return s.took()
		}
	}
	return ""
}

// took is the time that a step took; empty where its receipt does not say.
func (s step) took() bench.Int64 {
	start, a := number(s.receipt.Start)
	end, b := number(s.receipt.End)
	if !a || !b {
		return ""
	}
	return bench.Int64(strconv.FormatInt(end-start, 10))
}

// filled are the clocks of a slot whose memory comes back while it runs: until its working set was there, and what was
// spent on pages that were touched from usable until somebody had acted. Empty for any other slot.
func filled(members []step) (set, touched bench.Int64) {
	before, known := int64(0), false
	for _, s := range members {
		switch {
		case s.measures(false):
			if text, is := s.fact("pages.set-there-ns"); is {
				set = bench.Int64(text)
			}
			if text, is := s.fact("pages.serve-ns"); is {
				before, known = number(bench.Int64(text))
			}
		case s.plan.Kind == "act" && good(s) && known:
			if text, is := s.fact("pages.serve-ns"); is {
				if after, ok := number(bench.Int64(text)); ok {
					touched = bench.Int64(strconv.FormatInt(after-before, 10))
				}
			}
		}
	}
	return set, touched
}

// others are spans of a restore or a start that are not the engine's own work: the kernel ends the old tree, tools work, a guest boots.
// What the engine does while one of them lasts, such as the next layer, takes nobody's time.
var others = map[string]bool{"kill": true, "criu": true, "delete": true, "qemu": true, "load": true, "boot": true}

// ownWork is what of a reset until it was usable lies in nobody else's hands: what is left of it without others, and without
// the steps in which the guest is waited for. Of a slot from a pool there is none: its reset is in no clock.
func ownWork(members []step, c *bench.Clocks) bench.Int64 {
	first := begins(members)
	if first < 0 || c == nil || taken(members) >= 0 {
		return ""
	}
	begin, a := number(members[first].receipt.Start)
	length, b := number(c.Usable)
	if !a || !b {
		return ""
	}
	end := begin + length
	type interval struct{ from, to int64 }
	var list, clear []interval // what is cleared away is ours, within the end of the old tree
	add := func(from, to int64) {
		if from, to = max(from, begin), min(to, end); from < to {
			list = append(list, interval{from, to})
		}
	}
	for _, s := range members {
		from, x := number(s.receipt.Start)
		to, y := number(s.receipt.End)
		if !x || !y {
			continue
		}
		switch s.plan.Kind {
		case "readiness", "reseed", "prepare":
			add(from, to)
		case "restore", "provision", "resume":
			for _, span := range s.receipt.Spans {
				start, known := number(span.Start)
				stop, also := number(span.End)
				switch {
				case !known || !also:
				case span.Name == "clear":
					clear = append(clear, interval{from + start, from + stop})
				case others[span.Name]:
					add(from+start, from+stop)
				}
			}
		}
	}
	slices.SortFunc(list, func(x, y interval) int { return cmp.Compare(x.from, y.from) })
	ours, at := length, begin
	for _, i := range list {
		if i.to <= at {
			continue
		}
		from := max(i.from, at)
		ours -= i.to - from
		for _, c := range clear {
			if a, b := max(c.from, from), min(c.to, i.to); a < b {
				ours += b - a
			}
		}
		at = i.to
	}
	return bench.Int64(strconv.FormatInt(ours, 10))
}

func good(s step) bool { return s.ran() && !s.bad() }

func number(text bench.Int64) (int64, bool) {
	n, err := strconv.ParseInt(string(text), 10, 64)
	return n, err == nil
}

// resetSpans are the parts of restore and resume by name; parts of one name add up.
func resetSpans(members []step) map[string]bench.Int64 {
	sums := map[string]int64{}
	for _, s := range members {
		if s.plan.Kind != "restore" && s.plan.Kind != "resume" {
			continue
		}
		for _, span := range s.receipt.Spans {
			start, known := number(span.Start)
			end, alsoKnown := number(span.End)
			if known && alsoKnown {
				sums[span.Name] += end - start
			}
		}
	}
	if len(sums) == 0 {
		return nil
	}
	texts := map[string]bench.Int64{}
	for name, ns := range sums {
		texts[name] = bench.Int64(strconv.FormatInt(ns, 10))
	}
	return texts
}

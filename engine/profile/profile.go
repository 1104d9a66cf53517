// Package profile says where the time of a run's resets went. It exists so that a
// part that could go is seen, with its owner, from the record of any run.
//
// Always holds: it reads receipts and facts and measures nothing; parts do not
// overlap; what no receipt, span or fact accounts for is a line of its own, never
// spread over the others; what is not known has a reason and no number.
package profile

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/stats"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// kinds of parts, in the order in which they are told.
var kinds = []bench.ProfilePart{
	{Name: "verify", Owner: "us", Text: "the checkpoint is as it was sealed, and of this image, kernel, CPU and program"},
	{Name: "kill", Owner: "kernel", Text: "the old tree ends"},
	{Name: "clear", Owner: "us", Text: "what was the old tree's goes: control groups, upper layer, folder"},
	{Name: "place", Owner: "us", Text: "folders, limits, the ledger"},
	{Name: "holder", Owner: "us", Text: "the process that holds the network namespace"},
	{Name: "layer", Owner: "us", Text: "a fresh upper layer is mounted, and what must be copied up is"},
	{Name: "delete", Owner: "tool", Text: "runc takes the old container away"},
	{Name: start, Owner: "criu", Text: "criu's program (on oci runc around it) starts and ends, outside of what criu times; tasks come to a stop"},
	{Name: namespaces, Owner: "criu", Text: "hostname, IPC, network, mounts"},
	{Name: helpers, Owner: "criu", Text: "programs that criu starts and waits for, as its log names them"},
	{Name: forks, Owner: "criu", Text: "tasks are made"},
	{Name: pages, Owner: "criu", Text: "mappings, page contents and threads of all tasks, side by side"},
	{Name: rest, Owner: "criu", Text: "what criu times beside the parts above that are known: images, files, sockets"},
	{Name: whole, Owner: "criu", Text: "criu from start to end, which cannot be split"},
	{Name: "qemu", Owner: "tool", Text: "the machine's program starts"},
	{Name: "load", Owner: "tool", Text: "the snapshot is loaded"},
	{Name: "boot", Owner: "guest", Text: "the kernel boots"},
	{Name: "start", Owner: "us", Text: "namespaces, mounts and the first process"},
	{Name: "repair", Owner: "us", Text: "locks that criu lost are put back"},
	{Name: "gates before", Owner: "us", Text: "gates before the guest is asked anything: on a restored slot those of the stopped tree"},
	{Name: "resume", Owner: "us", Text: "the tree is let run, and that is read back"},
	{Name: "first answer", Owner: "guest", Text: "until the guest server answers"},
	{Name: "ready", Owner: "guest", Text: "until the rule of readiness holds"},
	{Name: "gates after", Owner: "us", Text: "gates on the ready slot"},
	{Name: "reseed", Owner: "guest", Text: "the slot is made unlike its siblings, or a cold one prepared"},
	{Name: between, Owner: "us", Text: "no step of the reset runs: receipts, and other slots"},
	{Name: lost, Text: "in a step, and in no part of it that the record knows"},
}

// Names that the code decides by.
const (
	start, namespaces, helpers, forks, pages = "criu start", "namespaces", "helper processes", "forks", "pages"
	rest, whole                              = "criu, the rest", "criu, not split"
	between, lost                            = "between steps", "not accounted"
)

// Of a run that passed: its plan and receipts, and the record that says which
// rollouts are measured. Of another run there is no reset and no number.
func Of(r bench.Record, plan bench.Plan, receipts []bench.Receipt) bench.Profile {
	p := bench.Profile{Run: r.Run, Arm: r.Arm, Reset: r.Reset, Emulated: engine.Emulated(r.Facts), Whole: stats.Median(nil), Parts: []bench.ProfilePart{}}
	if r.Verdict != engine.RunPassed {
		return p
	}
	members := map[int64][]bench.Receipt{}
	rollout := map[string]int64{}
	for _, s := range plan.Steps {
		if s.Rollout != nil && !s.Release {
			rollout[s.Id] = *s.Rollout
		}
	}
	for _, e := range receipts {
		if i, of := rollout[e.Step]; of && e.Event == "step" {
			members[i] = append(members[i], e)
		}
	}
	var all []reset
	for _, o := range r.Rollouts {
		if o.Control != "" || o.Warmup || o.Class != record.Success && o.Class != record.FailedValid {
			continue
		}
		if s, ok := split(members[o.Index]); ok {
			all = append(all, s)
		}
	}
	p.N = int64(len(all))
	var wholes []float64
	for _, s := range all {
		wholes = append(wholes, float64(s.whole))
	}
	p.Whole = stats.Median(wholes)
	for _, k := range names(all) {
		p.Parts = append(p.Parts, part(k, all))
	}
	return p
}

// names are the parts that any reset has, in order; what this package does not
// know by name comes before what is not accounted for.
func names(all []reset) (list []bench.ProfilePart) {
	has := map[string]bool{}
	for _, s := range all {
		for name := range s.parts {
			has[name] = true
		}
		for name := range s.unknown {
			has[name] = true
		}
	}
	for _, k := range kinds {
		if has[k.Name] {
			list = append(list, k)
		}
		delete(has, k.Name)
	}
	var others []bench.ProfilePart
	for name := range has {
		others = append(others, bench.ProfilePart{Name: name, Owner: "us", Text: "a part that the arm names so"})
	}
	slices.SortFunc(others, func(a, b bench.ProfilePart) int { return cmp.Compare(a.Name, b.Name) })
	at := slices.IndexFunc(list, func(k bench.ProfilePart) bool { return k.Name == between || k.Name == lost })
	if at < 0 {
		at = len(list)
	}
	return slices.Insert(list, at, others...)
}

func part(k bench.ProfilePart, all []reset) bench.ProfilePart {
	var sample []float64
	var sum, of float64
	for _, s := range all {
		if why, is := s.unknown[k.Name]; is {
			k.Reason = why
			continue
		}
		of += float64(s.whole)
		if v, has := s.parts[k.Name]; has {
			sample = append(sample, float64(v))
			sum += float64(v)
		}
	}
	k.N = int64(len(sample))
	if len(sample) > 0 {
		m := stats.Median(sample)
		k.P50 = &m
		if of > 0 {
			share := sum / of
			k.Share = &share
		}
	}
	return k
}

// reset is one reset, split: nanoseconds by part, and parts that are not known with the reason.
type reset struct {
	whole   int64
	parts   map[string]int64
	unknown map[string]string
}

// interval is a part's time, in nanoseconds since the run's start.
type interval struct {
	name     string
	from, to int64
}

// split takes the receipts of a rollout apart; not ok where its reset has no
// beginning or no end.
func split(members []bench.Receipt) (s reset, ok bool) {
	s = reset{parts: map[string]int64{}, unknown: map[string]string{}}
	var first, ready *bench.Receipt
	pooled := false
	for i := range members {
		switch m := &members[i]; m.Kind {
		case "restore", "provision":
			if first == nil {
				first = m
			}
		case "readiness":
			if ready == nil {
				ready = m
			}
		case "take":
			pooled = true
		}
	}
	if first == nil || ready == nil {
		return s, false
	}
	begin, a := number(first.Start)
	end, b := number(ready.End)
	readyFrom, c := number(ready.Start)
	if !a || !b || !c {
		return s, false
	}
	// What follows belongs to the reset until the slot is usable; a pool makes slots ready and has them wait.
	for _, m := range members {
		if to, known := number(m.End); known && !pooled && (m.Kind == "reseed" || m.Kind == "prepare") {
			end = max(end, to)
		}
	}
	s.whole = end - begin

	var list, steps []interval
	for _, m := range members {
		from, a := number(m.Start)
		to, b := number(m.End)
		if !a || !b {
			continue
		}
		step := interval{lost, from, to}
		switch m.Kind {
		case "restore", "provision":
			list = append(list, spans(m, from)...)
		case "resume":
			step.name = "resume"
		case "reseed", "prepare":
			step.name = "reseed"
		case "gate":
			step.name = "gates after"
			if from < readyFrom {
				step.name = "gates before"
			}
		case "readiness":
			if answer, known := fact(m, "first_answer_ns"); known && answer >= from && answer <= to {
				list = append(list, interval{"first answer", from, answer}, interval{"ready", answer, to})
			} else {
				s.unknown["first answer"] = "the record does not say when the guest server answered"
				step.name = "ready"
			}
		}
		steps = append(steps, step)
	}
	// A part within a part is the narrower one's, a step's time first that of its parts.
	slices.SortStableFunc(list, func(a, b interval) int { return cmp.Compare(a.to-a.from, b.to-b.from) })
	slices.SortStableFunc(steps, func(a, b interval) int { // while a known step runs the time is its
		return cmp.Compare(btoi(a.name == lost), btoi(b.name == lost))
	})
	s.claim(append(append(list, steps...), interval{between, begin, end}), begin, end)
	s.splitCRIU(members)
	return s, true
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// spans are the parts of a step that the arm told.
func spans(m bench.Receipt, begin int64) (list []interval) {
	for _, span := range m.Spans {
		from, a := number(span.Start)
		to, b := number(span.End)
		if a && b {
			list = append(list, interval{span.Name, begin + from, begin + to})
		}
	}
	return list
}

// claim gives each moment from begin to end to the first interval that holds it.
func (s reset) claim(list []interval, begin, end int64) {
	cuts := []int64{begin, end}
	for _, i := range list {
		cuts = append(cuts, min(max(i.from, begin), end), min(max(i.to, begin), end))
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	for n := 1; n < len(cuts); n++ {
		from, to := cuts[n-1], cuts[n]
		for _, i := range list {
			if i.from <= from && i.to >= to {
				s.parts[i.name] += to - from
				break
			}
		}
	}
}

// splitCRIU divides the time in which criu ran by what it says of itself.
func (s reset) splitCRIU(members []bench.Receipt) {
	total, has := s.parts["criu"]
	if !has {
		return
	}
	delete(s.parts, "criu")
	told := func(name string) (int64, bool) {
		for _, m := range members {
			if m.Kind == "restore" || m.Kind == "resume" {
				if v, known := fact(m, "tool.criu."+name+"-ns"); known {
					return v, true
				}
			}
		}
		return 0, false
	}
	cannot := func(why string, names ...string) {
		for _, n := range names {
			s.unknown[n] = why
		}
	}
	restore, a := told("restore")
	forking, b := told("forking")
	if !a || !b || restore > total {
		why := "criu's own statistics are not in the record"
		if a && b {
			why = "criu's own time of the restore is longer than the time in which it ran"
		}
		s.parts[whole] = total
		cannot(why, start, namespaces, helpers, forks, pages, rest)
		return
	}
	s.parts[start] = total - restore
	n, x := told("log-namespaces")
	h, y := told("log-helpers")
	p, z := told("log-pages")
	left := restore - forking
	switch {
	case !x || !y || !z:
		cannot(`criu's log has no times of them: set log: "debug" on the drums arm`, namespaces, helpers, pages)
	case n < 0 || n+h+p > left:
		cannot("the times of criu's log do not fit in its statistics", namespaces, helpers, pages)
	default:
		s.parts[namespaces], s.parts[helpers], s.parts[pages] = n, h, p
		left -= n + h + p
	}
	if left < 0 {
		cannot("criu's time to make tasks is longer than its restore", forks, rest)
		s.parts[whole] = restore
		return
	}
	s.parts[forks], s.parts[rest] = forking, left
}

func fact(m bench.Receipt, name string) (int64, bool) {
	for _, f := range m.Facts {
		if f.Name == name && f.Known {
			return number(bench.Int64(f.Value))
		}
	}
	return 0, false
}

func number(text bench.Int64) (int64, bool) {
	n, err := strconv.ParseInt(string(text), 10, 64)
	return n, err == nil
}

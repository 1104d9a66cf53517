package record

import (
	"fmt"
	"maps"
	"slices"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A run whose engine ended in its middle is gone on with in the same chain: a receipt
// "resume" says when, by whom, and which steps' earlier receipts count no more. What
// was finished stays; what was not is named as interrupted, and has no number.

// EventVoid is what Counted makes of a receipt that counts no more.
const EventVoid = "void"

// Void marks, in place, the receipts of steps that a later resume runs anew, and
// returns how many there are. at is the receipt with number i of n.
func Void(n int, at func(i int) *bench.Receipt) (voided int) {
	last := map[string]int{}
	for i := range n {
		switch r := at(i); r.Event {
		case "step":
			last[r.Step] = i
		case "resume":
			for _, id := range r.Void {
				if k, has := last[id]; has {
					at(k).Event = EventVoid
					delete(last, id)
					voided++
				}
			}
		}
	}
	return voided
}

// counted are the receipts without those that count no more.
func counted(receipts []bench.Receipt) []bench.Receipt {
	if Void(len(receipts), func(i int) *bench.Receipt { return &receipts[i] }) == 0 {
		return receipts
	}
	return slices.DeleteFunc(receipts, func(r bench.Receipt) bool { return r.Event == EventVoid })
}

// resume takes away the receipts that a resume says are void, and says what was
// interrupted. It refuses one that drops something finished, or keeps half of it: a
// number that nobody likes is not run again until it pleases.
func resume(steps []step, index map[string]int, r bench.Receipt, before bench.Receipt, attempt int64) ([]bench.Interrupted, error) {
	wrong := func(format string, args ...any) error {
		return &engine.Error{Op: "build record", Err: fmt.Errorf("receipt %d resumes the run: %s", r.Seq, fmt.Sprintf(format, args...))}
	}
	void := map[string]bool{}
	for _, id := range r.Void {
		i, planned := index[id]
		if !planned || steps[i].receipt.Event == "" || void[id] {
			return nil, wrong("step %s has no receipt that it could void", id)
		}
		void[id] = true
	}
	list := make([]bench.Step, len(steps))
	for i, s := range steps {
		list[i] = s.plan
	}
	unit := engine.Units(list)
	ended, dropped, kept := map[int]bool{}, map[int]string{}, map[int]string{}
	for _, s := range steps {
		u := unit(s.plan)
		if u < 0 || s.plan.Release {
			continue
		}
		has := s.receipt.Event != ""
		if known, seen := ended[u]; !seen || known {
			ended[u] = has && s.cause() != engine.CauseInterrupted
		}
		switch {
		case void[s.plan.Id]:
			dropped[u] = s.plan.Id
		case has:
			kept[u] = s.plan.Id
		}
	}
	for u, id := range dropped {
		if ended[u] && stands(steps, void) {
			return nil, wrong("it drops step %s of a rollout that was finished", id)
		}
		if also := kept[u]; also != "" {
			return nil, wrong("it drops step %s and keeps step %s of the same rollout", id, also)
		}
	}
	for u, id := range kept {
		if !ended[u] {
			return nil, wrong("it keeps step %s of a rollout that was not finished", id)
		}
	}
	var out []bench.Interrupted
	last := map[int64]string{}
	slots := map[int64]string{}
	for _, s := range steps {
		if s.plan.Rollout == nil || s.plan.Release || !void[s.plan.Id] || !s.ran() {
			continue
		}
		n := *s.plan.Rollout
		slots[n] = s.plan.Slot
		last[n] = s.plan.Id
	}
	line := bench.Interrupted{Attempt: attempt, Class: string(Invalid), Resumed: r.Time, After: before.Seq}
	for _, n := range slices.Sorted(maps.Keys(last)) {
		l := line
		l.Rollout, l.Slot = &n, slots[n]
		l.Reason = fmt.Sprintf("interrupted: the engine ended during the rollout, or during one of its window or round; the last of its steps to end was %s", last[n])
		out = append(out, l)
	}
	if len(out) == 0 {
		line.Reason = "interrupted: the engine ended before another step had"
		if before.Step != "" {
			line.Reason = "interrupted: the engine ended outside of the rollouts; the last step to end was " + before.Step
		}
		out = append(out, line)
	}
	for id := range void {
		steps[index[id]].receipt = bench.Receipt{}
	}
	return out, nil
}

// stands: the checkpoint that rollouts began with stays. Where it is made anew, what began with the old one goes with it.
func stands(steps []step, void map[string]bool) bool {
	for _, s := range steps {
		if s.plan.Kind == "dump" && s.plan.Rollout == nil && s.plan.Round == nil && void[s.plan.Id] {
			return false
		}
	}
	return true
}

// resumedFact says of a record how often the run was resumed.
func resumedFact(receipts []bench.Receipt) []bench.Fact {
	n, last := 0, bench.Receipt{}
	for _, r := range receipts {
		if r.Event == "resume" {
			n, last = n+1, r
		}
	}
	if n == 0 {
		return nil
	}
	return []bench.Fact{{Name: "resumed", Known: true, Value: fmt.Sprintf("%d of its attempts were interrupted; the last went on at %s, after receipt %d", n, last.Time, last.Seq-1), Source: "event chain", View: engine.ViewHost}}
}

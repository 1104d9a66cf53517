package engine

import "github.com/drumsbench/drumsbench/schemas/bench"

// Kept is a slot that a run did not release, with what it stands on. Its things
// stay owned in the ledger.
type Kept struct {
	// Slot as the plan names it: that of the first step that failed, if it has a place, else the first that has one.
	Slot string
	Root Root
	// Place is a Slot, a Stopped or a Place, as the last step that had it left it.
	Place Place
	// Checkpoint that the run sealed or opened; its Dir is empty if there is none.
	Checkpoint Checkpoint
}

// keeps says whether a release step has to leave its thing alone. Other slots
// than the one that is kept are released all the same.
func (r *run) keeps(s bench.Step) bool {
	k := r.keeping()
	return k != nil && (s.Slot == "" || s.Slot == k.Slot)
}

// keeping asks, once, whether a slot is to be kept, and which.
func (r *run) keeping() *Kept {
	if r.asked || r.Keep == nil {
		return r.kept
	}
	r.asked = true
	var so []Outcome
	for i, o := range r.outcomes {
		if r.states[i] == finished {
			so = append(so, Outcome{Verdict: o.Verdict, Optional: r.plan.Steps[i].Optional})
		}
	}
	if k := r.choose(); k != nil && r.Keep(RunVerdict(so)) {
		r.kept = k
	}
	return r.kept
}

// choose the slot to keep; nil if none has a place.
func (r *run) choose() *Kept {
	var first *Kept
	for i, s := range r.plan.Steps {
		if s.Slot == "" || s.Release {
			continue
		}
		fault := r.bad[i] && r.outcomes[i].Verdict != NotRun
		if first != nil && !fault {
			continue
		}
		k := r.had(s.Slot)
		if k != nil && fault {
			return k
		}
		if first == nil {
			first = k
		}
	}
	return first
}

// had gathers what the steps left of a slot; nil if it never had a place.
func (r *run) had(slot string) *Kept {
	k := &Kept{Slot: slot}
	for i, v := range r.values {
		s := r.plan.Steps[i]
		if s.Release {
			continue
		}
		parts := []any{v}
		if two, ok := v.(pair); ok {
			parts = []any{two.part(partA), two.part(partB)}
		}
		for _, part := range parts {
			if isNil(part) {
				continue
			}
			switch v := part.(type) {
			case Checkpoint:
				if v.Dir != "" {
					k.Checkpoint = v
				}
			case Place:
				if s.Slot == slot {
					k.Place = v
				}
			case Root:
				k.Root = v
			}
		}
	}
	if k.Place == nil {
		return nil
	}
	return k
}

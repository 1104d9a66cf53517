package gate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// ClockTolerance is how far a slot's clock may be from the host's. A clock that came back with a checkpoint is behind
// by the checkpoint's age; a machine whose clock was set is right but for its drift since.
const ClockTolerance = 10 * time.Second

// stays says why a thing that every slot has may stay as it was in the checkpoint.
var stays = map[string]string{
	"live-token":     "it shows that memory came back",
	"boot-id":        "it is the kernel's, which slots share or which came back with its machine",
	"address-layout": "the kernel drew it when the process started",
}

// JudgeHygiene compares siblings item by item, with a pair of cold slots, which were never one, as the control.
//
//	a part of the identity        the same in two siblings: fail; not read: unknown
//	the clock                     further from the host's than ClockTolerance: fail; not read: unknown
//	a residual, declared          the same in all siblings and not in the cold pair: pass, named with its reason
//	                              the same in any two slots, or not the same in siblings: pass, named
//	                              not read, and the manifest's: unknown
//
// The trunk that siblings were restored from is one of them.
func JudgeHygiene(pair, slots []engine.Identity, h *bench.Hygiene) (j engine.Judgement) {
	if len(slots) < 2 || len(pair) != 2 {
		j.Add(engine.VerdictUnknown, "slots", "there are no two siblings, and two cold slots, to compare")
		return j
	}
	names := map[string]bool{}
	for _, s := range slots {
		for n := range s.Parts {
			names[n] = true
		}
	}
	if len(names) == 0 {
		j.Add(engine.VerdictUnknown, "identity", "no part of it was read")
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		of := map[string]string{} // value to the first slot that has it
		compared := 0
		for _, s := range slots {
			v, ok := known(&j, s.Slot+" "+name, s.Parts[name])
			if !ok || v == "" {
				continue // a slot without a machine id shares none
			}
			compared++
			if first, twice := of[v]; twice {
				f := j.Add(engine.Fail, name, fmt.Sprintf("is the same in %s and %s", first, s.Slot))
				f.Have, f.Hint = v, "the slot was not made its own after the restore"
			} else {
				of[v] = s.Slot
			}
		}
		fact(&j, "differs."+name, compared, "guest server of each slot", engine.ViewGuest)
		fact(&j, "cold."+name, sameText(same(pair, part(name))), "guest server of two cold slots", engine.ViewGuest)
	}
	for _, s := range slots {
		off, ok := known(&j, s.Slot+" clock", s.Clock)
		if !ok {
			continue
		}
		if off.Abs() > ClockTolerance {
			f := j.Add(engine.Fail, "clock", "of "+s.Slot+" is not the host's")
			f.Want, f.Have, f.Hint = "at most "+ClockTolerance.String()+" off", off.String(), "the clock was not set after the restore"
		}
		fact(&j, "clock."+s.Slot, off.String(), s.Clock.Source(), s.Clock.View())
	}
	judgeResidue(&j, pair, slots, h)
	slices.SortFunc(j.Facts, func(a, b bench.Fact) int { return strings.Compare(a.Name, b.Name) })
	return j
}

func judgeResidue(j *engine.Judgement, pair, slots []engine.Identity, h *bench.Hygiene) {
	why, asked := maps.Clone(stays), map[string]bool{}
	if h != nil {
		for _, r := range h.Residuals {
			why[string(r.Name)], asked[string(r.Name)] = r.Why, true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(slots[0].Residue)) {
		siblings, cold := same(slots, residue(name)), same(pair, residue(name))
		said := "not the same in every sibling"
		switch {
		case siblings == nil || cold == nil:
			said = "not known"
			for _, s := range slices.Concat(pair, slots) {
				if _, ok := s.Residue[name].Get(); !ok {
					said += ": " + s.Slot + ": " + s.Residue[name].Reason()
					break
				}
			}
			if asked[name] {
				j.Add(engine.VerdictUnknown, name, said)
			}
		case *siblings && *cold:
			said = "the same in any two slots"
		case *siblings:
			said = "the same in every sibling, not in two cold slots; declared: " + why[name]
		}
		fact(j, "residue."+name, said, "guest server of each slot", engine.ViewGuest)
	}
}

func part(name string) func(engine.Identity) engine.Reading[string] {
	return func(s engine.Identity) engine.Reading[string] { return s.Parts[name] }
}

func residue(name string) func(engine.Identity) engine.Reading[string] {
	return func(s engine.Identity) engine.Reading[string] { return s.Residue[name] }
}

// same says whether a thing is the same in all slots; nil is not known.
func same(slots []engine.Identity, of func(engine.Identity) engine.Reading[string]) *bool {
	out := true
	for _, s := range slots {
		first, ok := of(slots[0]).Get()
		v, also := of(s).Get()
		if !ok || !also {
			return nil
		}
		out = out && v == first
	}
	return &out
}

func sameText(same *bool) string {
	switch {
	case same == nil:
		return "not known"
	case *same:
		return "the same in two cold slots"
	}
	return "not the same in two cold slots"
}

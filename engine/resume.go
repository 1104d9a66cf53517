package engine

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Resume is what an executor goes on with where another ended in the middle of the
// same plan. Kept steps are not run again; all others are.
type Resume struct {
	// Kept has the receipts of the steps that are finished, as [Plan.Keep] chooses them.
	Kept map[string]bench.Receipt
	// Values that kept steps gave and that others still need.
	Values map[string]any
	// Around stands around the function of a step that is run again. What it returns in
	// others are values of kept steps; Late names those steps, and the step that each waits
	// for: until that has passed nobody who needs them runs.
	Around map[string]Around
	Late   map[string]string
	// Since is when the run started first; the clock of the run goes on from there.
	Since time.Time
	// Receipt is written in place of run_start.
	Receipt bench.Receipt
}

// Around runs a step's own function, or does something in its place.
type Around func(ctx context.Context, x *Exec, own func() (any, error)) (value any, others map[string]any, err error)

// orderly are values that say no more than that something was done: who needs one is served by the receipt.
var orderly = []reflect.Type{reflect.TypeFor[Ready](), reflect.TypeFor[Judged](), reflect.TypeFor[Measured](), reflect.TypeFor[Inspected](), reflect.TypeFor[Acted](), reflect.TypeFor[Released](),
	reflect.TypeFor[Place]()} // who takes a place that is gone makes a new one

// Keep chooses what of an interrupted run stays, by the receipts that its steps have,
// and names the steps whose receipts count no more.
//
//	survey, mount, an opened checkpoint      always anew: they are about the host as it is
//	a rollout all of whose steps have ended  stays, if all others of its measurement windows and its round have, too
//	any other step of a rollout or a round   anew, the whole rollout
//	the steps that make the checkpoint       stay once it was sealed, else all anew
//	release, and what looks at the host      anew
//
// recovers says which steps' values can be had again; needed are those of kept steps
// that have to be. ErrRefused where something new
// needs a value of something that stays and it cannot.
func (p *Plan) Keep(receipts map[string]bench.Receipt, recovers func(bench.Step) bool) (kept map[string]bench.Receipt, void, needed []string, err error) {
	unit := p.units()
	whole := map[int]bool{}
	for i, s := range p.Steps {
		if unit[i] < 0 || s.Release {
			continue
		}
		r, ended := receipts[s.Id]
		ended = ended && (r.Error == nil || r.Error.Cause != CauseInterrupted)
		if known, seen := whole[unit[i]]; !seen || known {
			whole[unit[i]] = ended
		}
	}
	sealed := true // nothing to seal in a plan without a dump before its rollouts
	for i, s := range p.Steps {
		if unit[i] < 0 && s.Kind == kindDump {
			r, ended := receipts[s.Id]
			sealed = ended && !Stops(r.Verdict, s.Optional)
		}
	}
	stays := make([]bool, len(p.Steps))
	for i, s := range p.Steps {
		_, has := receipts[s.Id]
		switch {
		case !has, s.Release, slices.Contains(anew, s.Kind):
		case unit[i] >= 0:
			stays[i] = whole[unit[i]] && sealed
		default:
			stays[i] = sealed
		}
	}
	for i := range p.nodes {
		if stays[i] {
			continue
		}
		for _, in := range p.nodes[i].inputs {
			if in.builder == nil || !stays[in.step] || in.typ == nil || slices.Contains(orderly, in.typ) {
				continue
			}
			if from := p.Steps[in.step]; recovers(from) {
				if !slices.Contains(needed, from.Id) {
					needed = append(needed, from.Id)
				}
				continue
			}
			return nil, nil, nil, &Error{Op: "resume run", Err: fmt.Errorf("%w: step %s needs the %s of step %s, which ended with the engine", ErrRefused, p.Steps[i].Id, typeName(in.typ), p.Steps[in.step].Id),
				Hint: "run it again from its beginning"}
		}
	}
	kept = map[string]bench.Receipt{}
	for i, s := range p.Steps {
		r, has := receipts[s.Id]
		switch {
		case stays[i]:
			kept[s.Id] = r
		case has:
			void = append(void, s.Id)
		}
	}
	return kept, void, needed, nil
}

// kindDump is the kind of the step that seals a checkpoint; anew are those that are about the host, or about things of this process.
const kindDump = "dump"

var anew = []string{"survey", "mount", "checkpoint", "baseline"}

// units says of each step which rollouts it is finished with: those of a round, and
// those that share a measurement window; -1 for a step of none.
func (p *Plan) units() []int {
	units := Units(p.Steps)
	unit := make([]int, len(p.Steps))
	for i, s := range p.Steps {
		unit[i] = units(s)
	}
	return unit
}

// Units groups the rollouts of a plan that stand or fall together when a run is
// resumed: those of one round, and those that share a measurement window. The function
// that it returns is the group of a step; -1 for one that belongs to no rollout.
func Units(steps []bench.Step) func(bench.Step) int {
	group := map[string]int{}
	var parent []int
	var find func(int) int
	find = func(i int) int {
		if parent[i] != i {
			parent[i] = find(parent[i])
		}
		return parent[i]
	}
	at := func(name string) int {
		if _, known := group[name]; !known {
			group[name] = len(parent)
			parent = append(parent, len(parent))
		}
		return group[name]
	}
	names := func(s bench.Step) (list []string) {
		if s.Rollout != nil {
			list = append(list, fmt.Sprint("rollout ", *s.Rollout))
		}
		if s.Round != nil {
			list = append(list, fmt.Sprint("round ", *s.Round))
		}
		if len(list) > 0 && s.Window != "" {
			list = append(list, "window "+s.Window)
		}
		return list
	}
	for _, s := range steps {
		list := names(s)
		for _, n := range list {
			a, b := find(at(list[0])), find(at(n))
			parent[max(a, b)] = min(a, b)
		}
	}
	return func(s bench.Step) int {
		list := names(s)
		if len(list) == 0 {
			return -1
		}
		return find(at(list[0]))
	}
}

// resumed marks what another executor finished, and passes it on.
func (r *run) resumed() {
	if r.Resume == nil {
		return
	}
	for i, s := range r.plan.Steps {
		receipt, kept := r.Resume.Kept[s.Id]
		if !kept {
			continue
		}
		r.states[i] = finished
		r.outcomes[i] = OutcomeOf(receipt)
		r.values[i] = r.Resume.Values[s.Id]
		r.reported++
	}
	index := map[string]int{}
	for i, s := range r.plan.Steps {
		index[s.Id] = i
	}
	r.late = map[int][]int{}
	for i, s := range r.plan.Steps {
		if by, late := r.Resume.Late[s.Id]; late {
			r.late[index[by]] = append(r.late[index[by]], i)
		}
	}
	for i, s := range r.plan.Steps {
		if receipt, kept := r.Resume.Kept[s.Id]; kept && r.Resume.Late[s.Id] == "" {
			r.conclude(i, Stops(receipt.Verdict, s.Optional))
		}
	}
}

// around puts what a resumption does around a step's own function.
func (r *run) around(i int, own stepFunc) stepFunc {
	if r.Resume == nil {
		return own
	}
	around := r.Resume.Around[r.plan.Steps[i].Id]
	if around == nil {
		return own
	}
	return func(ctx context.Context, x *Exec) (any, error) {
		value, others, err := around(ctx, x, func() (any, error) { return own(ctx, x) })
		x.others = others
		return value, err
	}
}

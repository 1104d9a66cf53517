package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// remaining counts the rollouts of a run, and says how long the steps that are left
// take by what steps of their kind took in this run: the median of each, as often
// as the plan still has it. It is for people and in no record.
type remaining struct {
	total int           // rollouts of the plan, controls and warm-ups included
	left  map[int64]int // steps of each rollout that have not ended
	begun map[int64]bool
	steps map[kindOf]int
	took  map[kindOf][]time.Duration
	sum   time.Duration // of all that ended
}

// kindOf tells apart what takes different times: what a step is within its rollout,
// and whether the rollout is a control, in which somebody else acts.
type kindOf struct {
	name    string
	control bool
}

func kindOfStep(s bench.Step) kindOf {
	_, name, _ := strings.Cut(s.Id, "/")
	return kindOf{s.Kind + "/" + name, s.Control != ""}
}

func newRemaining(plan []bench.Step) *remaining {
	r := &remaining{left: map[int64]int{}, begun: map[int64]bool{}, steps: map[kindOf]int{}, took: map[kindOf][]time.Duration{}}
	for _, s := range plan {
		if s.Rollout != nil {
			r.left[*s.Rollout]++
			r.steps[kindOfStep(s)]++
		}
	}
	r.total = len(r.left)
	return r
}

// Event takes a step that ended into account; true where it was the last one of its rollout.
func (r *remaining) Event(e engine.Event) bool {
	if e.Kind != engine.StepFinished {
		return false
	}
	k := kindOfStep(e.Step)
	if e.Verdict != engine.NotRun {
		r.took[k] = append(r.took[k], e.Elapsed)
		r.sum += e.Elapsed
	}
	if e.Step.Rollout == nil {
		return false
	}
	if e.Verdict != engine.NotRun {
		r.begun[*e.Step.Rollout] = true
	}
	r.steps[k]--
	r.left[*e.Step.Rollout]--
	return r.left[*e.Step.Rollout] == 0
}

// done counts the rollouts that ended, and those that nobody begins any more.
func (r *remaining) done() (ended, out int) {
	for i, left := range r.left {
		switch {
		case left > 0:
		case r.begun[i]:
			ended++
		default:
			out++
		}
	}
	return ended, out
}

// time that the rollouts still take, elapsed being the run's time so far: steps
// that run side by side, and what passes between them, count as they did until now.
// Not known while a kind of step that is left has never ended.
func (r *remaining) time(elapsed time.Duration) (time.Duration, bool) {
	var steps time.Duration
	for k, n := range r.steps {
		if n == 0 {
			continue
		}
		took := r.took[k]
		if len(took) == 0 {
			k.control = !k.control
			took = r.took[k]
		}
		if len(took) == 0 {
			return 0, false
		}
		took = slices.Sorted(slices.Values(took))
		steps += took[len(took)/2] * time.Duration(n)
	}
	if r.sum <= 0 {
		return 0, false
	}
	return time.Duration(float64(steps) * float64(elapsed) / float64(r.sum)), true
}

// text says how far the rollouts are; empty for a plan without any.
func (r *remaining) text(elapsed time.Duration) string {
	if r.total == 0 {
		return ""
	}
	ended, out := r.done()
	text := fmt.Sprintf("rollout %d of %d", ended, r.total)
	if out > 0 {
		text += fmt.Sprintf(", %d not begun", out)
	}
	switch left, known := r.time(elapsed); {
	case ended+out == r.total:
	case known:
		text += ", about " + left.Round(time.Second).String() + " left"
	default:
		text += ", time left not known yet"
	}
	return text
}

package compile

import (
	"fmt"
	"reflect"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// mostBranches are alive at the same time, at most.
const mostBranches = 16

// branching checks a task that branches.
//
//	prefix, witness   at least one command: what is carried over, and what shows it
//	branches          two at least; names differ, and so does what two of them do
//	isolation         parses and is above 0; period is at most watch
//	policy            the oracle: branches have acts of their own
//	experiment        one slot and no pool (each round has a slot for each branch), no sweep, no sustained window
func (r *rules) branching(m bench.Manifest) {
	b := m.Task.Branching
	if b == nil {
		return
	}
	const at = "task.branching"
	if len(b.Prefix) == 0 {
		r.add(at, "no prefix: the branches would begin where every rollout does", "prefix: [{exec: [...]}] is what is done before the checkpoint; without one leave branching out")
	}
	if len(b.Witness) == 0 {
		r.add(at, "no witness: nothing would show that the prefix is in every branch", "witness: [{exec: [...]}] prints the task's state")
	}
	if len(b.Branches) < 2 {
		r.add(at, fmt.Sprintf("%d branches: siblings are two at least", len(b.Branches)), `branches: [{name: "left", act: [...], score: 1}, {name: "right", act: [...], score: 0}]`)
	}
	if len(b.Branches) > mostBranches {
		r.add(at+".branches", fmt.Sprintf("%d branches: at most %d are alive at the same time", len(b.Branches), mostBranches), "")
	}
	names, differ := map[bench.Name]int{}, false
	for i, one := range b.Branches {
		path := fmt.Sprintf("%s.branches[%d]", at, i)
		if first, twice := names[one.Name]; twice {
			r.add(path+".name", fmt.Sprintf("two branches are named %q: branches[%d] and branches[%d]", one.Name, first, i), "")
		} else {
			names[one.Name] = i
		}
		differ = differ || !reflect.DeepEqual(b.Branches[0].Act, one.Act)
		r.commands(path+".act", one.Act)
	}
	if len(b.Branches) > 1 && !differ {
		r.add(at+".branches", "all branches do the same", "give at least one of them another act: that they diverge could not be seen")
	}
	r.commands(at+".prefix", b.Prefix)
	r.commands(at+".witness", b.Witness)
	watch, period := r.duration(at+".isolation.watch", string(b.Isolation.Watch)), r.duration(at+".isolation.period", b.Isolation.Period)
	if watch > 0 && period > watch {
		r.add(at+".isolation.period", fmt.Sprintf("%s is longer than what is watched, %s", b.Isolation.Period, b.Isolation.Watch), "")
	}
	if m.Policy != nil && m.Policy.Oracle == nil {
		r.add("policy", "nobody but the branches acts in a task that branches", "leave policy out, and give each branch its act")
	}
	e := m.Experiment
	if e.Slots != 1 {
		r.add("experiment.slots", "a task that branches has a slot for each branch", "leave slots out")
	}
	if e.Pool != 0 {
		r.add("experiment.pool", "a task that branches takes no slot from a pool", "leave pool out")
	}
	if e.Sweep != nil {
		r.add("experiment.sweep", "a sweep counts slots of tasks that do not branch", "leave branching or sweep out")
	}
	if e.Sustain != nil {
		r.add("experiment.sustain", "a sustained window counts rollouts of tasks that do not branch", "leave branching or sustain out")
	}
}

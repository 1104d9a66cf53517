package gate

import (
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// JudgeLocks requires that the restored, still stopped tree holds exactly the
// locks of the checkpoint. Keys are slot path, inner pid, type, mode and range.
func JudgeLocks(want []bench.Lock, r engine.Reading[[]bench.Lock]) (j engine.Judgement) {
	have, ok := known(&j, "locks", r)
	if !ok {
		return j
	}
	if want == nil { // an empty list says that no lock was held
		j.Add(engine.VerdictUnknown, "locks", "the checkpoint holds no census of locks")
		return j
	}
	// Counted: two descriptions of one process may hold equal locks.
	held := map[string]int{}
	for _, l := range have {
		held[engine.LockSubject(l)]++
	}
	wanted := map[string]int{}
	for _, l := range want {
		s := engine.LockSubject(l)
		wanted[s]++
		if held[s] >= wanted[s] {
			continue
		}
		f := j.Add(engine.Fail, s, "is lost")
		f.Want, f.Have = "held", "not held"
		if l.Mapped && l.Type == "POSIX" {
			f.Hint = `CRIU loses POSIX locks on files that their owner maps, and returns 0; set the arm's locks to "repair"`
		}
	}
	for _, l := range have {
		if s := engine.LockSubject(l); wanted[s] > 0 {
			wanted[s]--
		} else {
			f := j.Add(engine.Fail, s, "is held but was not at the dump")
			f.Want, f.Have = "not held", "held"
		}
	}
	fact(&j, "locks", map[string]int{"want": len(want), "have": len(have)}, r.Source(), r.View())
	return j
}

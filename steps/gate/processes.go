package gate

import (
	"fmt"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// JudgeProcesses requires the same processes: pids inside, parents, groups,
// sessions, arguments, working directories, ids and thread counts.
func JudgeProcesses(want []bench.Process, r engine.Reading[[]bench.Process]) (j engine.Judgement) {
	have, ok := known(&j, "processes", r)
	if !ok {
		return j
	}
	if len(want) == 0 {
		j.Add(engine.VerdictUnknown, "processes", "the checkpoint holds no process")
		return j
	}
	equalSets(&j, "process", want, have, func(p bench.Process) string { return fmt.Sprintf("pid %d", p.Pid) }, "")
	fact(&j, "processes", len(have), r.Source(), r.View())
	return j
}

package gate

import (
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// JudgeCleanup passes on how the host differs from what it was before the run:
// what the run left behind fails, what others did meanwhile is listed.
func JudgeCleanup(r engine.Reading[[]bench.Finding]) (j engine.Judgement) {
	have, ok := known(&j, "host", r)
	if !ok {
		return j
	}
	j.Findings = append(j.Findings, have...)
	foreign := 0
	for _, f := range have {
		if f.Verdict == engine.Pass {
			foreign++
		}
	}
	fact(&j, "host-differences", len(have)-foreign, r.Source(), r.View())
	fact(&j, "host-differences-foreign", foreign, r.Source(), r.View())
	return j
}

package gate

import (
	"github.com/drumsbench/drumsbench/engine"
)

// JudgeCanary requires that the file still holds what the engine wrote: any
// other content came from another slot, another rollout or an act that touched it.
func JudgeCanary(file, want string, r engine.Reading[string]) (j engine.Judgement) {
	have, ok := known(&j, file, r)
	if !ok {
		return j
	}
	if want == "" {
		j.Add(engine.VerdictUnknown, file, "no canary was planted")
		return j
	}
	if have != want {
		f := j.Add(engine.Fail, file, "the canary changed: contamination")
		f.Want, f.Have = want, have
	}
	fact(&j, "canary", have == want, r.Source(), r.View())
	return j
}

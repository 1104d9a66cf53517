package gate

import (
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// JudgeMountContract requires that the slot's mounts are the slot's own
// (engine.MountContract), each offender named before the dump.
func JudgeMountContract(r engine.Reading[[]bench.Mount], allowed ...string) (j engine.Judgement) {
	have, ok := known(&j, "mounts", r)
	if !ok {
		return j
	}
	j.Findings = append(j.Findings, engine.MountContract(have, allowed...)...)
	fact(&j, "mounts", len(have), r.Source(), r.View())
	return j
}

// JudgeMounts compares the restored mount table with the checkpoint's, after
// normalisation (observe.Normalise names what is dropped).
func JudgeMounts(want []bench.Mount, r engine.Reading[[]bench.Mount]) (j engine.Judgement) {
	have, ok := known(&j, "mounts", r)
	if !ok {
		return j
	}
	if len(want) == 0 {
		j.Add(engine.VerdictUnknown, "mounts", "the checkpoint holds no mount table")
		return j
	}
	equalSets(&j, "mount", observe.Normalise(want), observe.Normalise(have),
		func(m bench.Mount) string { return m.Point }, "")
	fact(&j, "mounts", len(have), r.Source(), r.View())
	return j
}

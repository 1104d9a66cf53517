//go:build linux

package gate

import (
	"slices"

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
	// Equal lines in another order are another tree: the order says what is mounted on what.
	if a, b := points(want), points(have); len(j.Findings) == 0 && !slices.Equal(a, b) {
		f := j.Add(engine.Fail, "mounts", "are stacked in another way")
		f.Want, f.Have = text(a), text(b)
	}
	fact(&j, "mounts", len(have), r.Source(), r.View())
	return j
}

func points(mounts []bench.Mount) []string {
	out := make([]string, len(mounts))
	for i, m := range mounts {
		out[i] = m.Point
	}
	return out
}

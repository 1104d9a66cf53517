package gate

import (
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// JudgeState requires that the slot's difference against its image is the
// checkpoint's: content, mode, owner, xattrs, whiteouts, opaque directories.
func JudgeState(want bench.StateManifest, r engine.Reading[bench.StateManifest]) (j engine.Judgement) {
	have, ok := known(&j, "state", r)
	if !ok {
		return j
	}
	if len(want.Entries) == 0 { // a prepared slot has a canary at least
		j.Add(engine.VerdictUnknown, "state", "the checkpoint's state manifest is empty")
		return j
	}
	if text(want.Exclude) != text(have.Exclude) && len(want.Exclude)+len(have.Exclude) > 0 {
		f := j.Add(engine.Fail, "state", "the two manifests leave out different paths")
		f.Want, f.Have = text(want.Exclude), text(have.Exclude)
	}
	equalSets(&j, "path", want.Entries, have.Entries, func(e bench.StateEntry) string { return e.Path },
		"name it in state.exclude if it may differ, or reset it")
	fact(&j, "state-entries", len(have.Entries), r.Source(), r.View())
	return j
}

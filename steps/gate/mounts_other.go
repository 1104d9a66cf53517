//go:build !linux

package gate

import (
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// JudgeMountContract of a program that cannot read a mount table: unknown, which blocks.
func JudgeMountContract(engine.Reading[[]bench.Mount], ...string) engine.Judgement { return noMounts() }

// JudgeMounts of a program that cannot read a mount table: unknown, which blocks.
func JudgeMounts([]bench.Mount, engine.Reading[[]bench.Mount]) engine.Judgement { return noMounts() }

func noMounts() (j engine.Judgement) {
	j.Add(engine.VerdictUnknown, "mounts", "mount tables are judged on Linux hosts only")
	return j
}

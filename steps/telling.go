package steps

import "github.com/drumsbench/drumsbench/engine"

// tell records what a slot has to say of how it came to run.
func tell(x *engine.Exec, slot engine.Slot) {
	if t, ok := slot.(engine.Telling); ok {
		x.Fact(t.Facts()...)
	}
}

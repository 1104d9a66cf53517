package steps

import (
	"context"

	"github.com/drumsbench/drumsbench/engine"
)

// tell records what a slot has to say of how it came to run.
func tell(x *engine.Exec, slot engine.Slot) {
	if t, ok := slot.(engine.Telling); ok {
		x.Fact(t.Facts()...)
	}
}

// tellPages records what of a slot's memory came back while it ran, so far.
func tellPages(ctx context.Context, x *engine.Exec, slot engine.Slot) {
	if f, ok := slot.(engine.Filling); ok {
		x.Fact(f.PageFacts(ctx)...)
	}
}

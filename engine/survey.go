package engine

import (
	"context"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Surveyor is an optional interface of an Arm: it looks at everything of the
// host that a run could leave behind or change. An arm without it says in
// Description.NotApplicable why there is no clean-up gate.
type Surveyor interface {
	// Survey looks at the host before the run has made anything. It only reads and
	// is quick: tens of milliseconds. What cannot be read is ErrUnknown, or a
	// finding of Compare.
	Survey(ctx context.Context, ws *Workspace) (Survey, error)
}

// Survey is the host as it was before a run.
type Survey interface {
	// Facts say what was looked at.
	Facts() []bench.Fact
	// Compare looks at the host again and names each difference: what the run left
	// or changed fails, what others did meanwhile passes, and what could not be
	// read, then or now, is unknown. It only reads.
	Compare(ctx context.Context) ([]bench.Finding, error)
}

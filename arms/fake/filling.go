package fake

import (
	"context"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// BecameReady implements engine.Filling: all of a fake slot's memory is there from the start.
func (s *slot) BecameReady(context.Context) error { return nil }

// PageFacts implements engine.Filling.
func (s *slot) PageFacts(context.Context) []bench.Fact { return nil }

// Fleeting implements engine.Fleeting: nothing has to be brought.
func (p *place) Fleeting() bool { return false }

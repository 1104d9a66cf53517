package drums

import (
	"context"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Observe implements engine.Slot.
func (s *slot) Observe(_ context.Context, aspects ...engine.Aspect) engine.Observation {
	return s.observe(engine.ViewHost, aspects)
}

// Observe implements engine.Stopped.
func (s *stopped) Observe(_ context.Context, aspects ...engine.Aspect) engine.Observation {
	return s.observe(engine.ViewStopped, aspects)
}

func (p *place) observe(view bench.View, aspects []engine.Aspect) engine.Observation {
	p.mu.Lock()
	t := p.now
	p.mu.Unlock()
	if t == nil || t.Pid == 0 {
		return engine.Unobserved(view, aspects, "the slot is dead: it has no tree")
	}
	return p.tree(t).Observe(view, aspects)
}

// tree is the slot's process tree for all that is shared with other arms.
func (p *place) tree(t *tenancy) tree.Tree {
	out := t.Tree(p.name, p.root.Root, p.arm.settings.Locks)
	out.Tracer, out.Memory = t.tracer, func() engine.Reading[engine.Memory] { return p.memory(t) }
	return out
}

// memory is the slot's memory, and that of the program that serves the image's
// blocks, where there is one. A slot of this arm needs nothing else beside it.
func (p *place) memory(t *tenancy) engine.Reading[engine.Memory] {
	return p.arm.withFiller(tree.WithServers(procfs.SlotMemory(t.Pid), p.arm.settings.Attach, p.arm.groups.Tools))
}

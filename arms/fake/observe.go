package fake

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// hostPids is added to a pid inside to give that of a task on the host: no kernel gives out such numbers.
const hostPids = 1 << 30

// Observe implements engine.Slot.
func (s *slot) Observe(_ context.Context, aspects ...engine.Aspect) engine.Observation {
	return s.observe(engine.ViewHost, aspects)
}

// Observe implements engine.Stopped.
func (s *stopped) Observe(_ context.Context, aspects ...engine.Aspect) engine.Observation {
	return s.observe(engine.ViewStopped, aspects)
}

func (p *place) observe(view bench.View, aspects []engine.Aspect) (o engine.Observation) {
	t := p.tenancy()
	if t == nil {
		return o // every reading stays "not observed": there is no tree
	}
	for _, a := range aspects {
		switch a {
		case engine.AspectLimits:
			o.Limits = reading(t, "limits-unknown", view, func(w *world) engine.Limits {
				l := t.limits
				for _, p := range w.Processes {
					l.Tasks = append(l.Tasks, hostPids+int(p.Pid))
				}
				if t.fault("task-outside") {
					l.Outside = []int{hostPids + 1}
				}
				return l
			})
		case engine.AspectMounts:
			o.Mounts = reading(t, "unknown-mounts", view, func(w *world) []bench.Mount { return slices.Clone(w.Mounts) })
		case engine.AspectNetwork:
			o.Network = reading(t, "unknown-network", view, func(w *world) bench.Network { return w.Network })
		case engine.AspectLocks:
			o.Locks = reading(t, "unknown-locks", view, func(w *world) []bench.Lock { return slices.Clone(w.Locks) })
		case engine.AspectProcesses:
			o.Processes = reading(t, "unknown-processes", view, func(w *world) []bench.Process { return slices.Clone(w.Processes) })
		case engine.AspectEnclosure:
			o.Enclosure = reading(t, "unknown-enclosure", view, func(*world) []bench.Finding { return nil })
			if _, ok := o.Enclosure.Get(); ok {
				o.Enclosure = engine.Known(t.enclosure(), "fake world", view)
			}
		case engine.AspectState:
			o.State = reading(t, "unknown-state", view, func(w *world) bench.StateManifest { return w.state(t.exclude) })
		case engine.AspectMemory:
			o.Memory = reading(t, "unknown-memory", view, func(w *world) engine.Memory {
				n := int64(len(w.Processes))
				return engine.Memory{PrivateDirty: n << 20, Pss: n << 21, Processes: int(n)}
			})
		case engine.AspectCPU:
			o.CPU = reading(t, "unknown-memory", view, func(w *world) time.Duration { return time.Duration(len(w.Processes)) * time.Second })
		case engine.AspectStorage:
			o.Storage = reading(t, "unknown-state", view, func(w *world) int64 { return 4096 * int64(len(w.Processes)) })
		case engine.AspectObjects:
			o.Objects = reading(t, "unknown-objects", view, t.objects)
		case engine.AspectToolConfig:
			o.ToolConfig = reading(t, "unknown-tool-config", view, func(*world) []string {
				if t.fault("tool-config") {
					return []string{"/etc/fake/default.conf"}
				}
				return []string{}
			})
		}
	}
	return o
}

// reading of the world, if it is there and the fault is not.
func reading[T any](t *tenancy, fault string, view bench.View, read func(*world) T) engine.Reading[T] {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.fault(fault):
		return engine.Unknown[T]("read fake world: permission denied", view)
	case t.world == nil:
		return engine.Unknown[T]("the tree has ended", view)
	}
	return engine.Known(read(t.world), "fake world", view)
}

func (p *place) mounts(t *tenancy) []bench.Mount {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.world == nil {
		return nil
	}
	return t.world.Mounts
}

// enclosure names what ties the slot to the outside.
func (t *tenancy) enclosure() []bench.Finding {
	found := []bench.Finding{}
	if t.fault("outside-socket") {
		found = append(found, bench.Finding{Verdict: engine.Fail, Subject: "pid 1 descriptor 9", Text: "is a unix socket whose peer is outside the slot",
			Want: "peer inside", Have: "/run/dbus/system_bus_socket of the host", Hint: "start both ends inside the slot"})
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.server.connections(); n > 0 && t.policy.EstablishedTCP != "close" {
		found = append(found, bench.Finding{Verdict: engine.Fail, Subject: fmt.Sprintf("pid 1 port %d", t.world.Port), Text: "has established TCP connections",
			Want: "0", Have: fmt.Sprint(n), Hint: `close them, or set checkpoint.establishedTCP to "close"`})
	}
	return found
}

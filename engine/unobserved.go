package engine

import (
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Unobserved is the observation of a slot that is not there any more: what was
// asked for is unknown, and why. Also the host's own configuration, which does
// not depend on the slot: a gate that passes on a dead slot has judged nothing.
func Unobserved(view bench.View, aspects []Aspect, why string) (o Observation) {
	for _, a := range aspects {
		switch a {
		case AspectLimits:
			o.Limits = Unknown[Limits](why, view)
		case AspectMounts:
			o.Mounts = Unknown[[]bench.Mount](why, view)
		case AspectNetwork:
			o.Network = Unknown[bench.Network](why, view)
		case AspectLocks:
			o.Locks = Unknown[[]bench.Lock](why, view)
		case AspectProcesses:
			o.Processes = Unknown[[]bench.Process](why, view)
		case AspectEnclosure:
			o.Enclosure = Unknown[[]bench.Finding](why, view)
		case AspectState:
			o.State = Unknown[bench.StateManifest](why, view)
		case AspectToolConfig:
			o.ToolConfig = Unknown[[]string](why, view)
		case AspectMemory:
			o.Memory = Unknown[Memory](why, view)
		case AspectCPU:
			o.CPU = Unknown[time.Duration](why, view)
		case AspectStorage:
			o.Storage = Unknown[int64](why, view)
		case AspectObjects:
			o.Objects = Unknown[[]Object](why, view)
		}
	}
	return o
}

package engine

import (
	"context"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// HostProber measures the host itself. Safe for concurrent use.
type HostProber interface {
	// Probe says what the host can do and is busy with, in well under a second. It
	// leaves nothing behind. What it cannot learn it names; it never fails. Never
	// within a measurement window: it works as hard as it can.
	Probe(ctx context.Context) bench.HostProbe
	// Used reads how much of the host's memory is not available, in bytes
	// (MemTotal without MemAvailable of proc_meminfo(5)).
	Used() (int64, error)
	// Own is the private dirty memory of the engine's own process, in bytes.
	Own() (int64, error)
}

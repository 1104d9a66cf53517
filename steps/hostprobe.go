package steps

import (
	"context"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// FactHostProbe is what the host could do and was busy with, as the JSON of
// bench.HostProbe: of the survey before the run, of the clean-up gate after it.
const FactHostProbe = "host-probe"

// probeHost records what the host can do; nothing where the run has no means to.
func probeHost(ctx context.Context, x *engine.Exec) {
	if p := x.Workspace().Prober; p != nil {
		fact(x, FactHostProbe, p.Probe(ctx), "clocks, mmap, fork, fsync, /proc and /sys of the host")
	}
}

// fact records v as JSON.
func fact(x *engine.Exec, name string, v any, source string) {
	f := bench.Fact{Name: name, View: engine.ViewHost}
	if text, err := canonical.JSON(v); err != nil {
		f.Reason = err.Error()
	} else {
		f.Known, f.Value, f.Source = true, string(text), source
	}
	x.Fact(f)
}

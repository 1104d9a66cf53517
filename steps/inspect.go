package steps

import (
	"context"
	"fmt"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Facts of an inspect step; schemas/bench/sameness.cue asks for them by these names.
const (
	InspectServer   = "guest-server-sha256"
	InspectOS       = "os-release"
	InspectKernel   = "kernel-release"
	InspectMachine  = "machine"
	InspectPackages = "packages"
	InspectDisplay  = "display"
)

// Inspect asks the guest what its software and its screen are, for comparisons.
// What it cannot say is an unknown fact and fails nothing: no rollout depends on
// it, a comparison does. It is in no window, since the guest reads files for it.
func Inspect(b *engine.Builder, at At, slot engine.Promise[engine.Slot], p bench.InspectParams, after ...engine.Input) engine.Promise[engine.Inspected] {
	at.Window = ""
	return engine.Add[engine.Inspected](b, at.spec(KindInspect, p, deadlineGate), append([]engine.Input{engine.Read(slot)}, after...)...)
}

var bindInspect = engine.Bind(KindInspect, func(ctx context.Context, x *engine.Exec, p bench.InspectParams) (engine.Inspected, error) {
	probe, err := dial(engine.In[engine.Slot](x, 0), p.Port).Inspect(ctx)
	if ctx.Err() != nil {
		return engine.Inspected{}, err
	}
	x.Fact(inspected(probe, err, p.Display)...)
	return engine.Inspected{}, nil
})

// inspected are the facts of a probe, or of the error in its place.
func inspected(p guest.Probe, err error, display *bench.Display) []bench.Fact {
	const source = "guest server /probe"
	read := func(r proto.Reading) engine.Reading[string] {
		if r.Unknown != "" {
			return engine.Unknown[string](r.Unknown, engine.ViewGuest)
		}
		return engine.Known(r.Value, source+": "+r.Source, engine.ViewGuest)
	}
	var s guest.System
	if p.System != nil {
		s = *p.System
	}
	facts := []struct {
		name    string
		reading engine.Reading[string]
	}{
		{InspectServer, engine.Known(string(p.ServerSHA256), source, engine.ViewGuest)},
		{InspectOS, read(s.OS)},
		{InspectKernel, read(s.Kernel)},
		{InspectMachine, read(s.Machine)},
		{InspectPackages, read(s.Packages)},
		{InspectDisplay, geometry(p.Screen, display, source)},
	}
	out := make([]bench.Fact, len(facts))
	for i, f := range facts {
		if err != nil {
			f.reading = engine.Unknown[string](err.Error(), engine.ViewGuest)
		}
		out[i] = f.reading.Fact(f.name)
	}
	return out
}

// geometry of the screen as its X server says it. None is known only where
// the manifest asks for none.
func geometry(s *guest.Screen, want *bench.Display, source string) engine.Reading[string] {
	switch {
	case s == nil && want == nil:
		return engine.Known("none", source, engine.ViewGuest)
	case s == nil:
		return engine.Unknown[string]("the guest says nothing of the screen that the manifest asks for", engine.ViewGuest)
	case s.Unknown != "":
		return engine.Unknown[string](s.Unknown, engine.ViewGuest)
	case s.Depth <= 0:
		return engine.Unknown[string]("the guest does not say the depth of its screen", engine.ViewGuest)
	}
	return engine.Known(fmt.Sprintf("%dx%d, %d bits", s.Width, s.Height, s.Depth), source+": X server", engine.ViewGuest)
}

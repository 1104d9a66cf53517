package steps

import (
	"context"
	"errors"
	"fmt"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Execute runs a command of a person's in the guest. Its outcome is a fact and
// evidence; whatever exit status it has, the step passes.
func Execute(b *engine.Builder, at At, slot engine.Promise[engine.Slot], p bench.ExecuteParams, after ...engine.Input) engine.Promise[engine.Acted] {
	in := append([]engine.Input{engine.Use(slot)}, after...)
	return engine.Add[engine.Acted](b, at.spec(KindExecute, p, duration(string(p.Command.Timeout))+slack), in...)
}

// Names of what an execute step leaves.
const (
	ExitFact     = "exit"
	ExecuteName  = "exec"
	StdoutSuffix = ".stdout"
	StderrSuffix = ".stderr"
)

var bindExecute = engine.Bind(KindExecute, func(ctx context.Context, x *engine.Exec, p bench.ExecuteParams) (engine.Acted, error) {
	c := dial(engine.In[engine.Slot](x, 0), p.Port)
	r, err := c.Execute(ctx, p.Command.Exec, duration(string(p.Command.Timeout)))
	if err != nil {
		return engine.Acted{}, err
	}
	if err := keepOutput(x, ExecuteName, r); err != nil {
		return engine.Acted{}, err
	}
	switch {
	case r.TimedOut:
		return engine.Acted{}, &engine.Error{Op: "execute", Err: fmt.Errorf("%w after %s: %q; its processes were ended", engine.ErrDeadline, p.Command.Timeout, p.Command.Exec), Hint: "give it more time with --timeout"}
	case r.Signalled:
		return engine.Acted{}, &engine.Error{Op: "execute", Err: errors.New("it was ended by a signal")}
	}
	if r.Truncated {
		x.Fact(bench.Fact{Name: "truncated", Known: true, Value: "true", Source: "guest server", View: engine.ViewGuest})
	}
	x.Fact(bench.Fact{Name: ExitFact, Known: true, Value: fmt.Sprint(r.Exit), Source: "guest server", View: engine.ViewGuest})
	return engine.Acted{}, nil
})

package steps

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps/gate"
)

// What the kernel takes away late (a loop device, a dead process) gets this long
// before the clean-up gate calls it left behind, and is looked at so often.
const (
	settleTime   = time.Second
	settlePeriod = 20 * time.Millisecond
)

// Survey looks at the host, and probes it, before anything is made on it.
func Survey(b *engine.Builder, at At, after ...engine.Input) engine.Promise[engine.Reading[engine.Survey]] {
	return engine.Add[engine.Reading[engine.Survey]](b, at.spec(KindSurvey, nil, deadlineGate), after...)
}

// A survey that could not be made stops the run before it has begun; the gate at
// its end says why.
var bindSurvey = engine.Bind(KindSurvey, func(ctx context.Context, x *engine.Exec, _ struct{}) (engine.Reading[engine.Survey], error) {
	const op = "survey host"
	unknown := func(reason string) engine.Reading[engine.Survey] {
		return engine.Unknown[engine.Survey](reason, engine.ViewHost)
	}
	probeHost(ctx, x)
	d := x.Arm().Describe()
	if reason, ok := d.NotApplicable[gate.Cleanup]; ok {
		x.Fact(unknown(reason).Fact("host-survey"))
		return unknown(reason), nil
	}
	arm, ok := x.Arm().(engine.Surveyor)
	if !ok {
		err := fmt.Errorf("%w: the %s arm looks at nothing of the host and does not declare why", engine.ErrUnknown, d.Kind)
		return unknown(err.Error()), &engine.Error{Op: op, Err: err}
	}
	s, err := arm.Survey(ctx, x.Workspace())
	if err != nil {
		return unknown(err.Error()), &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
	}
	x.Fact(s.Facts()...)
	return engine.Known(s, "survey step", engine.ViewHost), nil
})

// GateCleanup requires that the host is as it was before the run. It runs
// whatever happened, after everything was released.
func GateCleanup(b *engine.Builder, at At, survey engine.Promise[engine.Reading[engine.Survey]], after ...engine.Input) engine.Promise[engine.Judged] {
	s := at.spec(KindGate, bench.GateParams{Gate: gate.Cleanup}, deadlineGate)
	s.Optional = true // as for every gate: an arm may declare it not applicable
	s.Release = true
	return engine.Add[engine.Judged](b, s, append([]engine.Input{engine.Read(survey)}, after...)...)
}

// cleanedUp looks until nothing of the run's is left, or for settleTime.
func cleanedUp(ctx context.Context, x *engine.Exec) engine.Reading[[]bench.Finding] {
	before := engine.In[engine.Reading[engine.Survey]](x, 0)
	survey, ok := before.Get()
	if !ok {
		return engine.Unknown[[]bench.Finding]("there is no survey from before the run: "+before.Reason(), engine.ViewHost)
	}
	start := time.Now()
	for looks := 1; ; looks++ {
		found, err := survey.Compare(ctx)
		left := err != nil || slices.ContainsFunc(found, func(f bench.Finding) bool { return f.Verdict != engine.Pass })
		if left && time.Since(start) < settleTime {
			select {
			case <-time.After(settlePeriod):
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		if err != nil {
			return engine.Unknown[[]bench.Finding](err.Error(), engine.ViewHost)
		}
		return engine.Known(found, fmt.Sprintf("survey before the run and look %d after it", looks), engine.ViewHost)
	}
}

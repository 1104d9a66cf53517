package steps

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Facts of the steps that look at many slots at once, each the JSON of a schema's type.
const (
	FactHostMemory = "host-memory" // bench.HostMemory, of a baseline
	FactLevel      = "level"       // bench.Level, of the density step
)

// samplePeriod is the time between two readings of the host's memory.
const samplePeriod = 100 * time.Millisecond

// deadlineDensity bounds the walk through the page tables of every slot, beside what the manifest asks to wait.
const deadlineDensity = 2 * time.Minute

// HostBaseline reads the host's memory while there is no slot. The one after the
// slots is a release step: it runs behind steps that always run.
func HostBaseline(b *engine.Builder, at At, p bench.BaselineParams, release bool, after ...engine.Input) engine.Promise[engine.Measured] {
	s := at.spec(KindBaseline, p, waiting(p.Settle, p.Samples)+deadlineGate)
	s.Release = release
	return engine.Add[engine.Measured](b, s, after...)
}

var bindBaseline = engine.Bind(KindBaseline, func(ctx context.Context, x *engine.Exec, p bench.BaselineParams) (engine.Measured, error) {
	m, err := hostMemory(ctx, x, p.Settle, p.Samples)
	if err != nil {
		return engine.Measured{}, err
	}
	fact(x, FactHostMemory, m, "/proc/meminfo")
	return engine.Measured{}, nil
})

// Density reads the host's memory while all slots are ready and at rest, then
// what each of them takes. It is in a window of its own, so that nothing else of
// the engine's works meanwhile; all that a slot does it does by itself.
func Density(b *engine.Builder, at At, slots []engine.Promise[engine.Slot], p bench.DensityParams, after ...engine.Input) engine.Promise[engine.Measured] {
	var in []engine.Input
	for _, s := range slots {
		in = append(in, engine.Read(s))
	}
	return engine.Add[engine.Measured](b, at.spec(KindDensity, p, waiting(p.Settle, p.Samples)+deadlineDensity), append(in, after...)...)
}

func waiting(settle bench.Duration, samples int64) time.Duration {
	return duration(string(settle)) + time.Duration(samples)*samplePeriod
}

var bindDensity = engine.Bind(KindDensity, func(ctx context.Context, x *engine.Exec, p bench.DensityParams) (engine.Measured, error) {
	host, err := hostMemory(ctx, x, p.Settle, p.Samples)
	if err != nil {
		return engine.Measured{}, err
	}
	own, err := x.Workspace().Prober.Own()
	if err != nil {
		return engine.Measured{}, err
	}
	level := bench.Level{Host: host, Slots: []bench.LevelSlot{}, Engine: whole(own)}
	var unknown engine.Judgement
	for i := range x.Inputs() {
		slot := engine.In[engine.Slot](x, i)
		o := slot.Observe(ctx, engine.AspectMemory, engine.AspectCPU)
		m, known := o.Memory.Get()
		if !known {
			unknown.Findings = append(unknown.Findings, bench.Finding{Verdict: engine.VerdictUnknown, Subject: slot.Name(), Text: "memory: " + o.Memory.Reason()})
			continue
		}
		one := bench.LevelSlot{Slot: bench.Name(slot.Name()), Memory: bench.Memory{
			PrivateDirty: whole(m.PrivateDirty), Pss: whole(m.Pss), Processes: int64(m.Processes), Harness: whole(m.Harness)}}
		if used, known := o.CPU.Get(); known {
			one.Cpu = whole(used.Nanoseconds())
		} else {
			x.Fact(bench.Fact{Name: "cpu." + slot.Name(), Reason: o.CPU.Reason(), View: engine.ViewHost})
		}
		level.Slots = append(level.Slots, one)
	}
	if len(unknown.Findings) > 0 { // a sum over some of the slots would look like one over all
		x.Judge(unknown)
		return engine.Measured{}, nil
	}
	fact(x, FactLevel, level, "/proc/meminfo and the arm's view of each slot")
	return engine.Measured{}, nil
})

func whole(n int64) bench.Int64 { return bench.Int64(strconv.FormatInt(n, 10)) }

// hostMemory waits for the host to come to rest and reads its memory some times.
func hostMemory(ctx context.Context, x *engine.Exec, settle bench.Duration, samples int64) (bench.HostMemory, error) {
	const op = "read memory of host"
	p := x.Workspace().Prober
	if p == nil {
		return bench.HostMemory{}, &engine.Error{Op: op, Err: fmt.Errorf("%w: the run has no means to", engine.ErrUnknown)}
	}
	if err := sleep(ctx, duration(string(settle))); err != nil {
		return bench.HostMemory{}, &engine.Error{Op: op, Err: err}
	}
	var used []int64
	for i := range samples {
		if i > 0 {
			if err := sleep(ctx, samplePeriod); err != nil {
				return bench.HostMemory{}, &engine.Error{Op: op, Err: err}
			}
		}
		v, err := p.Used()
		if err != nil {
			return bench.HostMemory{}, &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
		}
		used = append(used, v)
	}
	slices.Sort(used)
	n := len(used)
	return bench.HostMemory{Used: whole((used[(n-1)/2] + used[n/2]) / 2), Low: whole(used[0]), High: whole(used[n-1]), Readings: samples}, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

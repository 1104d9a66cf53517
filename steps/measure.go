package steps

import (
	"context"
	"fmt"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Facts of a measure step, in bytes but for the count of processes.
const (
	MemoryPrivateDirty = "memory.private_dirty"
	MemoryPss          = "memory.pss"
	MemoryProcesses    = "memory.processes"
	MemoryHarness      = "memory.harness"
)

// More facts of it, in nanoseconds: the CPU time of the process that keeps a slot's
// namespaces, and the time over which it was used, since that was born.
const (
	HarnessCPU  = "cpu.harness"
	HarnessLife = "cpu.harness_life"
)

// Measure reads what a usable slot takes of the host's memory. It is in no
// window: reading smaps_rollup walks the slot's page tables.
func Measure(b *engine.Builder, at At, slot engine.Promise[engine.Slot], p bench.MeasureParams, after ...engine.Input) engine.Promise[engine.Measured] {
	at.Window = ""
	limit := deadlineGate
	if p.After != "" {
		limit += duration(string(p.After))
	}
	return engine.Add[engine.Measured](b, at.spec(KindMeasure, p, limit), append([]engine.Input{engine.Read(slot)}, after...)...)
}

var bindMeasure = engine.Bind(KindMeasure, func(ctx context.Context, x *engine.Exec, p bench.MeasureParams) (engine.Measured, error) {
	slot := engine.In[engine.Slot](x, 0)
	if p.After != "" {
		if err := sleep(ctx, duration(string(p.After))); err != nil {
			return engine.Measured{}, &engine.Error{Op: "wait to measure " + slot.Name(), Err: err}
		}
	}
	tellPages(ctx, x, slot)
	// The slot is usable, and no window is open.
	if err := x.Workspace().NotePlace(slot); err != nil {
		return engine.Measured{}, err
	}
	r := slot.Observe(ctx, engine.AspectMemory).Memory
	m, known := r.Get()
	if !known {
		x.Judge(engine.Judgement{Findings: []bench.Finding{{Verdict: engine.VerdictUnknown, Subject: "memory", Text: r.Reason()}}})
		return engine.Measured{}, nil
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{MemoryPrivateDirty, m.PrivateDirty}, {MemoryPss, m.Pss}, {MemoryProcesses, int64(m.Processes)}, {MemoryHarness, m.Harness},
	} {
		x.Fact(bench.Fact{Name: f.name, Known: true, Value: fmt.Sprint(f.value), Source: r.Source(), View: r.View()})
	}
	if m.HarnessLife > 0 {
		const source = "CPU clock of the namespace's holder, and its start in /proc/PID/stat"
		x.Fact(engine.Known(fmt.Sprint(m.HarnessCPU.Nanoseconds()), source, r.View()).Fact(HarnessCPU))
		x.Fact(engine.Known(fmt.Sprint(m.HarnessLife.Nanoseconds()), source, r.View()).Fact(HarnessLife))
	}
	return engine.Measured{}, nil
})

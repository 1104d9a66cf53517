package gate

import (
	"fmt"
	"math"
	"strconv"

	"github.com/docker/go-units"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// JudgeLimits compares the bounds that the kernel enforces with the manifest's,
// and requires that every task of the slot is under them. Sizes may differ by
// less than one page, to which the kernel rounds. What the tasks can reach must be
// no more than the arm allows.
func JudgeLimits(want bench.Resources, r engine.Reading[engine.Limits]) (j engine.Judgement) {
	have, ok := known(&j, "limits", r)
	if !ok {
		return j
	}
	size := func(name, s string, got int64) {
		n, err := units.RAMInBytes(s)
		if err != nil {
			j.Add(engine.VerdictUnknown, name, err.Error())
			return
		}
		compare(&j, name, float64(n), float64(got), 4096)
	}
	compare(&j, "vcpus", float64(want.Vcpus), have.VCPUs, 0.005)
	size("memory", string(want.Memory), have.Memory)
	size("swap", string(want.Swap), have.Swap)
	compare(&j, "pids", float64(want.Pids), float64(have.Pids), 0.5)
	if len(have.Tasks) == 0 {
		j.Add(engine.VerdictUnknown, "tasks", "no task of the slot was seen")
	}
	for _, pid := range have.Outside {
		f := j.Add(engine.Fail, fmt.Sprintf("task %d", pid), "is outside the slot's limits group")
		f.Want, f.Have = "inside", "outside"
		f.Hint = "a task that left its group is not limited; the slot cannot be measured"
	}
	for name, text := range map[string]string{"capabilities": have.Confinement.Capabilities, "devices": have.Confinement.Devices} {
		if text == "" {
			j.Add(engine.VerdictUnknown, name, "what the slot's tasks can reach was not read")
		}
	}
	for _, b := range have.Confinement.Beyond {
		f := j.Add(engine.Fail, "confinement", b)
		f.Want, f.Have = have.Confinement.Capabilities, "more than the slot may have"
		f.Hint = "what runs in this slot can reach the host; end it and look at what made it so"
	}
	fact(&j, "limits", map[string]any{"vcpus": have.VCPUs, "memory": have.Memory, "swap": have.Swap, "pids": have.Pids, "tasks": len(have.Tasks),
		"capabilities": have.Confinement.Capabilities, "devices": have.Confinement.Devices}, r.Source(), r.View())
	return j
}

func compare(j *engine.Judgement, name string, want, have, tolerance float64) {
	if have < 0 || !(math.Abs(want-have) < tolerance) { // not >=: NaN is no bound
		f := j.Add(engine.Fail, name, "the kernel enforces another bound")
		f.Want, f.Have = strconv.FormatFloat(want, 'f', -1, 64), strconv.FormatFloat(have, 'f', -1, 64)
		if have < 0 {
			f.Have = "no limit"
		}
	}
}

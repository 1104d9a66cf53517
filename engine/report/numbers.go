package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/docker/go-units"

	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/stats"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Metric is one line of numbers of a run.
type Metric struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	// Unit is ns, bytes or share.
	Unit    string        `json:"unit"`
	Summary bench.Summary `json:"summary"`
	// Of is how many rollouts it could have come from: a smaller sample says so.
	Of       int64  `json:"of"`
	Emulated bool   `json:"emulated"`
	Note     string `json:"note,omitempty"`
	// Sample in the unit, in the order of the rollouts; none of a share.
	Sample []float64 `json:"-"`
}

// clock is one of the four of a reset.
type clock struct {
	name, title string
	of          func(*bench.Clocks) bench.Int64
}

var clockList = []clock{
	{"mechanism", "mechanism returned", func(c *bench.Clocks) bench.Int64 { return c.Mechanism }},
	{"answer", "first guest answer", func(c *bench.Clocks) bench.Int64 { return c.Answer }},
	{"ready", "ready", func(c *bench.Clocks) bench.Int64 { return c.Ready }},
	{"usable", "usable: reseeded and gated", func(c *bench.Clocks) bench.Int64 { return c.Usable }},
}

// classes that are no valid rollout, each on its own line.
var classes = []struct {
	class bench.RolloutClass
	title string
}{
	{record.Invalid, "invalid rollouts"},
	{record.EnvFailure, "environment failures"},
	{record.Contamination, "contaminations"},
	{record.VerifierUnavailable, "checks lost"},
}

// Measured are the rollouts that numbers come from: neither controls nor warm-ups.
func Measured(r bench.Record) (list []bench.Rollout) {
	for _, o := range r.Rollouts {
		if o.Control == "" && !o.Warmup {
			list = append(list, o)
		}
	}
	return list
}

// valid are those of them that clocks, parts and memory come from.
func valid(measured []bench.Rollout) (list []bench.Rollout) {
	for _, o := range measured {
		if o.Class == record.Success || o.Class == record.FailedValid {
			list = append(list, o)
		}
	}
	return list
}

// Metrics of a run; none of one that yields no number.
func (r *Run) Metrics() (list []Metric) {
	if !r.Counts() {
		return nil
	}
	measured := Measured(r.Record)
	valid := valid(measured)
	add := func(name, title, unit, note string, sample []float64) {
		if len(sample) > 0 {
			list = append(list, Metric{name, title, unit, stats.Summarize(sample), int64(len(valid)), r.Emulated(), note, sample})
		}
	}
	share := func(name, title string, k int) {
		e := stats.Share(k, len(measured))
		list = append(list, Metric{name, title, "share", bench.Summary{N: int64(len(measured)), P50: &e}, int64(len(measured)), r.Emulated(), fmt.Sprintf("%d of %d", k, len(measured)), nil})
	}
	what := map[string]string{"restore": "Reset", "cold": "Cold start"}[r.Record.Reset]
	for _, c := range clockList {
		var sample []float64
		for _, o := range valid {
			if o.Clocks != nil {
				sample = appendNumber(sample, c.of(o.Clocks))
			}
		}
		add(c.name, what+": "+c.title, "ns", "from the start of the reset", sample)
	}
	var prepared []float64
	for _, o := range valid {
		prepared = appendNumber(prepared, o.Prepared)
	}
	add("prepared", "Made ready in the pool", "ns", "in no clock of the reset, and paid by the run", prepared)
	spans := map[string][]float64{}
	for _, o := range valid {
		for name, ns := range o.Spans {
			spans[name] = appendNumber(spans[name], ns)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(spans)) {
		add("span."+name, "Part of the reset: "+name, "ns", "inside restore and resume", spans[name])
	}
	add("dump", "Dump", "ns", "the whole step, once a run", compare.Values([]compare.Run{{Record: r.Record, Plan: r.Plan}}, "dump"))
	add("dump.branch", "Dump in the middle of the task", "ns", "the whole step, once a round", compare.Values([]compare.Run{{Record: r.Record, Plan: r.Plan}}, "dump.branch"))
	for _, m := range []struct {
		name, title, note string
		of                func(*bench.Memory) bench.Int64
	}{
		{"private-dirty", "Memory: private dirty", "one slot, before anybody acts", func(m *bench.Memory) bench.Int64 { return m.PrivateDirty }},
		{"pss", "Memory: proportional set", "one slot, before anybody acts", func(m *bench.Memory) bench.Int64 { return m.Pss }},
		{"harness", "Memory: harness beside a slot", "private dirty of what the engine runs", func(m *bench.Memory) bench.Int64 { return m.Harness }},
	} {
		var sample []float64
		for _, o := range valid {
			if o.Memory != nil {
				sample = appendNumber(sample, m.of(o.Memory))
			}
		}
		add(m.name, m.title, "bytes", m.note, sample)
		if bound, err := units.RAMInBytes(string(r.Manifest.Resources.Memory)); m.name == "private-dirty" && err == nil && bound > 0 {
			shares := make([]float64, len(sample))
			for i, v := range sample {
				shares[i] = v / float64(bound)
			}
			add(m.name+".share", m.title+", of the slot's memory", "share", "of "+string(r.Manifest.Resources.Memory)+", which is what the slot, or its machine, may have", shares)
		}
	}
	var layers []float64
	for _, o := range valid {
		layers = appendNumber(layers, o.Stored)
	}
	add("stored", "Disk: a slot's own layer", "bytes", "blocks on the host's disk, after the act", layers)
	var idle []float64
	for _, o := range valid {
		if o.Memory == nil {
			continue
		}
		cpu, life := appendNumber(nil, o.Memory.HarnessCPU), appendNumber(nil, o.Memory.HarnessLife)
		if len(cpu) == 1 && len(life) == 1 && life[0] > 0 {
			idle = append(idle, cpu[0]/life[0]*1e9)
		}
	}
	add("harness-cpu", "CPU: harness beside a slot", "ns", "in each second of the namespace holder's life", idle)
	if len(measured) == 0 {
		return list
	}
	count := map[bench.RolloutClass]int{}
	for _, o := range measured {
		count[o.Class]++
	}
	share("rollouts.valid", "Rollouts: valid", count[record.Success]+count[record.FailedValid])
	share("rollouts.success", "Rollouts: success", count[record.Success])
	for _, c := range classes {
		share("rollouts."+string(c.class), "Rollouts: "+c.title, count[c.class])
	}
	return list
}

func appendNumber(list []float64, v bench.Int64) []float64 {
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return list // absent: the rollout did not come that far
	}
	return append(list, float64(n))
}

// scaled is a value in the unit that people read, with that unit.
func scaled(v float64, unit string) (float64, string) {
	switch unit {
	case "ns":
		if math.Abs(v) >= 10e9 {
			return v / 1e9, "s"
		}
		return v / 1e6, "ms"
	case "bytes":
		return v / (1 << 20), "MiB"
	case "share":
		return v * 100, "%"
	}
	return v, unit
}

// amount is a value as people read it.
func amount(v float64, unit string) string {
	n, u := scaled(v, unit)
	digits := 1
	if u == "%" {
		digits = 0
	} else if math.Abs(n) < 10 {
		digits = 2
	}
	return strconv.FormatFloat(n, 'f', digits, 64) + " " + u
}

// estimate is a number with its interval, or the reason why there is none.
func estimate(e *bench.Estimate, unit string) (value, interval string) {
	switch {
	case e == nil:
		return "–", ""
	case e.Value == nil && e.Few != nil:
		return "–", fmt.Sprintf("too few: %d, takes %d", e.Few.Have, e.Few.Need)
	case e.Value == nil:
		return "–", e.Reason
	}
	value = amount(*e.Value, unit)
	switch {
	case e.Interval != nil:
		interval = fmt.Sprintf("%s to %s", amount(e.Interval.Low, unit), amount(e.Interval.High, unit))
	case e.Few != nil:
		interval = fmt.Sprintf("no interval: takes n %d", e.Few.Need)
	default:
		interval = e.Reason
	}
	return value, interval
}

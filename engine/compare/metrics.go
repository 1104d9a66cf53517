package compare

import (
	"maps"
	"slices"
	"strconv"

	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/stats"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// spanPrefix begins the names of metrics that are a part of a reset's time.
const spanPrefix = "span."

const method = "values of rollouts that are neither warm-ups nor controls, of all runs of a side together; " +
	"p50 with the distribution-free interval of its order statistics, p95 by Hyndman and Fan's eighth definition; " +
	"the ratio is B's median over A's, from the lowest over the highest to the highest over the lowest of both medians' intervals at 97.5%, which takes seven values a side; rollouts are taken to be independent of each other; " +
	"a share has the interval of Clopper and Pearson; every interval holds at 95% or more"

// metric is one kind of number of a rollout.
type metric struct {
	name, title, unit string
	of                func(bench.Rollout) bench.Int64
}

func clock(read func(bench.Clocks) bench.Int64) func(bench.Rollout) bench.Int64 {
	return func(o bench.Rollout) bench.Int64 {
		if o.Clocks == nil {
			return ""
		}
		return read(*o.Clocks)
	}
}

func memory(read func(bench.Memory) bench.Int64) func(bench.Rollout) bench.Int64 {
	return func(o bench.Rollout) bench.Int64 {
		if o.Memory == nil {
			return ""
		}
		return read(*o.Memory)
	}
}

var clocks = []metric{
	{"mechanism", "reset: the mechanism returned", "ns", clock(func(c bench.Clocks) bench.Int64 { return c.Mechanism })},
	{"answer", "reset: first answer of the guest server", "ns", clock(func(c bench.Clocks) bench.Int64 { return c.Answer })},
	{"ready", "reset: the readiness rule holds", "ns", clock(func(c bench.Clocks) bench.Int64 { return c.Ready })},
	{"usable", "reset: usable", "ns", clock(func(c bench.Clocks) bench.Int64 { return c.Usable })},
	{"prepared", "made ready beforehand, in no clock", "ns", func(o bench.Rollout) bench.Int64 { return o.Prepared }},
}

var memories = []metric{
	{"private-dirty", "memory of a slot: private dirty", "bytes", memory(func(m bench.Memory) bench.Int64 { return m.PrivateDirty })},
	{"pss", "memory of a slot: proportional", "bytes", memory(func(m bench.Memory) bench.Int64 { return m.Pss })},
	{"harness", "memory of what keeps a slot: private dirty", "bytes", memory(func(m bench.Memory) bench.Int64 { return m.Harness })},
}

var stored = metric{"stored", "disk of a slot's own layer, after the act", "bytes", func(o bench.Rollout) bench.Int64 { return o.Stored }}

// metrics of two sides: clocks, sub-spans of the reset, memory, disk, the score. A
// metric that neither side has is left out.
func metrics(a, b []Run) []bench.ComparedMetric {
	x, y := measured(a), measured(b)
	list := slices.Clone(clocks)
	for _, name := range spans(x, y) {
		list = append(list, metric{spanPrefix + name, "reset: part " + name, "ns", func(o bench.Rollout) bench.Int64 { return o.Spans[name] }})
	}
	list = append(append(list, memories...), stored)
	out := []bench.ComparedMetric{}
	for _, m := range list {
		one, two := values(x, m), values(y, m)
		if len(one)+len(two) == 0 {
			continue
		}
		out = append(out, bench.ComparedMetric{Name: m.name, Title: m.title, Unit: m.unit,
			A: stats.Summarize(one), B: stats.Summarize(two), Ratio: stats.Ratio(one, two)})
	}
	return append(out, score(x, y))
}

// measured are the rollouts that numbers are drawn from.
func measured(runs []Run) (list []bench.Rollout) {
	for _, r := range runs {
		for _, o := range r.Record.Rollouts {
			if !o.Warmup && o.Control == "" && (o.Class == record.Success || o.Class == record.FailedValid) {
				list = append(list, o)
			}
		}
	}
	return list
}

func spans(a, b []bench.Rollout) []string {
	names := map[string]bool{}
	for _, o := range slices.Concat(a, b) {
		for name := range o.Spans {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func values(rollouts []bench.Rollout, m metric) (list []float64) {
	for _, o := range rollouts {
		if n, err := strconv.ParseInt(string(m.of(o)), 10, 64); err == nil { // absent: there was no such thing
			list = append(list, float64(n))
		}
	}
	return list
}

// score is the share of successes among valid rollouts.
func score(a, b []bench.Rollout) bench.ComparedMetric {
	share := func(rollouts []bench.Rollout) (bench.Summary, *float64) {
		k := 0
		for _, o := range rollouts {
			if o.Class == record.Success {
				k++
			}
		}
		e := stats.Share(k, len(rollouts))
		return bench.Summary{N: int64(len(rollouts)), P50: &e}, e.Value
	}
	m := bench.ComparedMetric{Name: "score", Title: "share of successes among valid rollouts", Unit: "share"}
	var x, y *float64
	m.A, x = share(a)
	m.B, y = share(b)
	switch {
	case x == nil || y == nil:
		m.Ratio = bench.Estimate{Few: &bench.TooFew{Have: min(m.A.N, m.B.N), Need: 1}}
	case *x == 0 || *y == 0:
		m.Ratio = bench.Estimate{Reason: "a share is 0"}
	default:
		v := *y / *x
		m.Ratio = bench.Estimate{Value: &v, Reason: "shares have intervals of their own; their ratio has none"}
	}
	return m
}

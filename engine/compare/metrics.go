package compare

import (
	"maps"
	"slices"
	"strconv"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/stats"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// spanPrefix begins the names of metrics that are a part of a reset's time.
const spanPrefix = "span."

const method = "values of rollouts that are neither warm-ups nor controls, and of dumps that passed, of all runs of a side together; " +
	"p50 with the distribution-free interval of its order statistics, p95 by Hyndman and Fan's eighth definition; " +
	"the ratio is B's median over A's, from the lowest over the highest to the highest over the lowest of both medians' intervals at 97.5%, which takes seven values a side; rollouts are taken to be independent of each other; " +
	"a share has the interval of Clopper and Pearson; every interval holds at 95% or more"

// metric is one kind of number of a rollout, or of a run's steps.
type metric struct {
	name, title, unit string
	of                func(bench.Rollout) bench.Int64
	// step says which steps' times it is; then there is no of.
	step func(bench.Step) bool
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
	return func(o bench.Rollout) bench.Int64 { return read(orNone(o.Memory)) }
}

func later(read func(bench.Memory) bench.Int64) func(bench.Rollout) bench.Int64 {
	return func(o bench.Rollout) bench.Int64 { return read(orNone(o.Later)) }
}

func orNone(m *bench.Memory) bench.Memory {
	if m == nil {
		return bench.Memory{}
	}
	return *m
}

var clocks = []metric{
	{"mechanism", "reset: the mechanism returned", "ns", clock(func(c bench.Clocks) bench.Int64 { return c.Mechanism }), nil},
	{"answer", "reset: first answer of the guest server", "ns", clock(func(c bench.Clocks) bench.Int64 { return c.Answer }), nil},
	{"ready", "reset: the readiness rule holds", "ns", clock(func(c bench.Clocks) bench.Int64 { return c.Ready }), nil},
	{"usable", "reset: usable", "ns", clock(func(c bench.Clocks) bench.Int64 { return c.Usable }), nil},
	{"own", "reset: what of it until usable is the engine's own work", "ns", func(o bench.Rollout) bench.Int64 { return o.Own }, nil},
	{"working-set", "pages: from the end of the mechanism until the working set was there", "ns", func(o bench.Rollout) bench.Int64 { return o.WorkingSet }, nil},
	{"touched", "pages: spent on what was touched, from usable until somebody had acted", "ns", func(o bench.Rollout) bench.Int64 { return o.Touched }, nil},
	{"act", "the act", "ns", func(o bench.Rollout) bench.Int64 { return o.Act }, nil},
	{"prepared", "made ready beforehand, in no clock", "ns", func(o bench.Rollout) bench.Int64 { return o.Prepared }, nil},
}

var memories = []metric{
	{"private-dirty", "memory of a slot: private dirty", "bytes", memory(func(m bench.Memory) bench.Int64 { return m.PrivateDirty }), nil},
	{"pss", "memory of a slot: proportional", "bytes", memory(func(m bench.Memory) bench.Int64 { return m.Pss }), nil},
	{"private-dirty-later", "memory of a slot, untouched since and later: private dirty", "bytes", later(func(m bench.Memory) bench.Int64 { return m.PrivateDirty }), nil},
	{"pss-later", "memory of a slot, untouched since and later: proportional", "bytes", later(func(m bench.Memory) bench.Int64 { return m.Pss }), nil},
	{"harness", "memory of what keeps a slot: private dirty", "bytes", memory(func(m bench.Memory) bench.Int64 { return m.Harness }), nil},
}

var stored = metric{"stored", "disk of a slot's own layer, after the act", "bytes", func(o bench.Rollout) bench.Int64 { return o.Stored }, nil}

// dumps are the times of checkpoints: the task's own, of which a run takes one, and
// those in the middle of a task that branches, one a round.
var dumps = []metric{
	{"dump", "dump: the task's checkpoint, the whole step", "ns", nil, func(s bench.Step) bool { return s.Kind == "dump" && s.Round == nil }},
	{"dump.branch", "dump: a checkpoint in the middle of the task, the whole step", "ns", nil, func(s bench.Step) bool { return s.Kind == "dump" && s.Round != nil && !s.Warmup }},
}

// metrics of two sides: clocks, sub-spans of the reset, dumps, memory, disk, the score. A
// metric that neither side has is left out.
func metrics(a, b []Run) []bench.ComparedMetric {
	x, y := measured(a), measured(b)
	list := slices.Clone(clocks)
	for _, name := range spans(x, y) {
		list = append(list, metric{spanPrefix + name, "reset: part " + name, "ns", func(o bench.Rollout) bench.Int64 { return o.Spans[name] }, nil})
	}
	list = slices.Concat(list, dumps, memories, []metric{stored})
	out := []bench.ComparedMetric{}
	for _, m := range list {
		one, two := values(a, m), values(b, m)
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

func values(runs []Run, m metric) (list []float64) {
	add := func(v bench.Int64) {
		if n, err := strconv.ParseInt(string(v), 10, 64); err == nil { // absent: there was no such thing
			list = append(list, float64(n))
		}
	}
	if m.step == nil {
		for _, o := range measured(runs) {
			add(m.of(o))
		}
		return list
	}
	for _, r := range runs {
		are := map[string]bool{}
		for _, s := range r.Plan.Steps {
			are[s.Id] = m.step(s)
		}
		for _, s := range r.Record.Steps {
			if are[s.Step] && s.Verdict == engine.Pass {
				add(s.Nanoseconds)
			}
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

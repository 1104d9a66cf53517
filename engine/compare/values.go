package compare

import (
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Method says how the numbers of a comparison are made.
const Method = method

// Score is the metric that is a share.
const Score = "score"

// single are the metrics that have a name of their own, but for the score.
var single = slices.Concat(clocks, dumps, memories, []metric{stored})

// named is the metric of that name, which is not the score.
func named(name string) (metric, bool) {
	if part, ok := strings.CutPrefix(name, spanPrefix); ok && part != "" {
		return metric{name, "reset: part " + part, "ns", func(o bench.Rollout) bench.Int64 { return o.Spans[part] }, nil}, true
	}
	for _, m := range single {
		if m.name == name {
			return m, true
		}
	}
	return metric{}, false
}

// MetricNames are the metrics of a comparison; after the last one come "span." and
// the name of any part of a reset.
func MetricNames() (names []string) {
	for _, m := range single {
		names = append(names, m.name)
	}
	return append(names, Score, spanPrefix)
}

// Unit of a metric: ns, bytes or share; false for a name that no comparison has.
func Unit(name string) (string, bool) {
	if name == Score {
		return "share", true
	}
	m, ok := named(name)
	return m.unit, ok
}

// Values of a metric in all runs together: those that a comparison draws its
// numbers from. Of the score they are 1 for a success and 0 for any other valid
// rollout; dumps are of runs, of which each has one of the task's. Whether the runs passed, and are alike, is for the caller to ask.
func Values(runs []Run, name string) (list []float64) {
	if name == Score {
		for _, o := range measured(runs) {
			v := 0.0
			if o.Class == record.Success {
				v = 1
			}
			list = append(list, v)
		}
		return list
	}
	m, ok := named(name)
	if !ok {
		return nil
	}
	return values(runs, m)
}

// Package soaktest looks, reset after reset of a long run, at everything that a run
// could come to hold more and more of, and judges whether it does.
//
// Always holds: a sample is taken between two rollouts, when no step runs, so that each
// is of the same state; the run's own things are told from others' by the run's claim,
// its folders and descent; what could not be read is an error, never a zero; the rule of
// the judgement stands in the result beside its numbers.
package soaktest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine/stats"
)

// Sample is what there was of each thing after a rollout.
type Sample struct {
	// Reset counts from 1, the controls' included.
	Reset  int64            `json:"reset"`
	Values map[string]int64 `json:"values"`
}

// Bound is by how much a thing's level may rise from one quarter of a run to the next.
type Bound struct {
	// Rise is allowed once, PerReset for each reset between the middles of the quarters.
	Rise     float64 `json:"rise"`
	PerReset float64 `json:"perReset,omitempty"`
	// Floor compares the quarters' smallest samples in place of their medians: others on
	// the host come and go.
	Floor bool `json:"floor,omitempty"`
	// Unit of the values.
	Unit string `json:"unit"`
	// Why the bound is not 0, where it is not.
	Why string `json:"why,omitempty"`
}

const mebibyte = 1 << 20

// Bounds are the things that are looked at.
var Bounds = map[string]Bound{
	// The run's own things: a reset that leaves one behind is a fault.
	"own.processes":  {Unit: "processes"},
	"own.mounts":     {Unit: "mounts"},
	"own.groups":     {Unit: "control groups"},
	"own.loops":      {Unit: "loop devices"},
	"own.namespaces": {Unit: "namespaces"},
	"own.entries":    {Unit: "things the ledger has and that are not gone"},
	"own.disk":       {Unit: "bytes", Rise: mebibyte, Why: "the guest writes into its own layer, and file systems give blocks out in groups"},

	// The engine.
	"engine.descriptors": {Unit: "descriptors", Rise: 2, Why: "one that nobody uses is closed when the collector comes by"},
	"engine.goroutines":  {Unit: "goroutines", Rise: 2, Why: "the collector and the signal handler start theirs when they are needed"},
	"engine.threads":     {Unit: "threads", Rise: 4, Why: "the scheduler makes one whenever all others are in a call, and keeps it"},
	"engine.heap":        {Unit: "bytes after a collection", Rise: mebibyte, PerReset: 48 << 10, Why: "a run remembers the outcome of each step until its end"},
	"engine.rss":         {Unit: "bytes", Rise: 24 * mebibyte, PerReset: 96 << 10, Why: "the heap's own growth, twice, since the collector lets it double; and pages that are not given back at once"},

	// The host, whoever it is.
	"host.processes":  {Unit: "processes", PerReset: 0.25, Floor: true, Rise: 64, Why: "others work on the host too: a leak shows in a long run"},
	"host.mounts":     {Unit: "mounts", PerReset: 0.25, Floor: true, Rise: 64, Why: "others work on the host too: a leak shows in a long run"},
	"host.groups":     {Unit: "control groups", PerReset: 0.25, Floor: true, Rise: 64, Why: "others work on the host too: a leak shows in a long run"},
	"host.loops":      {Unit: "loop devices", PerReset: 0.25, Floor: true, Rise: 64, Why: "others work on the host too: a leak shows in a long run"},
	"host.namespaces": {Unit: "network namespaces", PerReset: 0.25, Floor: true, Rise: 64, Why: "others work on the host too: a leak shows in a long run"},

	// The disk. A run keeps receipts and evidence of each reset; nothing else may grow.
	"state.disk": {Unit: "bytes outside of the run's directory", Rise: mebibyte, Why: "as of own.disk, which is among it"},
	"run.disk":   {Unit: "bytes of receipts, ledger, evidence and checkpoints", Rise: mebibyte, PerReset: 256 << 10, Why: "each reset has its receipts and its evidence, which are what a run is for"},
}

// Rule says how a judgement is come to.
const Rule = "of the samples' third and fourth quarter the medians (of host.* the smallest values) are compared; " +
	"a rise above the bound, which is rise + perReset times the resets between the quarters' middles, is growth"

// Needed is how many samples a judgement takes: two of a quarter at least.
const Needed = 8

// Series is what the judge says of one thing.
type Series struct {
	Name  string  `json:"name"`
	Bound Bound   `json:"bound"`
	First int64   `json:"first"`
	Last  int64   `json:"last"`
	Most  int64   `json:"most"`
	Third float64 `json:"third"`
	// Fourth quarter's level, and how many resets its middle is after the third's.
	Fourth float64 `json:"fourth"`
	Resets float64 `json:"resets"`
	// Grew says that the rise is above what is allowed.
	Allowed float64 `json:"allowed"`
	Grew    bool    `json:"grew"`
}

// String is the series on one line.
func (s Series) String() string {
	word := "no growth"
	if s.Grew {
		word = "GREW"
	}
	return fmt.Sprintf("%-20s first %d, last %d, most %d; third quarter %.0f, fourth %.0f, allowed %+.0f %s: %s", s.Name, s.First, s.Last, s.Most, s.Third, s.Fourth, s.Allowed, s.Bound.Unit, word)
}

// Judge the samples of a run, by [Rule]. An error says that they are too few, or not all of the same things.
func Judge(samples []Sample, bounds map[string]Bound) ([]Series, error) {
	if len(samples) < Needed {
		return nil, fmt.Errorf("judge soak: %d samples, it takes %d", len(samples), Needed)
	}
	var all []Series
	for _, name := range slices.Sorted(maps.Keys(bounds)) {
		b := bounds[name]
		var values, at []float64
		for _, s := range samples {
			v, known := s.Values[name]
			if !known {
				return nil, fmt.Errorf("judge soak: the sample after reset %d has no %s", s.Reset, name)
			}
			values, at = append(values, float64(v)), append(at, float64(s.Reset))
		}
		n := len(values)
		half, last := n/2, n-n/4
		level := func(v []float64) float64 {
			if b.Floor {
				return slices.Min(v)
			}
			return *stats.Median(v).Value
		}
		s := Series{Name: name, Bound: b, First: int64(values[0]), Last: int64(values[n-1]), Most: int64(slices.Max(values)),
			Third: level(values[half:last]), Fourth: level(values[last:]), Resets: *stats.Median(at[last:]).Value - *stats.Median(at[half:last]).Value}
		s.Allowed = b.Rise + b.PerReset*s.Resets
		s.Grew = s.Fourth-s.Third > s.Allowed
		all = append(all, s)
	}
	for name := range samples[0].Values {
		if _, bounded := bounds[name]; !bounded {
			return nil, fmt.Errorf("judge soak: %s has no bound", name)
		}
	}
	return all, nil
}

// Grown are the names of the series that grew.
func Grown(all []Series) string {
	var names []string
	for _, s := range all {
		if s.Grew {
			names = append(names, s.Name)
		}
	}
	return strings.Join(names, " ")
}

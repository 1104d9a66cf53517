package compile

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// amountUnits are what an amount may end with.
var amountUnits = []struct {
	suffix, unit string
	factor       float64
}{
	{"ms", "ns", 1e6}, {"s", "ns", 1e9}, {"m", "ns", 60e9}, {"h", "ns", 3600e9},
	{"KiB", "bytes", 1 << 10}, {"MiB", "bytes", 1 << 20}, {"GiB", "bytes", 1 << 30}, {"TiB", "bytes", 1 << 40},
}

// Amount is an amount as a number, and what it counts: ns, bytes, or nothing for a plain number.
func Amount(a bench.Amount) (value float64, unit string, err error) {
	digits, factor := string(a), 1.0
	for _, u := range amountUnits {
		if rest, ok := strings.CutSuffix(string(a), u.suffix); ok {
			digits, unit, factor = rest, u.unit, u.factor
			break // "ms" stands before "s"
		}
	}
	value, err = strconv.ParseFloat(digits, 64)
	if err != nil || math.IsInf(value*factor, 0) {
		return 0, "", fmt.Errorf("%q is no amount", a)
	}
	return value * factor, unit, nil
}

// bars checks what an experiment has to reach.
//
//	name         differs from every other bar's
//	of, over     sides that the manifest has: an arm of arms, a reset of experiment.reset; they differ
//	p50, p95     at least one, each with min or max, and min not above max
//	p95          neither with over nor of score, of which there is none
//	over         not of score: a share is judged by its own interval
func (r *rules) bars(m bench.Manifest) {
	var arms map[string]json.RawMessage
	data, err := json.Marshal(m.Arms)
	if err == nil {
		err = json.Unmarshal(data, &arms)
	}
	if err != nil {
		r.add("arms", err.Error(), "")
		return
	}
	names := map[bench.Name]int{}
	for i, b := range m.Experiment.Bars {
		path := fmt.Sprintf("experiment.bars[%d]", i)
		if first, twice := names[b.Name]; twice {
			r.add(path+".name", fmt.Sprintf("two bars are named %q: bars[%d] and bars[%d]", b.Name, first, i), "")
		} else {
			names[b.Name] = i
		}
		side := func(name string, s bench.BarSide) {
			if _, has := arms[string(s.Arm)]; !has {
				r.add(path+"."+name+".arm", fmt.Sprintf("the manifest has no arm %q", s.Arm), "name one of arms")
			}
			if !slices.Contains(m.Experiment.Reset, string(s.Reset)) {
				r.add(path+"."+name+".reset", fmt.Sprintf("the experiment has no reset %q", s.Reset), "name one of experiment.reset")
			}
		}
		side("of", b.Of)
		if b.Over != nil {
			side("over", *b.Over)
			switch {
			case *b.Over == b.Of:
				r.add(path+".over", "is the side that it divides", "name another arm or another reset")
			case b.Metric == "score":
				r.add(path+".over", "a share has no ratio with an interval", "set a bar for each side")
			case b.P95 != nil:
				r.add(path+".p95", "a ratio is of medians", "set p50")
			}
		}
		if b.Metric == "score" && b.P95 != nil {
			r.add(path+".p95", "a share has no 95th percentile", "set p50: the share itself")
		}
		if b.P50 == nil && b.P95 == nil {
			r.add(path, "bounds nothing", `set p50: max: "250ms", for example`)
		}
		r.bound(path+".p50", b.P50)
		r.bound(path+".p95", b.P95)
	}
}

func (r *rules) bound(path string, b *bench.Bound) {
	if b == nil {
		return
	}
	if b.Min == "" && b.Max == "" {
		r.add(path, "has neither min nor max", "")
		return
	}
	read := func(name string, a bench.Amount) (value float64, unit string, ok bool) {
		if a == "" {
			return 0, "", false
		}
		value, unit, err := Amount(a)
		if err != nil {
			r.add(path+"."+name, err.Error(), `"250ms", "64MiB" or "0.5"`)
		}
		return value, unit, err == nil
	}
	low, one, has := read("min", b.Min)
	high, two, also := read("max", b.Max)
	switch {
	case !has || !also:
	case one != two:
		r.add(path, fmt.Sprintf("min %s and max %s count different things", b.Min, b.Max), "")
	case low > high:
		r.add(path, fmt.Sprintf("min %s is above max %s", b.Min, b.Max), "nothing can reach it")
	}
}

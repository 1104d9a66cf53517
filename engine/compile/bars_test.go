package compile

import (
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

func TestAmount(t *testing.T) {
	for _, c := range []struct {
		text bench.Amount
		want float64
		unit string
	}{{"250ms", 250e6, "ns"}, {"1.5s", 1.5e9, "ns"}, {"2m", 120e9, "ns"}, {"1h", 3600e9, "ns"}, {"64MiB", 64 << 20, "bytes"}, {"1.5GiB", 3 << 29, "bytes"}, {"0.95", 0.95, ""}, {"0", 0, ""}} {
		if v, unit, err := Amount(c.text); err != nil || v != c.want || unit != c.unit {
			t.Errorf("%s: %v %q %v", c.text, v, unit, err)
		}
	}
	for _, text := range []bench.Amount{"", "fast", "ms", bench.Amount(strings.Repeat("9", 400))} {
		if _, _, err := Amount(text); err == nil {
			t.Errorf("%q is an amount", text)
		}
	}
}

// Each rule of bars is broken once.
func TestBarRules(t *testing.T) {
	drums := bench.BarSide{Arm: "drums", Reset: "restore"}
	good := func() bench.Bar {
		return bench.Bar{Name: "b", Metric: "usable", Of: drums, P50: &bench.Bound{Max: "250ms"}, N: 6}
	}
	for _, c := range []struct {
		path, text string
		change     func(*bench.Bar)
	}{
		{"", "", func(*bench.Bar) {}},
		{"experiment.bars[1].name", "two bars", func(b *bench.Bar) { b.Name = "first" }},
		{"experiment.bars[1].of.arm", `no arm "qemu"`, func(b *bench.Bar) { b.Of.Arm = "qemu" }},
		{"experiment.bars[1].of.reset", `no reset "cold"`, func(b *bench.Bar) { b.Of.Reset = "cold" }},
		{"experiment.bars[1].over.reset", `no reset "cold"`, func(b *bench.Bar) { b.Over = &bench.BarSide{Arm: "fake", Reset: "cold"} }},
		{"experiment.bars[1].over", "is the side that it divides", func(b *bench.Bar) { b.Over = &drums }},
		{"experiment.bars[1].over", "no ratio", func(b *bench.Bar) {
			b.Metric, b.Over = "score", &bench.BarSide{Arm: "fake", Reset: "restore"}
		}},
		{"experiment.bars[1].p95", "of medians", func(b *bench.Bar) {
			b.P95, b.Over = &bench.Bound{Max: "2"}, &bench.BarSide{Arm: "fake", Reset: "restore"}
		}},
		{"experiment.bars[1].p95", "no 95th percentile", func(b *bench.Bar) { b.Metric, b.P95 = "score", &bench.Bound{Max: "2"} }},
		{"experiment.bars[1]", "bounds nothing", func(b *bench.Bar) { b.P50 = nil }},
		{"experiment.bars[1].p50", "neither min nor max", func(b *bench.Bar) { b.P50 = &bench.Bound{} }},
		{"experiment.bars[1].p50", "above max", func(b *bench.Bar) { b.P50.Min = "1s" }},
		{"experiment.bars[1].p50", "different things", func(b *bench.Bar) { b.P50.Min = "1MiB" }},
		{"experiment.bars[1].p50.max", "no amount", func(b *bench.Bar) { b.P50.Max = "fast" }},
	} {
		m := full()
		first := good()
		first.Name = "first"
		m.Experiment.Bars = []bench.Bar{first, good()}
		c.change(&m.Experiment.Bars[1])
		var r rules
		r.bars(m)
		switch {
		case c.path == "" && len(r.problems) == 0:
		case len(r.problems) != 1 || r.problems[0].Path != c.path || !strings.Contains(r.problems[0].Text, c.text):
			t.Errorf("%s %s: have %v", c.path, c.text, r.problems)
		}
	}
}

package compare

import (
	"encoding/csv"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// CSV is the comparisons with one value a line, in the units of the JSON:
//
//	comparison,kind,verdict,about,name,side,what,value
//
// about is run, refusal, fact or metric; side is A, B, or empty for what is of both.
func CSV(c bench.Comparisons) (string, error) {
	var b strings.Builder
	w := csv.NewWriter(&b)
	put := func(cells ...string) { _ = w.Write(cells) } // Error tells
	put("comparison", "kind", "verdict", "about", "name", "side", "what", "value")
	for i, one := range c.Comparisons {
		row := func(about, name, side, what, value string) {
			put(strconv.Itoa(i+1), string(one.Kind), one.Verdict, about, name, side, what, value)
		}
		for _, s := range []struct {
			name string
			side bench.ComparedSide
		}{{"A", one.A}, {"B", one.B}} {
			for _, r := range s.side.Runs {
				row("run", r.Run, s.name, "verdict", string(r.Verdict))
			}
		}
		for _, r := range one.Refusals {
			row("refusal", r.Subject, "", r.Cause, r.Text)
		}
		for _, f := range one.Facts {
			row("fact", string(f.Name), "", "status", f.Status)
			row("fact", string(f.Name), "A", "value", full(f.A))
			row("fact", string(f.Name), "B", "value", full(f.B))
		}
		for _, m := range one.Metrics {
			summary := func(side string, s bench.Summary) {
				row("metric", m.Name, side, "n", strconv.FormatInt(s.N, 10))
				for _, v := range []struct {
					what  string
					value *float64
				}{{"min", s.Min}, {"max", s.Max}} {
					if v.value != nil {
						row("metric", m.Name, side, v.what, exact(*v.value))
					}
				}
				for _, v := range []struct {
					what  string
					value *bench.Estimate
				}{{"p50", s.P50}, {"p95", s.P95}} {
					if v.value != nil {
						estimateRows(row, m.Name, side, v.what, *v.value)
					}
				}
			}
			summary("A", m.A)
			summary("B", m.B)
			estimateRows(row, m.Name, "", "ratio", m.Ratio)
		}
	}
	w.Flush()
	return b.String(), w.Error()
}

func estimateRows(row func(about, name, side, what, value string), name, side, what string, e bench.Estimate) {
	if e.Value != nil {
		row("metric", name, side, what, exact(*e.Value))
	}
	if e.Interval != nil {
		row("metric", name, side, what+".low", exact(e.Interval.Low))
		row("metric", name, side, what+".high", exact(e.Interval.High))
	}
	if e.Few != nil {
		row("metric", name, side, what+".too-few", strconv.FormatInt(e.Few.Have, 10)+" of "+strconv.FormatInt(e.Few.Need, 10))
	}
	if e.Reason != "" {
		row("metric", name, side, what+".reason", e.Reason)
	}
}

func exact(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

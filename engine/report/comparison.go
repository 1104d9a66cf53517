package report

import (
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// comparison is a comparison or a refusal as the templates see it.
type comparison struct {
	Page         page
	C            bench.Comparison
	Title, Kind  string
	NameA, NameB string
	Manifest     string
	Path         string
	Line         string
	Sides        []sideView
	Declared     []declared
	Metrics      []comparedRow
	Emulated     bool
	Plot         template.HTML
}

type sideView struct {
	Name string
	Side bench.ComparedSide
	Runs []sideRun
	// Settings on a line.
	Settings string
}

// declared are the differences that a side's arm declares.
type declared struct {
	Name string
	List []bench.Difference
}

type sideRun struct {
	Run, Path string
	Verdict   bench.RunVerdict
}

type comparedRow struct {
	Title                string
	A, B                 row
	Ratio, RatioInterval string
}

// sideName is what tells a side from the other.
func sideName(c bench.Comparison, s bench.ComparedSide) string {
	name := s.Arm + " " + s.Reset
	if slices.Contains(c.Differ, "settings") {
		name += " (" + settings(s) + ")"
	}
	if slices.Contains(c.Differ, "slots") {
		name += fmt.Sprintf(", %d slots", s.Slots)
	}
	return name
}

func settings(s bench.ComparedSide) string {
	var list []string
	for k, v := range s.Settings {
		list = append(list, k+" "+v)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func comparisonSlug(c bench.Comparison) string {
	end := ""
	for _, s := range []bench.ComparedSide{c.A, c.B} {
		if len(s.Runs) > 0 {
			end += "-" + string(s.Runs[0].Events)[:min(6, len(s.Runs[0].Events))]
		}
	}
	return plain("compare "+sideName(c, c.A)+" with "+sideName(c, c.B)) + end
}

func seeComparison(c bench.Comparison, runs []*view, in Input, slug string) (*comparison, error) {
	v := &comparison{C: c, Kind: string(c.Kind), NameA: sideName(c, c.A), NameB: sideName(c, c.B), Path: "comparisons/" + slug + ".html"}
	if len(c.Differ) == 0 {
		v.NameB += " again"
	}
	v.Title = v.NameA + " beside " + v.NameB
	v.Page = in.page(v.Title, "../")
	var manifests []string
	for i, s := range []bench.ComparedSide{c.A, c.B} {
		side := sideView{Name: []string{"A", "B"}[i], Side: s, Settings: settings(s)}
		for _, r := range s.Runs {
			one := sideRun{Run: r.Run, Verdict: r.Verdict}
			for _, known := range runs {
				if known.Record.Digests["events"] != r.Events {
					continue
				}
				one.Path = "../" + known.Path
				v.Emulated = v.Emulated || known.Emulated
				if m := known.Record.Manifest; !slices.Contains(manifests, m) {
					manifests = append(manifests, m)
				}
			}
			side.Runs = append(side.Runs, one)
		}
		v.Sides = append(v.Sides, side)
	}
	for _, f := range c.Facts {
		v.Emulated = v.Emulated || f.Name == "accelerator" && (f.A.Known && f.A.Value == "tcg" || f.B.Known && f.B.Value == "tcg")
	}
	v.Declared = []declared{{"A: " + v.NameA, c.A.Differences}, {"B: " + v.NameB, c.B.Differences}}
	if slices.Equal(c.A.Differences, c.B.Differences) {
		v.Declared = []declared{{"The same on both sides", c.A.Differences}}
	}
	v.Manifest = strings.Join(manifests, ", ")
	if len(c.Refusals) > 0 {
		v.Line = c.Refusals[0].Subject + ": " + c.Refusals[0].Text
		return v, nil // a refusal has no number, whatever else its file says
	}
	var bars []between
	for _, m := range c.Metrics {
		r := comparedRow{Title: m.Title, A: rowOf(Metric{Unit: m.Unit, Summary: m.A, Of: m.A.N}), B: rowOf(Metric{Unit: m.Unit, Summary: m.B, Of: m.B.N})}
		r.Ratio, r.RatioInterval = ratio(m.Ratio)
		v.Metrics = append(v.Metrics, r)
		if m.Name == "usable" && m.A.P50 != nil && m.B.P50 != nil {
			v.Line = fmt.Sprintf("%s: p50 %s beside %s, ratio %s (%s)", m.Title, r.A.P50, r.B.P50, r.Ratio, r.RatioInterval)
			if v.Emulated {
				v.Line += ", emulated"
			}
		}
		if m.Unit != "ns" || strings.HasPrefix(m.Name, "span.") {
			continue
		}
		for i, s := range []bench.Summary{m.A, m.B} {
			if b, ok := barOf(s, m.Unit); ok {
				b.name, b.series = strings.TrimPrefix(m.Title, "reset: ")+[]string{", A", ", B"}[i], i
				bars = append(bars, b)
			}
		}
	}
	if len(bars) == 0 {
		return v, nil
	}
	unit := "ms from the start of the reset"
	if v.Emulated {
		unit += ", emulated"
	}
	var err error
	v.Plot, err = intervals("medians", "Medians with their intervals", fmt.Sprintf("Medians of the clocks, A is %s, B is %s.", v.NameA, v.NameB), unit, bars)
	return v, err
}

func barOf(s bench.Summary, unit string) (b between, ok bool) {
	if s.P50 == nil || s.P50.Value == nil {
		return b, false
	}
	b.value = *s.P50.Value / 1e6
	b.low, b.high = b.value, b.value
	if i := s.P50.Interval; i != nil {
		b.low, b.high = i.Low/1e6, i.High/1e6
	}
	return b, unit == "ns"
}

// ratio is a number without a unit, with its interval.
func ratio(e bench.Estimate) (value, interval string) {
	if e.Value == nil {
		_, interval = estimate(&e, "")
		return "–", interval
	}
	value = fmt.Sprintf("%.3g", *e.Value)
	switch {
	case e.Interval != nil:
		interval = fmt.Sprintf("%.3g to %.3g", e.Interval.Low, e.Interval.High)
	default:
		_, interval = estimate(&e, "")
	}
	return value, interval
}

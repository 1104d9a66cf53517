package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/drumsbench/drumsbench/engine/density"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// densities of the runs that are sound.
func densities(runs []*Run) (bench.Densities, error) {
	var parts []density.Run
	for _, r := range runs {
		if r.Sound() {
			parts = append(parts, density.Run{Record: r.Record, Manifest: r.Manifest})
		}
	}
	return density.Of(parts)
}

// densitySection is what many slots at once take and give, over all runs of sweeps
// and sustained windows; nil where there is none.
func densitySection(runs []*Run) (*Section, error) {
	all, err := densities(runs)
	if err != nil || len(all.Densities) == 0 {
		return nil, err
	}
	s := &Section{ID: "density", Title: "Many slots at once", Text: []string{"What one more slot takes of the host, how many hold, and what they give."}, Notes: []string{all.Method}}
	failures := Table{Name: "density-failures", Caption: "Runs that did not pass, rollouts that were not valid, and what slots saw of each other", Head: heads("of", "what")}
	for i, d := range all.Densities {
		t := Table{Name: fmt.Sprintf("density-%d", i), Short: density.Title(d), Caption: fmt.Sprintf("%s, workload %.12s", density.Title(d), d.Workload), Head: heads("metric", "value#", "low#", "high#", "unit", "n#", "of", "note")}
		for _, r := range density.Rows(d) {
			t.Rows = append(t.Rows, []Cell{{Text: r.Title, Raw: r.Name}, text(cmp.Or(r.Value, "–")), text(r.Low), text(r.High), text(r.Unit), text(r.N), text(r.Of), text(r.Note)})
		}
		s.Tables = append(s.Tables, t)
		for _, l := range density.Failures(d) {
			failures.Rows = append(failures.Rows, []Cell{text(density.Title(d)), text(l)})
		}
		if len(d.Noise) > 0 {
			s.Notes = append(s.Notes, fmt.Sprintf("%s: the host was not quiet around these runs (%d findings), the first: %s", density.Title(d), len(d.Noise), d.Noise[0]))
		}
		f, drawn, err := slopeFigure(fmt.Sprintf("density-slope-%d", i), d)
		if err != nil {
			return nil, err
		}
		if drawn {
			s.Figures = append(s.Figures, f)
		}
	}
	if len(failures.Rows) > 0 {
		s.Tables = append(s.Tables, failures)
	}
	return s, nil
}

// slopeFigure draws each reading of host memory, and the line of the slope between
// those of its interval. The line goes through the middle of all readings.
func slopeFigure(id string, d bench.Density) (f Figure, drawn bool, err error) {
	var points plotter.XYs
	x, y := 0.0, 0.0
	for _, l := range d.Levels {
		for _, r := range l.Runs {
			if above, err := strconv.ParseFloat(string(r.Above), 64); err == nil {
				points = append(points, plotter.XY{X: float64(l.Slots), Y: above / (1 << 20)})
				x, y = x+float64(l.Slots), y+above/(1<<20)
			}
		}
	}
	if len(points) == 0 {
		return f, false, nil
	}
	x, y = x/float64(len(points)), y/float64(len(points))
	least := slices.MinFunc(points, func(a, b plotter.XY) int { return int(a.X - b.X) }).X
	most := slices.MaxFunc(points, func(a, b plotter.XY) int { return int(a.X - b.X) }).X
	p := newPlot("slots at the same time", "MiB above the host without a slot")
	s, err := plotter.NewScatter(points)
	if err != nil {
		return f, false, fmt.Errorf("draw %s: %w", id, err)
	}
	s.Color, s.Shape, s.Radius = lineColours[0], draw.CircleGlyph{}, vg.Points(3)
	p.Add(s)
	f = Figure{Title: "Host memory against slots: " + density.Title(d), Keys: []seriesKey{{Class: "s1", Name: fmt.Sprintf("readings (n %d)", len(points)), Shape: "circle"}}}
	line := func(slope *float64, k int) error {
		if slope == nil {
			return nil
		}
		m := *slope / (1 << 20)
		l, err := plotter.NewLine(plotter.XYs{{X: least, Y: y + m*(least-x)}, {X: most, Y: y + m*(most-x)}})
		if err != nil {
			return fmt.Errorf("draw %s: %w", id, err)
		}
		l.Color, l.Width, l.Dashes = lineColours[k], vg.Points(1.6), dashes[k]
		p.Add(l)
		return nil
	}
	for _, one := range []struct {
		slope *float64
		k     int
	}{{d.Slope.Value, 0}, {d.Slope.Low, 1}, {d.Slope.High, 1}} {
		if err := line(one.slope, one.k); err != nil {
			return f, false, err
		}
	}
	p.X.Min, p.X.Max = 0, most+0.5
	p.X.Tick.Marker = plot.TickerFunc(func(low, high float64) (ticks []plot.Tick) {
		for _, l := range d.Levels { // slots are whole
			ticks = append(ticks, plot.Tick{Value: float64(l.Slots), Label: strconv.FormatInt(l.Slots, 10)})
		}
		return ticks
	})
	f.Caption = "no slope: " + d.Slope.Reason
	if d.Slope.Value != nil {
		f.Caption = fmt.Sprintf("%.2f MiB for one more slot, %d trials", *d.Slope.Value/(1<<20), len(d.Slope.Trials))
		f.Keys = append(f.Keys, seriesKey{Class: "s1", Name: "slope"})
		if d.Slope.Low != nil {
			f.Caption += fmt.Sprintf("; 95%% interval %.2f to %.2f", *d.Slope.Low/(1<<20), *d.Slope.High/(1<<20))
			f.Keys = append(f.Keys, seriesKey{Class: "s2", Name: "ends of its interval", Dash: "5 2"})
		} else {
			f.Caption += "; " + d.Slope.Reason
		}
	}
	f.SVG, err = svg(p, 620, 300, id, f.Title, f.Caption)
	return f, err == nil, err
}

// hostSection is what the host could do and was busy with before and after a run;
// nil where nobody probed it.
func hostSection(r *Run) (*Section, error) {
	t := Table{Name: "host-probe", Caption: "What the host could do, and what it was busy with", Head: heads("when", "quiet", "memcpy GB/s#", "page fault ns#", "fork and exec ms#", "fsync ms#", "huge pages", "KSM", "busy#", "steal#", "pages swapped#", "load", "pressure cpu, io, memory")}
	s := &Section{ID: "host-probe", Title: "The host before and after"}
	scaled := func(v bench.Int64, unit float64) Cell {
		n, err := strconv.ParseFloat(string(v), 64)
		if err != nil {
			return text("unknown")
		}
		places := 2
		if unit == 1 {
			places = 0 // it is whole
		}
		return Cell{Text: strconv.FormatFloat(n/unit, 'f', places, 64), Raw: string(v)}
	}
	for _, when := range []struct{ name, text string }{{density.ProbeBefore, "before"}, {density.ProbeAfter, "after"}} {
		h, err := density.Probe(r.Record, when.name)
		if err != nil {
			return nil, err
		}
		if h == nil {
			continue
		}
		quiet := "yes"
		if len(h.Noise) > 0 {
			quiet = "NO"
			s.Notes = append(s.Notes, "not quiet "+when.text+": "+strings.Join(h.Noise, "; "))
		}
		t.Rows = append(t.Rows, []Cell{text(when.text), text(quiet), scaled(h.Memcpy, 1e9), scaled(h.PageFault, 1), scaled(h.ForkExec, 1e6), scaled(h.Fsync, 1e6), text(h.Thp), text(h.Ksm),
			text(string(h.Busy)), text(string(h.Steal)), text(string(h.Swapping)), text(h.Load), text(h.Pressure["cpu"] + ", " + h.Pressure["io"] + ", " + h.Pressure["memory"])})
	}
	if len(t.Rows) == 0 {
		return nil, nil
	}
	s.Tables = []Table{t}
	return s, nil
}

package report

import (
	"bytes"
	"fmt"
	"html"
	"html/template"
	"image/color"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colours that stand for classes of the style sheet: a page is light or dark by
// the reader's choice, and a plot is drawn once.
var (
	inkColour   = color.RGBA{1, 2, 3, 255}
	gridColour  = color.RGBA{1, 2, 4, 255}
	lineColours = []color.RGBA{{2, 0, 1, 255}, {2, 0, 2, 255}, {2, 0, 3, 255}, {2, 0, 4, 255}}
	classOf     = map[string]string{"#010203": "ink", "#010204": "grid", "#020001": "s1", "#020002": "s2", "#020003": "s3", "#020004": "s4"}
	dashes      = [][]vg.Length{nil, {vg.Points(5), vg.Points(2)}, {vg.Points(1.5), vg.Points(2)}, {vg.Points(7), vg.Points(2), vg.Points(1.5), vg.Points(2)}}
)

// series is a named sample of a plot.
type series struct {
	name   string
	values []float64
}

func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.Transparent
	p.X.Label.Text, p.Y.Label.Text = x, y
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Color, a.Tick.Color = inkColour, inkColour
		a.Tick.Label.Color, a.Label.TextStyle.Color = inkColour, inkColour
		a.Tick.Label.Font.Size, a.Label.TextStyle.Font.Size = 10, 11
		a.LineStyle.Color, a.Tick.LineStyle.Color = inkColour, inkColour
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(round), plot.TickerFunc(round)
	g := plotter.NewGrid()
	g.Vertical.Color, g.Horizontal.Color = gridColour, gridColour
	p.Add(g)
	return p
}

// round numbers, about eight of them.
func round(low, high float64) (list []plot.Tick) {
	if !(high > low) {
		return []plot.Tick{{Value: low, Label: strconv.FormatFloat(low, 'g', 4, 64)}}
	}
	step := roundStep((high - low) / 8)
	for i := math.Ceil(low/step-1e-9) + 0; i*step <= high+step*1e-9; i++ {
		list = append(list, plot.Tick{Value: i * step, Label: strconv.FormatFloat(i*step+0, 'g', 6, 64)})
	}
	return list
}

// roundStep is 1, 2 or 5 times a power of ten, at least least.
func roundStep(least float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(least)))
	for _, m := range []float64{1, 2, 5} {
		if step*m >= least {
			return step * m
		}
	}
	return step * 10
}

// distribution draws samples as empirical distribution functions: of each value,
// the share of the rollouts that were at or below it.
func distribution(id, title, text, unit string, list []series) (template.HTML, error) {
	p := newPlot(unit, "share of rollouts")
	low, high := 0.0, 0.0
	for i, s := range list {
		values := slices.Sorted(slices.Values(s.values))
		if len(values) == 0 {
			continue
		}
		if high == 0 {
			low, high = values[0], values[0]
		}
		low, high = min(low, values[0]), max(high, values[len(values)-1])
		line := plotter.XYs{{X: values[0], Y: 0}}
		points := make(plotter.XYs, len(values))
		for k, v := range values {
			y := float64(k+1) / float64(len(values))
			line = append(line, plotter.XY{X: v, Y: float64(k) / float64(len(values))}, plotter.XY{X: v, Y: y})
			points[k] = plotter.XY{X: v, Y: y}
		}
		l, err := plotter.NewLine(line)
		if err != nil {
			return "", fmt.Errorf("draw %s: %w", title, err)
		}
		l.Color, l.Width, l.Dashes = lineColours[i%4], vg.Points(1.6), dashes[i%4]
		s2, err := plotter.NewScatter(points)
		if err != nil {
			return "", fmt.Errorf("draw %s: %w", title, err)
		}
		s2.Color, s2.Shape, s2.Radius = lineColours[i%4], draw.CircleGlyph{}, vg.Points(2.2)
		p.Add(l, s2)
	}
	pad := max((high-low)*0.04, high*0.01, 1e-9)
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = max(0, low-pad), high+pad, 0, 1.02
	return svg(p, 620, 300, id, title, text)
}

// byRollout draws samples by their place in the run.
func byRollout(id, title, text, unit string, list []series) (template.HTML, error) {
	p := newPlot("measured rollout, in order", unit)
	high := 0.0
	for i, s := range list {
		points := make(plotter.XYs, len(s.values))
		for k, v := range s.values {
			points[k] = plotter.XY{X: float64(k + 1), Y: v}
			high = max(high, v)
			p.X.Max = max(p.X.Max, float64(k+1))
		}
		s2, err := plotter.NewScatter(points)
		if err != nil {
			return "", fmt.Errorf("draw %s: %w", title, err)
		}
		s2.Color, s2.Radius = lineColours[i%4], vg.Points(3)
		s2.Shape = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}}[i%3]
		p.Add(s2)
	}
	n := 0
	for _, s := range list {
		n = max(n, len(s.values))
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0.5, float64(n)+0.5, 0, high*1.15
	p.X.Tick.Marker = plot.TickerFunc(func(float64, float64) (t []plot.Tick) {
		every := max(1, n/10)
		for k := 1; k <= n; k += every {
			t = append(t, plot.Tick{Value: float64(k), Label: fmt.Sprint(k)})
		}
		return t
	})
	return svg(p, 620, 240, id, title, text)
}

// between is a value with its interval, for a row of a plot.
type between struct {
	name             string
	value, low, high float64
	series           int
}

// intervals draws values with their intervals, a row each.
func intervals(id, title, text, unit string, rows []between) (template.HTML, error) {
	p := newPlot(unit, "")
	high := 0.0
	names := make([]plot.Tick, len(rows))
	for i, r := range rows {
		y := float64(len(rows) - i)
		names[i] = plot.Tick{Value: y, Label: r.name}
		high = max(high, r.high, r.value)
		l, err := plotter.NewLine(plotter.XYs{{X: r.low, Y: y}, {X: r.high, Y: y}})
		if err != nil {
			return "", fmt.Errorf("draw %s: %w", title, err)
		}
		l.Color, l.Width = lineColours[r.series%4], vg.Points(2)
		s, err := plotter.NewScatter(plotter.XYs{{X: r.value, Y: y}})
		if err != nil {
			return "", fmt.Errorf("draw %s: %w", title, err)
		}
		s.Color, s.Radius = lineColours[r.series%4], vg.Points(3.5)
		s.Shape = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}}[r.series%2]
		p.Add(l, s)
	}
	p.Y.Tick.Marker = plot.ConstantTicks(names)
	p.Y.Min, p.Y.Max, p.X.Min, p.X.Max = 0.4, float64(len(rows))+0.6, 0, max(high*1.05, 1e-9)
	return svg(p, 620, vg.Length(70+22*len(rows)), id, title, text)
}

var (
	styled  = regexp.MustCompile(`style="([^"]*)"`)
	opening = regexp.MustCompile(`(?s)^.*?<svg[^>]*viewBox="([^"]*)"[^>]*>`)
)

// svg renders a plot as an element of a page: its colours are classes, its text
// has the page's font and colour, it has a name for who cannot see it, and no
// style attribute, which the page's policy forbids.
func svg(p *plot.Plot, w, h vg.Length, id, title, text string) (template.HTML, error) {
	c := vgsvg.New(w, h)
	p.Draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", fmt.Errorf("draw %s: %w", title, err)
	}
	found := opening.FindStringSubmatch(b.String())
	if found == nil {
		return "", fmt.Errorf("draw %s: the plot is no svg", title)
	}
	body := styled.ReplaceAllStringFunc(strings.TrimPrefix(b.String(), found[0]), func(s string) string {
		return attributes(styled.FindStringSubmatch(s)[1])
	})
	head := fmt.Sprintf(`<svg class="plot" viewBox="%s" role="img" aria-labelledby="%s-t %s-d"><title id="%s-t">%s</title><desc id="%s-d">%s</desc>`,
		found[1], id, id, id, html.EscapeString(title), id, html.EscapeString(text))
	return template.HTML(head + body), nil //nolint:gosec // vgsvg escapes the text that it draws
}

// attributes is a style as SVG attributes, colours as classes.
func attributes(style string) string {
	var list, classes []string
	for _, part := range strings.Split(style, ";") {
		key, value, ok := strings.Cut(part, ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok || strings.HasPrefix(key, "font-") && key != "font-size" {
			continue
		}
		if class := classOf[strings.ToLower(value)]; class != "" && (key == "fill" || key == "stroke") {
			classes = append(classes, key[:1]+"-"+class)
			continue
		}
		list = append(list, fmt.Sprintf(`%s="%s"`, key, value))
	}
	if len(classes) > 0 {
		list = append(list, fmt.Sprintf(`class="%s"`, strings.Join(classes, " ")))
	}
	return strings.Join(list, " ")
}

package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Chart is a Gantt chart in units of an SVG's view box.
type Chart struct {
	ID, Title string
	// Text says what the chart shows to whoever cannot see it.
	Text          string
	Width, Height float64
	Lanes         []Lane
	Ticks         []Tick
	Groups        []Group
	// Bottom is where the axis is, Unit what its ticks count; empty for a chart without a scale.
	Bottom float64
	Unit   string
}

// Lane is a row of bars with a name.
type Lane struct {
	Name, Note string
	Y, Height  float64
	// Quiet lanes yield no number: controls and warm-ups.
	Quiet bool
	Bars  []Bar
	Marks []Mark
}

// Bar is a step.
type Bar struct {
	X, Y, Width, Height float64
	// Group is the class that the bar's colour comes from; Bad that of a step that stopped the run.
	Group, Bad string
	Title      string
}

// Mark is a clock of a reset.
type Mark struct {
	X, Y1, Y2 float64
	Title     string
}

// Tick of the axis.
type Tick struct {
	X    float64
	Text string
}

// Group of kinds with one colour.
type Group struct{ Class, Name string }

// groups of kinds of steps, by what they are to a reset.
var groups = []struct {
	Group
	kinds []string
}{
	{Group{"g1", "mount, provision"}, []string{"mount", "provision", "adopt", "survey", "drop-cache"}},
	{Group{"g2", "restore, dump, checkpoint"}, []string{"restore", "dump", "checkpoint"}},
	{Group{"g3", "resume, readiness"}, []string{"resume", "readiness"}},
	{Group{"g4", "gates, inspect"}, []string{"gate", "inspect"}},
	{Group{"g5", "prepare, reseed"}, []string{"prepare", "reseed"}},
	{Group{"g6", "act"}, []string{"act", "execute", "command"}},
	{Group{"g7", "evaluate, measure"}, []string{"evaluate", "measure"}},
	{Group{"g8", "release"}, []string{"release"}},
}

func groupOf(kind string) string {
	for _, g := range groups {
		if slices.Contains(g.kinds, kind) {
			return g.Class
		}
	}
	return "g9"
}

// timed is a step with its time in ns since the run's start.
type timed struct {
	step       bench.Step
	verdict    bench.Verdict
	start, end float64
}

// timeline is the steps that have a receipt with times, in the order of the plan.
func (r *Run) timeline() (list []timed) {
	by := map[string]Receipt{}
	for _, e := range r.Receipts {
		if e.Event == "step" {
			by[e.Step] = e
		}
	}
	for _, s := range r.Plan.Steps {
		e, ran := by[s.Id]
		start, err := strconv.ParseInt(string(e.Start), 10, 64)
		end, also := strconv.ParseInt(string(e.End), 10, 64)
		if ran && err == nil && also == nil && end >= start {
			list = append(list, timed{s, e.Verdict, float64(start), float64(end)})
		}
	}
	return list
}

const (
	chartWidth = 960.0
	labelWidth = 128.0
	barHeight  = 13.0
	laneGap    = 7.0
)

// laneOf is the row that a step belongs to.
func laneOf(s bench.Step) string {
	switch {
	case s.Rollout != nil && !s.Release:
		return "rollout " + strconv.FormatInt(*s.Rollout, 10)
	case s.Release:
		return "release"
	}
	return "base"
}

// noteOf says why a rollout yields no number; empty if it does.
func noteOf(s bench.Step) string {
	switch {
	case s.Rollout == nil:
		return ""
	case s.Control == "oracle":
		return "control: oracle"
	case s.Control == "none":
		return "control: nobody"
	case s.Control != "":
		return "control: " + s.Control
	case s.Warmup:
		return "warm-up"
	}
	return ""
}

// Timeline is the whole run: a row for what comes before the rollouts, one for
// each rollout, one for the end. A run that yields no number has no scale and its
// bars no durations.
func (r *Run) Timeline() Chart {
	list := r.timeline()
	if len(list) == 0 {
		return Chart{}
	}
	from, to := math.Inf(1), math.Inf(-1)
	for _, t := range list {
		from, to = min(from, t.start), max(to, t.end)
	}
	c := Chart{ID: "timeline", Title: "Timeline of the steps", Width: chartWidth}
	c.Text = fmt.Sprintf("Gantt chart of %d steps, a row for each rollout.", len(list))
	c.lay(list, from, to, 0, func(timed) float64 { return 0 }, r.Counts(), nil)
	return c
}

// Resets is each rollout from the start of its reset until it is usable, or
// until the act begins, all from the same left edge. Nothing of a run that yields
// no number.
func (r *Run) Resets() Chart {
	if !r.Counts() {
		return Chart{}
	}
	zero := map[int64]float64{}
	acted := map[int64]bool{}
	var list []timed
	longest := 0.0
	for _, t := range r.timeline() {
		s := t.step
		if s.Rollout == nil || s.Release {
			continue
		}
		if s.Kind == "act" {
			acted[*s.Rollout] = true
		}
		if _, begun := zero[*s.Rollout]; !begun && (s.Kind == "restore" || s.Kind == "provision") {
			zero[*s.Rollout] = t.start
		}
		if _, begun := zero[*s.Rollout]; !begun || acted[*s.Rollout] || s.Kind == "evaluate" || s.Kind == "measure" {
			continue
		}
		list = append(list, t)
		longest = max(longest, t.end-zero[*s.Rollout])
	}
	if len(list) == 0 {
		return Chart{}
	}
	c := Chart{ID: "resets", Title: "The resets, each from its own start", Width: chartWidth}
	c.Text = fmt.Sprintf("Gantt chart of the resets of %d rollouts, each from its own start.", len(zero))
	marks := map[string][]clockAt{}
	for _, o := range r.Record.Rollouts {
		if o.Clocks == nil {
			continue
		}
		lane := "rollout " + strconv.FormatInt(o.Index, 10)
		for _, k := range clockList {
			if at := appendNumber(nil, k.of(o.Clocks)); at != nil {
				marks[lane] = append(marks[lane], clockAt{k.title, at[0]})
			}
		}
	}
	c.lay(list, 0, longest, 0, func(t timed) float64 { return zero[*t.step.Rollout] }, true, marks)
	return c
}

// clockAt is a clock in ns since the start of its reset.
type clockAt struct {
	title string
	at    float64
}

// lay puts the bars into rows; bars of a row that overlap stand beneath each other.
func (c *Chart) lay(list []timed, from, to, top float64, zero func(timed) float64, scale bool, marks map[string][]clockAt) {
	if to <= from {
		to = from + 1
	}
	x := func(at float64) float64 { return labelWidth + (at-from)/(to-from)*(chartWidth-labelWidth-12) }
	var names []string
	rows := map[string][]timed{}
	used := map[string]bool{}
	for _, t := range list {
		name := laneOf(t.step)
		if rows[name] == nil {
			names = append(names, name)
		}
		rows[name] = append(rows[name], t)
		used[groupOf(t.step.Kind)] = true
	}
	for i, name := range names { // the end comes last
		if name == "release" {
			names = append(slices.Delete(names, i, i+1), name)
			break
		}
	}
	y := top + 4
	for _, name := range names {
		row := rows[name]
		slices.SortStableFunc(row, func(a, b timed) int {
			switch {
			case a.start-zero(a) < b.start-zero(b):
				return -1
			case a.start-zero(a) > b.start-zero(b):
				return 1
			}
			return 0
		})
		note := noteOf(row[0].step)
		lane := Lane{Name: name, Note: note, Y: y, Quiet: note != ""}
		var ends []float64
		for _, t := range row {
			x1, x2 := x(t.start-zero(t)), x(t.end-zero(t))
			x2 = max(x2, x1+1.2) // what is short can still be seen
			sub := slices.IndexFunc(ends, func(e float64) bool { return e <= t.start-zero(t) })
			if sub < 0 {
				sub, ends = len(ends), append(ends, 0)
			}
			ends[sub] = t.end - zero(t)
			b := Bar{X: x1, Y: y + float64(sub)*(barHeight+1), Width: x2 - x1, Height: barHeight, Group: groupOf(t.step.Kind)}
			b.Title = fmt.Sprintf("%s (%s): %s", t.step.Id, t.step.Kind, t.verdict)
			if scale && note == "" {
				b.Title += ", " + span(t.end-t.start)
			}
			if engine.Stops(t.verdict, t.step.Optional) {
				b.Bad = "bad"
			} else if t.verdict == engine.Review {
				b.Bad = "waits"
			}
			lane.Bars = append(lane.Bars, b)
		}
		lane.Height = max(float64(len(ends))*(barHeight+1), barHeight+1)
		if note != "" {
			lane.Height = max(lane.Height, 2*(barHeight+1))
		}
		for _, m := range marks[name] {
			if note == "" {
				lane.Marks = append(lane.Marks, Mark{X: x(m.at), Y1: y - 3, Y2: y + lane.Height + 2, Title: name + ": " + m.title + " " + span(m.at)})
			}
		}
		y += lane.Height + laneGap
		c.Lanes = append(c.Lanes, lane)
	}
	c.Bottom = y
	c.Height = y + 6
	if scale {
		c.Height = y + 26
		c.Ticks, c.Unit = ticks(from, to, x)
	}
	for _, g := range groups {
		if used[g.Class] {
			c.Groups = append(c.Groups, g.Group)
		}
	}
	if used["g9"] {
		c.Groups = append(c.Groups, Group{"g9", "other"})
	}
}

func span(ns float64) string { return time.Duration(ns).Round(time.Microsecond).String() }

// ticks at round numbers, about seven of them, since from.
func ticks(from, to float64, x func(float64) float64) (list []Tick, unit string) {
	unit, per := "ms", 1e6
	if to-from >= 4e9 {
		unit, per = "s", 1e9
	}
	step := roundStep((to - from) / per / 7)
	for i := 0; ; i++ {
		at := step * float64(i)
		if at*per > to-from {
			return list, unit
		}
		list = append(list, Tick{X: x(from + at*per), Text: strconv.FormatFloat(at, 'g', 6, 64)})
	}
}

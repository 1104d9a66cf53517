// Package density says what many slots at once cost a host and how many hold: the
// slope of host memory against slots, the largest stable number, valid rollouts an
// hour, what one costs, and whether slots see each other.
//
// Always holds: every number comes from records; one of a run that did not pass is
// no number, and its failure stands beside the others; where there is too little,
// the reason stands in place of the number; money is counted exactly; events of
// isolation stand only beside a control that fired in the same run.
package density

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/big"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/stats"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Method says how the numbers are made.
const Method = "memory slope: mean over trials of the least-squares slopes of host memory (MemTotal without MemAvailable, with all slots ready and at rest, " +
	"above the mean of the baselines without a slot before and after) against slots at the same time, with the studentized bootstrap interval over trials at 95%, of levels that passed in every trial; " +
	"memory of a slot: medians over slots and trials of private dirty and proportional memory, never resident sizes; " +
	"stable N: the largest level of which two runs or more passed every gate and none did not, as at each level below it; " +
	"valid rollouts an hour: successes and valid failures of runs that passed, over the time from the first start to the last end of the window, everything between them included; " +
	"cost: the hours of all windows at the price, everything that ran in them included, over their valid rollouts; " +
	"isolation: canaries of other slots that a detector saw over slot-hours in which all were held and looked for, of runs whose deliberate leak was caught in every watched channel, with the upper bound of a Poisson rate at 95%"

// Run is what is read of a run.
type Run struct {
	Record   bench.Record
	Manifest bench.Manifest
}

// ShortWindow is where a sustained window stops to be short.
const ShortWindow = 10 * time.Minute

// Names of facts, as the steps give them.
const (
	factBefore    = "baseline-before/host-memory"
	factAfter     = "baseline-after/host-memory"
	factLevel     = "density/level"
	factIsolation = "isolate/isolation"
	// ReceiptFact and the name of a price is the digest of a bill that was there.
	ReceiptFact = "price-receipt."
)

// Of gives what the runs say, one for each arm, reset, workload and settings, in
// the order of the runs. Ordinary runs are left out; without any other there is none.
func Of(runs []Run) (bench.Densities, error) {
	out := bench.Densities{ApiVersion: engine.APIVersion, Method: Method, Densities: []bench.Density{}}
	var groups []*group
	seen := map[bench.SHA256]bool{}
	for _, r := range runs {
		p, err := record.PartOf(r.Record)
		if err != nil {
			return out, err
		}
		if chain := r.Record.Digests["events"]; p == nil || seen[chain] {
			continue
		} else if chain != "" {
			seen[chain] = true
		}
		i := slices.IndexFunc(groups, func(g *group) bool { return g.takes(r.Record) })
		if i < 0 {
			i = len(groups)
			groups = append(groups, &group{first: r})
		}
		groups[i].runs = append(groups[i].runs, part{*p, r})
	}
	for _, g := range groups {
		d, err := g.density()
		if err != nil {
			return out, err
		}
		out.Densities = append(out.Densities, d)
	}
	return out, nil
}

type part struct {
	bench.Part
	Run
}

// passed: it may give numbers.
func (p part) passed() bool { return p.Record.Verdict == engine.RunPassed }

type group struct {
	first Run
	runs  []part
}

func (g *group) takes(r bench.Record) bool {
	a := g.first.Record
	return a.Arm == r.Arm && a.Reset == r.Reset && a.Digests["workload"] == r.Digests["workload"] && settings(a) == settings(r)
}

func settings(r bench.Record) string {
	b, err := canonical.JSON(r.Settings)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// fact decodes a fact that is JSON; false where the run does not have it.
func fact(r bench.Record, name string, v any) (bool, error) {
	for _, f := range r.Facts {
		if f.Name == name && f.Known {
			if err := json.Unmarshal([]byte(f.Value), v); err != nil {
				return false, &engine.Error{Op: "read fact " + name, Err: fmt.Errorf("%w: run %s: %w", engine.ErrUnknown, r.Run, err)}
			}
			return true, nil
		}
	}
	return false, nil
}

func (g *group) density() (bench.Density, error) {
	r := g.first.Record
	d := bench.Density{Arm: r.Arm, Reset: bench.Reset(r.Reset), Workload: r.Digests["workload"], Emulated: engine.Emulated(r.Facts), Settings: r.Settings,
		Levels: []bench.DensityLevel{}, Windows: []bench.SustainedWindow{}, Costs: []bench.Cost{}, Noise: []string{}, Differences: r.Differences}
	if d.Differences == nil {
		d.Differences = []bench.Difference{}
	}
	if d.Settings == nil {
		d.Settings = map[string]string{}
	}
	slices.SortStableFunc(g.runs, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.Slots, b.Slots), cmp.Compare(a.Record.Started, b.Record.Started))
	})
	points, err := g.levels(&d)
	if err != nil {
		return d, err
	}
	d.Slope = slope(points)
	d.Stable = stable(d.Levels)
	if err := g.windows(&d); err != nil {
		return d, err
	}
	if err := g.costs(&d); err != nil {
		return d, err
	}
	if d.Isolation, err = g.isolation(); err != nil {
		return d, err
	}
	var records []bench.Record
	for _, p := range g.runs {
		records = append(records, p.Record)
	}
	d.Storage = StorageOf(records...)
	for _, p := range g.runs {
		d.Noise = append(d.Noise, Noise(p.Record)...)
	}
	return d, nil
}

// NotProbed is what Noise says of a run that nobody probed the host around.
const NotProbed = "the host was not probed"

// Noise says why the host of a run was not quiet, before and after; nothing where it was.
func Noise(r bench.Record) (list []string) {
	for _, when := range []struct{ fact, text string }{{"survey/host-probe", "before"}, {"gate-cleanup/host-probe", "after"}} {
		h, err := Probe(r, when.fact)
		switch {
		case err != nil:
			list = append(list, fmt.Sprintf("%s: %s: %s", r.Run, when.text, err))
		case h == nil:
			list = append(list, fmt.Sprintf("%s: %s: %s", r.Run, when.text, NotProbed))
		default:
			for _, n := range h.Noise {
				list = append(list, fmt.Sprintf("%s: %s: %s", r.Run, when.text, n))
			}
		}
	}
	return list
}

// Facts of a record with the host before and after the run.
const (
	ProbeBefore = "survey/host-probe"
	ProbeAfter  = "gate-cleanup/host-probe"
)

// Probe of the host that the record has under a name; nil where it has none.
func Probe(r bench.Record, name string) (*bench.HostProbe, error) {
	var h bench.HostProbe
	known, err := fact(r, name, &h)
	if err != nil || !known {
		return nil, err
	}
	return &h, nil
}

// point is a level that was read in a trial.
type point struct {
	trial string
	slots int64
	above float64
}

// levels fills in the levels and gives what the slope is drawn from.
func (g *group) levels(d *bench.Density) (points []point, err error) {
	samples := map[int64]map[string][]float64{}
	for _, p := range g.runs {
		if p.Kind != "level" {
			continue
		}
		r := bench.DensityRun{Run: p.Record.Run, Trial: p.Series, Verdict: p.Record.Verdict}
		i := slices.IndexFunc(d.Levels, func(l bench.DensityLevel) bool { return l.Slots == p.Slots })
		if i < 0 {
			i = len(d.Levels)
			d.Levels = append(d.Levels, bench.DensityLevel{Slots: p.Slots, Runs: []bench.DensityRun{}})
			samples[p.Slots] = map[string][]float64{}
		}
		if !p.passed() {
			r.Reason = cmp.Or(p.Record.Reason, "its record does not say why")
			d.Levels[i].Runs = append(d.Levels[i].Runs, r)
			continue
		}
		var before, after bench.HostMemory
		var level bench.Level
		for name, v := range map[string]any{factBefore: &before, factAfter: &after, factLevel: &level} {
			known, err := fact(p.Record, name, v)
			if err != nil {
				return nil, err
			}
			if !known {
				return nil, &engine.Error{Op: "read level", Err: fmt.Errorf("%w: run %s passed without the fact %s", engine.ErrUnknown, p.Record.Run, name)}
			}
		}
		used, b, a := number(level.Host.Used), number(before.Used), number(after.Used)
		above := used - (b+a)/2
		r.Above, r.Before, r.After = whole(above), before.Used, after.Used
		points = append(points, point{path.Dir(p.Record.Run) + "/" + strconv.FormatInt(p.Series, 10), p.Slots, float64(above)})
		add := func(name string, v bench.Int64) {
			if v != "" {
				samples[p.Slots][name] = append(samples[p.Slots][name], float64(number(v)))
			}
		}
		add("engine", level.Engine)
		slowest := int64(0)
		for _, o := range p.Record.Rollouts {
			if o.Control == "" && o.Clocks != nil && o.Clocks.Usable != "" {
				add("usable", o.Clocks.Usable)
				slowest = max(slowest, number(o.Clocks.Usable))
			}
		}
		if slowest > 0 {
			samples[p.Slots]["rate"] = append(samples[p.Slots]["rate"], float64(p.Slots)*1e9/float64(slowest))
		}
		for _, s := range level.Slots {
			add("dirty", s.Memory.PrivateDirty)
			add("pss", s.Memory.Pss)
			add("harness", s.Memory.Harness)
			add("cpu", s.Cpu)
		}
		d.Levels[i].Runs = append(d.Levels[i].Runs, r)
	}
	for i := range d.Levels {
		l := &d.Levels[i]
		s := samples[l.Slots]
		l.PrivateDirty, l.Pss, l.Harness, l.Engine, l.Cpu = median(s["dirty"]), median(s["pss"]), median(s["harness"]), median(s["engine"]), median(s["cpu"])
		l.Usable, l.PerSecond = median(s["usable"]), median(s["rate"])
		if p95 := stats.Summarize(s["usable"]).P95; p95 != nil {
			l.Usable95 = p95.Value
		}
	}
	return points, nil
}

func median(sample []float64) *float64 { return stats.Median(sample).Value }

func number(v bench.Int64) int64 {
	n, _ := strconv.ParseInt(string(v), 10, 64) // the schema has checked it
	return n
}

func whole(n int64) bench.Int64 { return bench.Int64(strconv.FormatInt(n, 10)) }

// slope of the levels that passed in every trial: a level that is there in some
// trials only would pull those by what it differs.
func slope(points []point) bench.Slope {
	var trials []string
	have := map[int64]map[string]float64{}
	for _, p := range points {
		if !slices.Contains(trials, p.trial) {
			trials = append(trials, p.trial)
		}
		if have[p.slots] == nil {
			have[p.slots] = map[string]float64{}
		}
		have[p.slots][p.trial] = p.above
	}
	slices.Sort(trials)
	sets := make([][]stats.Point, len(trials))
	for i, t := range trials {
		for slots, by := range have {
			if len(by) == len(trials) {
				sets[i] = append(sets[i], stats.Point{X: float64(slots), Y: by[t]})
			}
		}
		slices.SortFunc(sets[i], func(a, b stats.Point) int { return cmp.Compare(a.X, b.X) })
	}
	return stats.Slope(sets)
}

// stable is the largest level whose runs all passed, two at least, as those of every level below.
func stable(levels []bench.DensityLevel) (s bench.StableN) {
	for _, l := range levels {
		passed := 0
		for _, r := range l.Runs {
			if r.Verdict == engine.RunPassed {
				passed++
				continue
			}
			s.Above = fmt.Sprintf("%d slots: run %s %s: %s", l.Slots, r.Run, r.Verdict, r.Reason)
			return s
		}
		if passed < 2 {
			s.Above = fmt.Sprintf("%d slots: %d window, it takes 2", l.Slots, passed)
			return s
		}
		n := l.Slots
		s.N, s.Above = &n, fmt.Sprintf("not tried above %d", n)
	}
	if len(levels) == 0 {
		s.Above = "no number of slots was tried"
	}
	return s
}

// windows of sustained runs.
func (g *group) windows(d *bench.Density) error {
	by := map[string][]part{}
	var order []string
	for _, p := range g.runs {
		if p.Kind != "sustain" {
			continue
		}
		key := fmt.Sprintf("%s/%d/%d", path.Dir(p.Record.Run), p.Slots, p.Series)
		if by[key] == nil {
			order = append(order, key)
		}
		by[key] = append(by[key], p)
	}
	var hours big.Rat
	var rates []*big.Rat
	valid := int64(0)
	d.PerHour.Reason = "no sustained window"
	for _, key := range order {
		w, wall, err := window(by[key])
		if err != nil {
			return err
		}
		d.Windows = append(d.Windows, w)
		if w.Reason != "" {
			d.PerHour.Reason = fmt.Sprintf("window %d: %s", w.Window, w.Reason)
			continue
		}
		rate := new(big.Rat).Quo(new(big.Rat).SetInt64(w.Valid), wall)
		rates = append(rates, rate)
		hours.Add(&hours, wall)
		valid += w.Valid
		d.PerHour.Short = d.PerHour.Short || w.Short
	}
	d.PerHour.Windows = int64(len(rates))
	if len(rates) == 0 || len(rates) < len(d.Windows) {
		return nil
	}
	d.PerHour.Reason = ""
	slices.SortFunc(rates, (*big.Rat).Cmp)
	d.PerHour.Value = decimal(new(big.Rat).Quo(new(big.Rat).SetInt64(valid), &hours), 4)
	d.PerHour.Low, d.PerHour.High = decimal(rates[0], 4), decimal(rates[len(rates)-1], 4)
	return nil
}

func decimal(r *big.Rat, places int) bench.Decimal { return bench.Decimal(r.FloatString(places)) }

// window counts the runs of one, and gives its hours.
func window(runs []part) (w bench.SustainedWindow, hours *big.Rat, err error) {
	slices.SortFunc(runs, func(a, b part) int { return cmp.Compare(a.Part.Run, b.Part.Run) })
	w = bench.SustainedWindow{Window: runs[0].Series, Slots: runs[0].Slots, Runs: int64(len(runs)), Failures: []string{}}
	var first, last time.Time
	for i, p := range runs {
		if p.Part.Run != int64(i) {
			w.Reason = fmt.Sprintf("its run %d is not among these", i)
		}
		started, serr := time.Parse(time.RFC3339Nano, string(p.Record.Started))
		ended, eerr := time.Parse(time.RFC3339Nano, string(p.Record.Ended))
		if serr != nil || eerr != nil || ended.Before(started) {
			return w, nil, &engine.Error{Op: "count window", Err: fmt.Errorf("%w: run %s has no times", engine.ErrUnknown, p.Record.Run)}
		}
		if first.IsZero() || started.Before(first) {
			first = started
		}
		if ended.After(last) {
			last = ended
		}
		valid := int64(0)
		for _, o := range p.Record.Rollouts {
			w.Attempts++
			ok := o.Class == record.Success || o.Class == record.FailedValid
			if ok && o.Control == "" && !o.Warmup {
				valid++
			}
			if !ok {
				w.Failures = append(w.Failures, fmt.Sprintf("%s rollout %d %s: %s: %s", p.Record.Run, o.Index, o.Slot, o.Class, cmp.Or(o.Reason, "no reason")))
			}
		}
		if p.passed() {
			w.Valid += valid
			continue
		}
		w.Failures = append(w.Failures, fmt.Sprintf("%s: %s: %s; %d of its rollouts were valid and do not count", p.Record.Run, p.Record.Verdict, cmp.Or(p.Record.Reason, "no reason"), valid))
	}
	wall := last.Sub(first)
	if wall <= 0 {
		w.Reason = cmp.Or(w.Reason, "it took no time")
	}
	if s := runs[0].Manifest.Experiment.Sustain; s != nil && w.Reason == "" {
		if d, err := time.ParseDuration(string(s.Duration)); err == nil && wall < d {
			w.Reason = fmt.Sprintf("it ended after %s and was to last %s: cut by a budget or a signal, or its last runs are not among these", wall.Round(time.Millisecond), d)
		}
	}
	w.Wall, w.Short = whole(wall.Nanoseconds()), wall < ShortWindow
	if w.Reason == "" {
		hours = big.NewRat(wall.Nanoseconds(), time.Hour.Nanoseconds())
		w.PerHour = decimal(new(big.Rat).Quo(new(big.Rat).SetInt64(w.Valid), hours), 4)
	}
	return w, hours, nil
}

// isolation over all levels: runs whose control was caught, whatever their verdict,
// since a run in which a slot saw another's canary does not pass.
func (g *group) isolation() (out bench.IsolationResult, err error) {
	out.Channels = []string{}
	events, hours := int64(0), new(big.Rat)
	var unfired []string
	looked := 0
	for _, p := range g.runs {
		if p.Kind != "level" {
			continue
		}
		var r bench.IsolationReading
		known, err := fact(p.Record, factIsolation, &r)
		if err != nil {
			return out, err
		}
		if !known {
			continue
		}
		looked++
		if len(r.Fired) == 0 || len(r.Missed) > 0 {
			unfired = append(unfired, fmt.Sprintf("%s: the deliberate leak was missed in %s", p.Record.Run, cmp.Or(strings.Join(r.Missed, ", "), "every channel")))
			continue
		}
		out.Runs++
		for _, c := range r.Watched {
			if !slices.Contains(out.Channels, c) {
				out.Channels = append(out.Channels, c)
			}
		}
		for c, why := range r.Blind {
			if out.Blind == nil {
				out.Blind = map[string]string{}
			}
			out.Blind[c] = why
		}
		events += int64(len(r.Events))
		out.Seen = append(out.Seen, r.Events...)
		hours.Add(hours, big.NewRat(number(r.Exposure), time.Hour.Nanoseconds()))
	}
	slices.Sort(out.Channels)
	for c := range out.Blind { // what one run did not watch was not watched
		out.Channels = slices.DeleteFunc(out.Channels, func(o string) bool { return o == c })
	}
	switch {
	case looked == 0:
		out.Control, out.Reason = "not run", "no run had a detector beside two slots or more"
		return out, nil
	case len(unfired) > 0:
		out.Control, out.Reason = "not fired", strings.Join(unfired, "; ")
		return out, nil
	case hours.Sign() == 0:
		out.Control, out.Reason = "fired", "nothing was watched"
		return out, nil
	}
	out.Control = fmt.Sprintf("fired in each of %d runs, in every channel", out.Runs)
	out.Events, out.Hours = &events, decimal(hours, 6)
	h, _ := hours.Float64()
	upper := stats.PoissonUpper(events) / h
	out.Upper = &upper
	return out, nil
}

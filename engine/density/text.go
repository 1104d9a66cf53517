package density

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Row is one number of a density, or why there is none.
type Row struct {
	Name  string // of the metric
	Title string
	Unit  string
	// Value with Low and High as numbers in the unit; empty where there is none.
	Value, Low, High string
	// N counts trials, runs, or valid rollouts: what Of says.
	N  string
	Of string
	// Note is what belongs beside the number, or the reason why there is none.
	Note string
}

const mib = float64(1 << 20)

func size(bytes *float64) string {
	if bytes == nil {
		return ""
	}
	return strconv.FormatFloat(*bytes/mib, 'f', 2, 64)
}

// Rows are all numbers of a density, in the order in which they are shown: what is said of all slots, then of each level.
func Rows(d bench.Density) (rows []Row) {
	rows = append(rows, Row{Name: "memory-slope", Title: "host memory of one more slot", Unit: "MiB", Value: size(d.Slope.Value), Low: size(d.Slope.Low), High: size(d.Slope.High),
		N: strconv.Itoa(len(d.Slope.Trials)), Of: fmt.Sprintf("trials of %d levels", d.Slope.Levels), Note: d.Slope.Reason})
	stable := Row{Name: "stable-n", Title: "largest number of slots that passed every gate in two windows", Unit: "slots", Note: d.Stable.Above}
	if d.Stable.N != nil {
		stable.Value = strconv.FormatInt(*d.Stable.N, 10)
		for _, l := range d.Levels {
			if l.Slots == *d.Stable.N {
				stable.N, stable.Of = strconv.Itoa(len(l.Runs)), "windows"
			}
		}
	}
	rows = append(rows, stable)
	rate := Row{Name: "valid-per-hour", Title: "valid rollouts an hour of the host", Unit: "1/h", Value: string(d.PerHour.Value), Low: string(d.PerHour.Low), High: string(d.PerHour.High),
		N: strconv.FormatInt(d.PerHour.Windows, 10), Of: "windows, low to high", Note: d.PerHour.Reason}
	if d.PerHour.Short {
		rate.Note = "SHORT: " + shortest(d) + ", below the 10 minutes of a sustained window"
	}
	rows = append(rows, rate)
	if d.NoCosts != "" {
		rows = append(rows, Row{Name: "usd-per-valid", Title: "cost of a valid rollout", Unit: "USD", Note: d.NoCosts})
	}
	for _, c := range d.Costs {
		note := fmt.Sprintf("%s; %s USD an hour of %s (%s), %s USD for %s h; inference %s", c.Label, c.Hourly, c.Date, c.Source, c.Paid, c.Hours, c.Inference)
		if c.Reason != "" {
			note = c.Reason + "; " + note
		}
		if d.PerHour.Short {
			note = "SHORT; " + note
		}
		rows = append(rows, Row{Name: "usd-per-valid-" + c.Price, Title: "cost of a valid rollout, " + priceTitles[c.Price], Unit: "USD", Value: string(c.Usd),
			N: strconv.FormatInt(c.Valid, 10), Of: "valid rollouts", Note: note})
	}
	i := d.Isolation
	row := Row{Name: "contamination", Title: "slots that saw another's canary", Unit: "events", Note: "positive control: " + i.Control}
	if i.Events != nil {
		row.Value, row.N, row.Of = strconv.FormatInt(*i.Events, 10), string(i.Hours), "environment-hours"
		row.Note += fmt.Sprintf("; at most %.4g an hour at 95%%; watched: %s", *i.Upper, strings.Join(i.Channels, ", "))
	}
	for _, c := range slices.Sorted(maps.Keys(i.Blind)) {
		row.Note += fmt.Sprintf("; not watched: %s: %s", c, i.Blind[c])
	}
	if i.Reason != "" {
		row.Note += ": " + i.Reason
	}
	rows = append(rows, row)
	rows = append(rows, storageRows(d.Storage)...)
	for _, l := range d.Levels {
		passed, of := 0, len(l.Runs)
		for _, r := range l.Runs {
			if r.Above != "" {
				passed++
			}
		}
		n, what := strconv.Itoa(passed), fmt.Sprintf("runs passed, of %d", of)
		title := fmt.Sprintf(", %d at once", l.Slots)
		suffix := fmt.Sprintf("-%d", l.Slots)
		for _, m := range []struct {
			name, title string
			v           *float64
		}{{"private-dirty", "private dirty memory of a slot", l.PrivateDirty}, {"pss", "proportional memory of a slot", l.Pss}, {"harness", "private dirty memory of the harness beside a slot", l.Harness},
			{"engine", "private dirty memory of the engine, once for all slots", l.Engine}} {
			rows = append(rows, Row{Name: m.name + suffix, Title: m.title + title, Unit: "MiB", Value: size(m.v), N: n, Of: what, Note: none(m.v, "no run passed")})
		}
		cpu := ""
		if l.Cpu != nil {
			cpu = strconv.FormatFloat(*l.Cpu/1e9, 'f', 3, 64)
		}
		for _, m := range []struct {
			name, title, unit, note string
			v                       *float64
			scale                   float64
		}{
			{"usable", "time until a slot was usable", "ms", "not known", l.Usable, 1e6},
			{"usable-p95", "time until a slot was usable, 95th percentile", "ms", "too few slots", l.Usable95, 1e6},
			{"usable-per-second", "slots that became usable a second", "1/s", "not known", l.PerSecond, 1},
		} {
			value := ""
			if m.v != nil {
				value = strconv.FormatFloat(*m.v/m.scale, 'f', 2, 64)
			}
			rows = append(rows, Row{Name: m.name + suffix, Title: m.title + title, Unit: m.unit, Value: value, N: n, Of: what, Note: none(m.v, m.note)})
		}
		rows = append(rows, Row{Name: "cpu" + suffix, Title: "processor time of a slot" + title + ", until it was at rest", Unit: "s", Value: cpu, N: n, Of: what, Note: none(l.Cpu, "not known in every run")})
	}
	return rows
}

// priceTitles are the prices as people call them.
var priceTitles = map[string]string{"owned": "host of one's own with its power", "onDemand": "cloud, on demand", "second": "cloud in a second currency"}

func none(v *float64, reason string) string {
	if v == nil {
		return reason
	}
	return ""
}

func shortest(d bench.Density) string {
	least := int64(0)
	for _, w := range d.Windows {
		if n := number(w.Wall); least == 0 || n < least {
			least = n
		}
	}
	return fmt.Sprintf("%.0f s", float64(least)/1e9)
}

// Title of a density.
func Title(d bench.Density) string {
	t := d.Arm
	if d.Emulated {
		t += ", emulated"
	}
	return t + " " + string(d.Reset)
}

// Failures are the lines that a density has beside its numbers: each rollout that
// was not valid, each run that did not pass, each host that was not quiet.
func Failures(d bench.Density) (lines []string) {
	for _, l := range d.Levels {
		for _, r := range l.Runs {
			if r.Reason != "" {
				lines = append(lines, fmt.Sprintf("%s: %s: %s", r.Run, r.Verdict, r.Reason))
			}
		}
	}
	for _, w := range d.Windows {
		lines = append(lines, w.Failures...)
	}
	for _, e := range d.Isolation.Seen {
		lines = append(lines, fmt.Sprintf("contamination: %s saw the canary of %s in %s", e.Slot, e.From, e.Channel))
	}
	return lines
}

// Text for people.
func Text(all bench.Densities) string {
	var b strings.Builder
	for _, d := range all.Densities {
		fmt.Fprintf(&b, "\nmany slots at once: %s, workload %.12s\n", Title(d), d.Workload)
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "METRIC\tVALUE\tLOW TO HIGH\tUNIT\tN\tOF\tNOTE")
		for _, r := range Rows(d) {
			between := ""
			if r.Low != "" {
				between = r.Low + " to " + r.High
			}
			fmt.Fprintln(t, strings.Join([]string{r.Name, dash(r.Value), dash(between), r.Unit, dash(r.N), dash(r.Of), r.Note}, "\t"))
		}
		t.Flush()
		for _, l := range Failures(d) {
			fmt.Fprintf(&b, "  failure  %s\n", l)
		}
		if n := len(d.Noise); n > 0 {
			fmt.Fprintf(&b, "  NOT QUIET  the host was busy around these runs (%d findings), the first: %s\n", n, d.Noise[0])
		}
	}
	return b.String()
}

func dash(s string) string { return cmp.Or(s, "-") }

// Markdown of the same.
func Markdown(all bench.Densities) string {
	var b strings.Builder
	cell := strings.NewReplacer("|", `\|`, "\n", " ").Replace
	for _, d := range all.Densities {
		fmt.Fprintf(&b, "## Many slots at once: %s\n\n| metric | value | low | high | unit | n | of | note |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n", Title(d))
		for _, r := range Rows(d) {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", r.Name, dash(r.Value), dash(r.Low), dash(r.High), r.Unit, dash(r.N), cell(r.Of), cell(r.Note))
		}
		b.WriteString("\n")
		for _, l := range Failures(d) {
			fmt.Fprintf(&b, "- failure: %s\n", cell(l))
		}
		for _, l := range d.Noise {
			fmt.Fprintf(&b, "- not quiet: %s\n", cell(l))
		}
	}
	fmt.Fprintf(&b, "\nMethod: %s.\n", all.Method)
	return b.String()
}

// CSV of the same: one line a number.
func CSV(all bench.Densities) (string, error) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	rows := [][]string{{"arm", "reset", "workload", "emulated", "metric", "unit", "value", "low", "high", "n", "of", "note"}}
	for _, d := range all.Densities {
		for _, r := range Rows(d) {
			rows = append(rows, []string{d.Arm, string(d.Reset), string(d.Workload), strconv.FormatBool(d.Emulated), r.Name, r.Unit, r.Value, r.Low, r.High, r.N, r.Of, r.Note})
		}
	}
	err := w.WriteAll(rows)
	return b.String(), err
}

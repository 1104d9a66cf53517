package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/density"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// densities of the runs that are sound, checked against the schema. Only a run
// that is a part of an experiment needs its manifest.
func densities(shown []shownRun) (bench.Densities, error) {
	var runs []density.Run
	for _, s := range shown {
		if s.state.State != runSound {
			continue
		}
		r, dir := s.record, s.dir
		one := density.Run{Record: r}
		part, err := record.PartOf(r)
		if err != nil {
			return bench.Densities{}, err
		}
		if part == nil {
			continue
		}
		data, err := record.ReadRegular(filepath.Join(dir, record.ManifestFile))
		if err == nil {
			err = compile.Validate("#Manifest", data)
		}
		if err == nil && canonical.Sum(data) != r.Digests["manifest"] {
			err = fmt.Errorf("%w: it is not the one that the run names", engine.ErrUnknown)
		}
		if err == nil {
			err = json.Unmarshal(data, &one.Manifest)
		}
		if err != nil {
			return bench.Densities{}, &engine.Error{Op: "read manifest of run " + dir, Err: err, Hint: "see: drumsbench verify " + dir}
		}
		runs = append(runs, one)
	}
	out, err := density.Of(runs)
	if err != nil {
		return out, err
	}
	data, err := canonical.JSON(out)
	if err == nil {
		err = compile.Validate("#Densities", data)
	}
	if err != nil {
		return out, &engine.Error{Op: "check densities against the schema", Err: err}
	}
	return out, nil
}

func printDensities(g *globals, d bench.Densities) error {
	switch g.Output {
	case "json":
		return printJSON(g.Stdout, d)
	case "md":
		return printText(g.Stdout, density.Markdown(d))
	case "csv":
		text, err := density.CSV(d)
		if err != nil {
			return &engine.Error{Op: "write densities", Err: err}
		}
		return printText(g.Stdout, text)
	}
	if len(d.Densities) == 0 {
		return printText(g.Stdout, "no run holds several slots at once: see experiment.sweep and experiment.sustain\n")
	}
	return printText(g.Stdout, strings.TrimPrefix(density.Text(d), "\n"))
}

// writeHosts says which runs had a host that was not quiet.
func writeHosts(b *strings.Builder, records []bench.Record) {
	first, n := "", 0
	for _, r := range records {
		if h, err := density.Probe(r, density.ProbeBefore); err == nil && h == nil {
			continue // of a program that did not probe
		}
		if noise := density.Noise(r); len(noise) > 0 {
			n++
			first = cmp.Or(first, noise[0])
		}
	}
	if n > 0 {
		fmt.Fprintf(b, "the host was NOT QUIET around %d of %d runs: %s; see show --host\n", n, len(records), terminal.Line(first))
	}
}

// hostLine is what a run's host could do at one moment.
type hostLine struct {
	Run   string           `json:"run"`
	When  string           `json:"when"`
	Probe *bench.HostProbe `json:"probe"`
}

// printHosts prints a line for each probe.
func printHosts(g *globals, records []bench.Record) error {
	lines := []hostLine{}
	for _, r := range records {
		for _, when := range []struct{ name, text string }{{density.ProbeBefore, "before"}, {density.ProbeAfter, "after"}} {
			h, err := density.Probe(r, when.name)
			if err != nil {
				return err
			}
			lines = append(lines, hostLine{r.Run, when.text, h})
		}
	}
	if g.json() {
		return printJSON(g.Stdout, lines)
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row(t, "RUN", "WHEN", "QUIET", "MEMCPY GB/S", "FAULT NS", "EXEC MS", "FSYNC MS", "THP", "KSM", "BUSY", "STEAL", "SWAPPED", "LOAD", "PSI CPU,IO,MEM", "AVAILABLE MIB", "SWAP MIB")
	var noise []string
	for _, l := range lines {
		h := l.Probe
		if h == nil {
			row(t, l.Run, l.When, "unknown")
			continue
		}
		quiet := "yes"
		if len(h.Noise) > 0 {
			quiet = "NO"
			noise = append(noise, fmt.Sprintf("%s %s: %s", l.Run, l.When, strings.Join(h.Noise, "; ")))
		}
		row(t, l.Run, l.When, quiet, scaled(h.Memcpy, 1e9), string(h.PageFault), scaled(h.ForkExec, ms), scaled(h.Fsync, ms), h.Thp, h.Ksm, string(h.Busy), string(h.Steal), string(h.Swapping), h.Load,
			strings.Join([]string{h.Pressure["cpu"], h.Pressure["io"], h.Pressure["memory"]}, ","), scaled(h.Available, mib), scaled(h.SwapUsed, mib))
	}
	t.Flush()
	for _, n := range noise {
		fmt.Fprintf(&b, "not quiet: %s\n", n)
	}
	return printText(g.Stdout, b.String())
}

// scaled is a number in a larger unit; empty where there is none.
func scaled(v bench.Int64, unit float64) string {
	var list []float64
	appendScaled(&list, v, unit)
	if len(list) == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", list[0])
}

// formats of show beside plain and json; only --density has them.
func (showCmd) formats() []string { return []string{"md", "csv"} }

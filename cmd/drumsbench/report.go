package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/register"
	site "github.com/drumsbench/drumsbench/engine/report"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

type reportCmd struct {
	Runs         []string `arg:"" optional:"" name:"run" type:"path" help:"Run directories, or folders of them."`
	Registration []string `type:"path" placeholder:"FILE" help:"Show the experiment of this registration too, run or not: planned where none of the runs belongs to it. May be repeated."`
	Out          string   `required:"" type:"path" placeholder:"DIR" help:"Folder of the site; a new or an empty one."`
}

// Help teaches the command.
func (reportCmd) Help() string {
	return `Draws a site from runs' records: the benchmark page, a page for each run and one for each comparison
or refusal, and the same data as Markdown, CSV, JSON and JUnit below data. The site is files: open
index.html in a browser; nothing is loaded from a network, and pictures, evidence and records are
copied into it.

Each run's directory is verified first. One that is not sound, or that did not pass, has its gates and
its failure on its page, and no number anywhere. Runs of one folder are compared with
each other; runs that are alone in theirs, with those of their manifest and program.

Bars of registered experiments are judged as drumsbench judge does, by the registration that the runs
name and by each of its amendments: those named, and those in this host's state directory.

Examples:

  drumsbench report --out site runs/locks
  drumsbench report --out site /var/lib/drumsbench/runs

Exit codes: 0 the site was written, whatever became of the runs, 1 something could not be read or
written, 2 wrong usage.`
}

// written is what is said of a site.
type writtenSite struct {
	Index       string              `json:"index"`
	Runs        int                 `json:"runs"`
	States      map[site.State]int  `json:"states"`
	None        []site.NoRecord     `json:"withoutRecord"`
	Comparisons []writtenComparison `json:"comparisons"`
	Experiments []writtenExperiment `json:"experiments"`
}

type writtenExperiment struct {
	Manifest     bench.Name   `json:"manifest"`
	Registration bench.SHA256 `json:"registration"`
	State        string       `json:"state"`
}

type writtenComparison struct {
	Kind    bench.ComparisonKind `json:"kind"`
	Verdict string               `json:"verdict"`
}

// Run writes the site.
func (c reportCmd) Run(ctx context.Context, g *globals) error {
	if len(c.Runs)+len(c.Registration) == 0 {
		return usage("name a run, a folder of runs, or a registration")
	}
	dirs, err := runDirs(c.Runs)
	if err != nil {
		return err
	}
	program, err := engineVersion()
	if err != nil {
		return err
	}
	in := site.Input{Program: fmt.Sprintf("%s (sha256 %.12s)", program.Version, program.Sha256)}
	done := map[string]bool{}
	for _, dir := range dirs {
		if err := ctx.Err(); err != nil {
			return &engine.Error{Op: "draw report", Err: err}
		}
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return &engine.Error{Op: "find runs", Err: err}
		}
		if done[real] || handOnly(dir) {
			continue
		}
		done[real] = true
		r, none, err := site.Load(dir, program.Sha256)
		if err != nil {
			return err
		}
		if none != nil {
			in.None = append(in.None, *none)
			continue
		}
		in.Runs = append(in.Runs, r)
	}
	if err := compareAll(&in, program.Sha256); err != nil {
		return err
	}
	planned, err := readRegistrations(c.Registration)
	if err != nil {
		return err
	}
	known, err := knownRegistrations(g)
	if err != nil {
		return err
	}
	in.Judge(known, planned, compare.Options{Program: program.Sha256, Compile: compiledPlan})
	if err := site.Write(c.Out, in); err != nil {
		return err
	}
	return printSite(g, c.Out, in)
}

// handOnly says that a directory is of a slot by hand, which has no record by design.
func handOnly(dir string) bool {
	_, handle := os.Lstat(filepath.Join(dir, record.HandleFile))
	_, result := os.Lstat(filepath.Join(dir, record.RecordFile))
	return handle == nil && result != nil
}

// compareAll compares the sound runs of each experiment, which are those of one
// folder, and then those that are alone in theirs by manifest and program. A run
// alone is compared with nothing, and one that a comparison cannot read says so
// on the page.
func compareAll(in *site.Input, program bench.SHA256) error {
	alone := map[string]int{}
	for _, r := range in.Runs {
		alone[filepath.Dir(r.Dir)]++
	}
	var order []string
	by := map[string][]compare.Run{}
	for _, r := range in.Runs {
		if !r.Sound() {
			continue
		}
		if part, err := record.PartOf(r.Record); err == nil && part != nil {
			continue // levels and windows have a section of their own
		}
		one, err := compare.Load(r.Dir)
		if err != nil {
			in.Uncompared = append(in.Uncompared, site.NoRecord{Dir: r.Record.Run, Reason: strings.ReplaceAll(err.Error(), r.Dir+string(filepath.Separator), "")})
			continue
		}
		name := filepath.Dir(r.Dir)
		if alone[name] == 1 {
			name = "manifest " + r.Record.Manifest + " " + string(r.Record.Engine.Sha256)
		}
		if by[name] == nil {
			order = append(order, name)
		}
		by[name] = append(by[name], one)
	}
	for _, name := range order {
		if len(by[name]) < 2 {
			continue
		}
		slices.SortStableFunc(by[name], func(a, b compare.Run) int {
			return strings.Compare(string(a.Record.Started), string(b.Record.Started))
		})
		out, err := compare.Compare(by[name], compare.Options{Program: program, Compile: compiledPlan})
		if err != nil {
			return err
		}
		in.Comparisons = append(in.Comparisons, out.Comparisons...)
	}
	return nil
}

func printSite(g *globals, dir string, in site.Input) error {
	out := writtenSite{Index: filepath.Join(dir, "index.html"), Runs: len(in.Runs), States: map[site.State]int{}, None: in.None, Comparisons: []writtenComparison{}, Experiments: []writtenExperiment{}}
	if out.None == nil {
		out.None = []site.NoRecord{}
	}
	for _, r := range in.Runs {
		out.States[r.State()]++
	}
	for _, e := range in.Experiments.Experiments {
		out.Experiments = append(out.Experiments, writtenExperiment{e.Manifest, e.Registration, e.State})
		if e.State == register.Planned {
			out.States[site.Planned]++
		}
	}
	allowed := 0
	for _, c := range in.Comparisons {
		out.Comparisons = append(out.Comparisons, writtenComparison{c.Kind, c.Verdict})
		if c.Verdict == compare.Allowed {
			allowed++
		}
	}
	if g.json() {
		return printJSON(g.Stdout, out)
	}
	text := fmt.Sprintf("%s: ", count(out.Runs, "run"))
	for i, state := range site.States {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%d %s", out.States[state], state)
	}
	text += fmt.Sprintf("; %s, %d of them allowed\n", count(len(in.Comparisons), "comparison"), allowed)
	for _, e := range out.Experiments {
		text += terminal.Line(fmt.Sprintf("experiment %s, registration %.12s: %s", e.Manifest, e.Registration, e.State)) + "\n"
	}
	for _, n := range in.None {
		text += terminal.Line(fmt.Sprintf("%s: left out of the numbers: %s", n.Dir, n.Reason)) + "\n"
	}
	return printText(g.Stdout, text+"open "+out.Index+" in a browser\n")
}

package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/density"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/engine/wholefile"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps"
)

// comparisonFile is where a folder of runs keeps how they compare.
const comparisonFile = "comparison.json"

type compareCmd struct {
	Runs  []string `arg:"" name:"run" help:"Run directories, or folders of them; what differs between the first and the others is compared."`
	Brief bool     `help:"Leave out the facts that are the same."`
	Write bool     `help:"Keep the result as comparison.json in the folder of runs that was named."`
}

// Help teaches the command.
func (compareCmd) Help() string {
	return `Compares runs, or refuses to and says why. Runs of the same arm, reset, settings and number of slots
are one side; two sides that differ in one of these are compared. Each run's directory is verified
first, as drumsbench verify does; a run that did not pass is refused. Then the facts of both sides are
put side by side, each same, different or unknown: a fact that is unknown, or that differs and must not,
refuses the comparison, and the hint says how to learn it. Nothing overrides that. Which facts must be
the same for which kind of comparison is data: schemas/bench/sameness.cue.

An allowed comparison has, for each metric and side, n, median, 95th percentile, smallest and largest
value, an interval for each median and for the ratio of the two, and beneath it what both arms declare.
Where there are too few runs to say, it says so in place of the number. Levels and windows are compared
with their like; where nothing is refused, what many slots at once take and give stands below.

-o is table (the same as plain), json, md or csv.

Examples:

  drumsbench compare runs/locks/drums-cold runs/locks/drums-restore
  drumsbench compare --write runs/locks
  drumsbench compare -o md runs/today runs/yesterday > comparison.md

Exit codes: 0 every comparison was allowed, 1 a run cannot be read, 2 wrong usage, 3 one was refused.`
}

// formats that the command prints beside plain and json.
func (compareCmd) formats() []string { return []string{"md", "csv"} }

// Run compares, and keeps the result if that was asked for.
func (c compareCmd) Run(ctx context.Context, g *globals) error {
	if c.Write && (len(c.Runs) != 1 || record.IsRun(c.Runs[0])) {
		return usage("--write takes one folder of runs")
	}
	dirs, err := runDirs(c.Runs)
	if err != nil {
		return err
	}
	result, err := compareRuns(ctx, dirs)
	if err != nil {
		return err
	}
	if c.Write {
		if err := writeComparisons(c.Runs[0], result); err != nil {
			return err
		}
	}
	if err := printComparisons(g, result, c.Brief); err != nil {
		return err
	}
	code := comparedExit(result)
	if err := printManyBeside(ctx, g, dirs, code != codeDone); err != nil {
		return err
	}
	return exitCode(code)
}

// compareRuns verifies each run and compares them all. ErrUnknown for a run
// whose directory is not sound.
func compareRuns(ctx context.Context, dirs []string) (bench.Comparisons, error) {
	var runs []compare.Run
	for _, dir := range dirs {
		v, err := verifyRun(ctx, dir, false)
		if err != nil {
			return bench.Comparisons{}, err
		}
		if v.State != runSound {
			return bench.Comparisons{}, unsound(v)
		}
		r, err := compare.Load(dir)
		if err != nil {
			return bench.Comparisons{}, err
		}
		runs = append(runs, r)
	}
	version, err := engineVersion()
	if err != nil {
		return bench.Comparisons{}, err
	}
	result, err := comparePartByPart(runs, compare.Options{Program: version.Sha256, Compile: compiledPlan})
	if err != nil {
		return result, err
	}
	data, err := canonical.JSON(result)
	if err == nil {
		err = compile.Validate("Comparisons", data)
	}
	if err != nil {
		return result, &engine.Error{Op: "check comparison against the schema", Err: err}
	}
	return result, nil
}

// comparePartByPart sets ordinary runs beside ordinary ones, and each level and kind of
// window beside the same: what they mean together is in the densities.
func comparePartByPart(runs []compare.Run, o compare.Options) (bench.Comparisons, error) {
	groups, order := map[bench.Part][]compare.Run{}, []bench.Part{}
	for _, r := range runs {
		p, err := record.PartOf(r.Record)
		if err != nil {
			return bench.Comparisons{}, err
		}
		key := bench.Part{}
		if p != nil {
			key = bench.Part{Kind: p.Kind, Slots: p.Slots}
		}
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], r)
	}
	var result bench.Comparisons
	for _, key := range order {
		if len(order) > 1 && len(groups[key]) < 2 { // nothing to set beside it
			continue
		}
		one, err := compare.Compare(groups[key], o)
		if err != nil {
			return one, err
		}
		one.Comparisons = append(result.Comparisons, one.Comparisons...)
		result = one
	}
	if len(result.Comparisons) == 0 { // says why
		return compare.Compare(runs, o)
	}
	return result, nil
}

// printManyBeside prints what many slots at once take and give, arm beside arm, where
// every comparison of the runs was allowed; nothing where no run holds several.
func printManyBeside(ctx context.Context, g *globals, dirs []string, refused bool) error {
	if g.Output == "json" || g.Output == "csv" { // one document; show --density has the other
		return nil
	}
	runs, err := readRuns(ctx, dirs)
	if err != nil {
		return err
	}
	d, err := densities(runs)
	if err != nil || len(d.Densities) == 0 {
		return err
	}
	if refused {
		return printText(g.Stdout, "\nwhat many slots at once take and give is not set side by side: a comparison was refused; see drumsbench show --density\n")
	}
	if g.Output == "md" {
		return printText(g.Stdout, "\n"+density.Markdown(d))
	}
	return printText(g.Stdout, density.Text(d))
}

// unsound is the refusal of a run that cannot be read as it was written.
func unsound(v verified) error {
	e := &engine.Error{Op: "compare runs", Hint: "see: drumsbench verify " + v.Run}
	if v.State == runHeld {
		e.Err = fmt.Errorf("%w: %s: an engine or a sweep works in it", engine.ErrUnknown, v.Run)
		return e
	}
	e.Err = fmt.Errorf("%w: %s is not sound but %s", engine.ErrUnknown, v.Run, v.why())
	return e
}

// why a run is not sound: its state, and the first problem.
func (v verified) why() string {
	if len(v.Problems) == 0 {
		return v.State
	}
	return fmt.Sprintf("%s: %s: %s", v.State, v.Problems[0].File, terminal.Line(v.Problems[0].Text))
}

// compiledPlan is the digest of the plan that a manifest has for a reset.
func compiledPlan(m bench.Manifest, reset string) (bench.SHA256, error) {
	workload, err := compile.Workload(m)
	if err != nil {
		return "", err
	}
	plan, err := steps.Block(m, workload, reset)
	if err != nil {
		return "", err
	}
	return plan.Digest(), nil
}

// writeComparisons keeps the result in a folder of runs.
func writeComparisons(folder string, c bench.Comparisons) error {
	data, err := canonical.JSON(c)
	if err == nil {
		err = wholefile.Write(filepath.Join(folder, comparisonFile), append(data, '\n'), 0o644)
	}
	if err != nil {
		return &engine.Error{Op: "write comparison", Err: err}
	}
	return nil
}

func printComparisons(g *globals, c bench.Comparisons, brief bool) error {
	switch g.Output {
	case "json":
		return printJSON(g.Stdout, c)
	case "md":
		return printText(g.Stdout, compare.Markdown(c))
	case "csv":
		text, err := compare.CSV(c)
		if err != nil {
			return &engine.Error{Op: "write comparison", Err: err}
		}
		return printText(g.Stdout, text)
	}
	return printText(g.Stdout, compare.Text(c, brief))
}

// comparedExit is 3 where one was refused.
func comparedExit(c bench.Comparisons) int {
	for _, one := range c.Comparisons {
		if one.Verdict != compare.Allowed {
			return codeBlocked
		}
	}
	return codeDone
}

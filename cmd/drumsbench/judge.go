package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/engine/wholefile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// judgementFile is where a folder of runs keeps how their bars were judged.
const judgementFile = "judgement.json"

type judgeCmd struct {
	Runs         []string `arg:"" name:"run" help:"Run directories, or folders of them: all runs of an experiment."`
	Registration []string `type:"path" placeholder:"FILE" help:"An amendment to judge by too; those of this host's state directory are found by themselves. May be repeated."`
	Write        bool     `help:"Keep the result as judgement.json in the folder of runs that was named."`
}

// Help teaches the command.
func (judgeCmd) Help() string {
	return `Judges the bars of registered experiments from their runs' records: each bar passes, fails, is not decided
for lack of data, or cannot be judged. Each run's directory is verified first; one that is not sound
is refused, and one that left no record is unknown. The registration is the one that the run's chain
names. Amendments have verdicts of their own, beside the first.

The rule: a bar passes where the whole 95% interval (of the median, the 95th percentile, the share of
successes, or the ratio of two medians) is within it, and fails where the whole interval is outside.
An interval that straddles the bar is no pass but not enough data; so are fewer rollouts than the bar
asks for, and fewer runs than registered. More runs than registered are judged by nobody: whoever may
go on until the numbers please, always gets there. For the same reason a run that this host has started
under the registration, and that is not among those named, keeps every bar from passing; and so does a
run that was not in its turn. A ratio takes a comparison that is allowed.

State of the experiment: failed where a run failed or was blocked, or a bar of any registration
failed; verified where every registered run passed and every bar of every registration did;
preliminary otherwise.

-o is table (the same as plain), json or md.

Examples:

  drumsbench judge runs/locks
  drumsbench judge --registration second.json --write runs/locks

Exit codes: 0 verified, 1 failed, or a run cannot be read, 2 wrong usage (none of the runs is registered), 3 not
enough data, or something is unknown. The first of 1, 3 that holds for any experiment.`
}

// formats that the command prints beside plain and json.
func (judgeCmd) formats() []string { return []string{"md"} }

// Run judges.
func (c judgeCmd) Run(ctx context.Context, g *globals) error {
	if c.Write && (len(c.Runs) != 1 || record.IsRun(c.Runs[0])) {
		return usage("--write takes one folder of runs")
	}
	dirs, err := runDirs(c.Runs)
	if err != nil {
		return err
	}
	amendments, err := readRegistrations(c.Registration)
	if err != nil {
		return err
	}
	result, err := judgeRuns(ctx, g, dirs, amendments)
	if err != nil {
		return err
	}
	if c.Write {
		data, err := canonical.JSON(result)
		if err == nil {
			err = wholefile.Write(filepath.Join(c.Runs[0], judgementFile), append(data, '\n'), 0o644)
		}
		if err != nil {
			return &engine.Error{Op: "write judgement", Err: err}
		}
	}
	switch g.Output {
	case "json":
		err = printJSON(g.Stdout, result)
	case "md":
		err = printText(g.Stdout, register.Markdown(result))
	default:
		err = printText(g.Stdout, register.Text(result))
	}
	if err != nil {
		return err
	}
	return exitCode(judgedExit(result))
}

// judgeRuns verifies each run and judges their experiments. Runs that belong to
// none are left out; ErrUsage where all are.
func judgeRuns(ctx context.Context, g *globals, dirs []string, named []register.Registered) (out bench.Judgements, err error) {
	var runs []register.Run
	var lost []register.Lost
	for _, dir := range dirs {
		v, err := verifyRun(ctx, dir, false)
		if err != nil {
			return out, err
		}
		if v.State != runSound {
			unsound := unsoundFor("judge runs", v)
			// Without a record there is nothing to judge, and a run all the same.
			_, err := os.Lstat(filepath.Join(dir, record.RecordFile))
			if l := register.LostIn(dir, unsound.Error()); errors.Is(err, fs.ErrNotExist) && l != nil && l.Registered != nil {
				lost = append(lost, *l)
				continue
			}
			return out, unsound
		}
		r, err := compare.Load(dir)
		if err != nil {
			return out, err
		}
		reg, belongs, err := register.Of(dir, r.Record)
		if err != nil {
			return out, err
		}
		if !belongs {
			g.Log.Warn("a run belongs to no registration and was left out", "run", dir)
			continue
		}
		runs = append(runs, register.Run{Run: r, Registered: reg})
	}
	if len(runs)+len(lost) == 0 {
		return out, &engine.Error{Op: "judge runs", Err: usage("none of the runs belongs to a registration"), Hint: "register the manifest, then run it with --registration; see: drumsbench register --help"}
	}
	known, err := knownRegistrations(g)
	if err != nil {
		return out, err
	}
	version, err := engineVersion()
	if err != nil {
		return out, err
	}
	known.Registrations = append(known.Registrations, named...)
	out = register.Judge(runs, lost, known, nil, compare.Options{Program: version.Sha256, Compile: compiledPlan})
	for _, r := range named {
		if !judgedBy(out, r.Digest) {
			return out, &engine.Error{Op: "judge runs", Err: usage(fmt.Sprintf("registration %.12s is of none of the runs' experiments", r.Digest))}
		}
	}
	data, err := canonical.JSON(out)
	if err == nil {
		err = compile.Validate("Judgements", data)
	}
	if err != nil {
		return out, &engine.Error{Op: "check judgement against the schema", Err: err}
	}
	return out, nil
}

// unsoundFor is unsound for another command.
func unsoundFor(op string, v verified) error {
	err := unsound(v)
	var e *engine.Error
	if errors.As(err, &e) {
		e.Op = op
	}
	return err
}

func judgedBy(all bench.Judgements, digest bench.SHA256) bool {
	for _, e := range all.Experiments {
		for _, j := range e.Judgements {
			if j.Registration == digest {
				return true
			}
		}
	}
	return false
}

// judgedExit is the first of 1, 3 that holds for any experiment, else 0.
func judgedExit(all bench.Judgements) int {
	worst := codeDone
	for _, e := range all.Experiments {
		switch e.State {
		case register.Verified:
		case register.Failed:
			return codeFailed
		default:
			worst = codeBlocked
		}
	}
	return worst
}

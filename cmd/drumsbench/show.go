package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

type showCmd struct {
	Brief    bool     `help:"The tables alone, without the reasons of runs that did not pass."`
	Gates    bool     `help:"How often each gate passed, instead of the tables."`
	Pictures bool     `help:"The files with the screen before and after each rollout's act, instead of the tables."`
	Rollout  []int64  `placeholder:"NUMBER" help:"With --pictures: of these rollouts alone."`
	Runs     []string `arg:"" name:"run" type:"path" help:"Run directories, or folders of them."`
}

// Help teaches the command.
func (showCmd) Help() string {
	return `Prints tables of runs, made from their records and from nothing else: verdict, gates, controls,
scores and memory; then, of runs that passed, the clocks of the resets. A run that did not pass
shows its failure and no number. Controls, the rollouts in which nobody or the oracle acts, are
shown by their scores and give no other number.

Examples:

  drumsbench show /var/lib/drumsbench/runs/*
  drumsbench show --gates runs/rename-20261201T101500.000
  drumsbench show --pictures runs/rename-20261201T101500.000

Exit codes: 0 printed, 1 a record or a picture is missing or not what it was, 2 wrong usage.`
}

// Run prints the tables.
func (c showCmd) Run(_ context.Context, g *globals) error {
	var dirs []string
	var records []bench.Record
	for _, path := range c.Runs {
		found := []string{path}
		if _, err := os.Stat(filepath.Join(path, record.RecordFile)); err != nil {
			files, gerr := filepath.Glob(filepath.Join(path, "*", record.RecordFile))
			if gerr != nil || len(files) == 0 {
				return &engine.Error{Op: "read record", Err: err, Hint: "name a run directory, or a folder of them"}
			}
			found = found[:0]
			for _, f := range files {
				found = append(found, filepath.Dir(f))
			}
		}
		for _, dir := range found {
			r, err := readRecord(dir)
			if err != nil {
				return err
			}
			dirs, records = append(dirs, dir), append(records, r)
		}
	}
	switch {
	case c.Gates && c.Pictures:
		return usage("--gates or --pictures, not both")
	case len(c.Rollout) > 0 && !c.Pictures:
		return usage("--rollout is of --pictures")
	case c.Gates:
		return printGates(g, records)
	case c.Pictures:
		return printPictures(g, dirs, c.Rollout)
	}
	return printRuns(g, dirs, records, !c.Brief)
}

func readRecord(dir string) (r bench.Record, err error) {
	path := filepath.Join(dir, record.RecordFile)
	b, err := record.ReadRegular(path)
	if err != nil {
		return r, &engine.Error{Op: "read record", Err: err}
	}
	if err := compile.Validate("#Record", b); err != nil {
		return r, &engine.Error{Op: "read record " + path, Err: err}
	}
	return r, json.Unmarshal(b, &r)
}

// printRuns prints what the records say: for people the tables and, beneath them,
// why a run did not pass; for programs the records.
func printRuns(g *globals, dirs []string, records []bench.Record, reasons bool) error {
	if g.json() {
		return printJSON(g.Stdout, records)
	}
	var b strings.Builder
	sums := make([]summary, len(records))
	for i, r := range records {
		sums[i] = summarize(r)
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RUN\tARM\tRESET\tLOCKS\tVERDICT\tGATES\tCONTROLS\tROLLOUTS\tSCORE\tMEMORY")
	for i, r := range records {
		s := sums[i]
		row(t, r.Run, armOf(r), r.Reset, r.Settings["locks"], string(r.Verdict), s.gates, s.controls, s.rollouts, s.score, s.memory)
	}
	t.Flush()
	writeTimes(&b, records, sums)
	for i, r := range records {
		if reasons && r.Verdict != engine.RunPassed {
			writeReasons(&b, r)
		}
		fmt.Fprintf(&b, "record  %s\n", filepath.Join(dirs[i], record.RecordFile))
	}
	return printText(g.Stdout, b.String())
}

// armOf is the arm, and that it was emulated.
func armOf(r bench.Record) string {
	if engine.Emulated(r.Facts) {
		return r.Arm + ", emulated"
	}
	return r.Arm
}

// row writes cells; what there is none of is a dash.
func row(t io.Writer, cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = "-"
		}
	}
	fmt.Fprintln(t, strings.Join(cells, "\t"))
}

// writeReasons says why a run did not pass: each finding or failure that is a cause, not what followed from it.
func writeReasons(b *strings.Builder, r bench.Record) {
	fmt.Fprintf(b, "\n%s: %s", r.Run, r.Verdict)
	if r.Reason != "" {
		fmt.Fprintf(b, ": %s", r.Reason)
	}
	b.WriteString("\n")
	const most = 12
	n := 0
	for _, s := range r.Steps {
		if s.Verdict == engine.Pass || s.Verdict == engine.NotRun {
			continue
		}
		said, hint := false, ""
		for _, f := range s.Findings {
			if f.Verdict == engine.Pass {
				continue
			}
			said = true
			if n++; n > most {
				continue
			}
			fmt.Fprintf(b, "  %s: %s: %s %s", s.Step, f.Verdict, printable(f.Subject), printable(f.Text))
			if f.Want != "" || f.Have != "" {
				fmt.Fprintf(b, " (want %s, have %s)", clip(f.Want), clip(f.Have))
			}
			b.WriteString("\n")
			if f.Hint != hint { // not after each of ten locks
				hint = f.Hint
				fmt.Fprintf(b, "    hint: %s\n", hint)
			}
		}
		if s.Error != nil && !said {
			if n++; n <= most {
				fmt.Fprintf(b, "  %s: %s: %s\n", s.Step, s.Verdict, printable(s.Error.Text))
				if s.Error.Hint != "" {
					fmt.Fprintf(b, "    hint: %s\n", s.Error.Hint)
				}
				if s.Error.Log != "" {
					fmt.Fprintf(b, "    log: %s\n", s.Error.Log)
				}
			}
		}
	}
	if n > most {
		fmt.Fprintf(b, "  and %d more; the record has them\n", n-most)
	}
}

func clip(s string) string {
	const most = 120
	s = printable(s)
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/aclements/go-moremath/stats"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

type showCmd struct {
	Brief bool     `help:"The table alone, without the reasons of runs that did not pass."`
	Runs  []string `arg:"" name:"run" type:"path" help:"Run directories, or folders of them."`
}

// Help teaches the command.
func (showCmd) Help() string {
	return `Prints a table of runs, made from their records and from nothing else: verdict, gates, scores and
the clocks of the resets. A run that did not pass shows its failure and no number.

Example:

  drumsbench show /var/lib/drumsbench/runs/*

Exit codes: 0 printed, 1 a record is missing or not what the schema says, 2 wrong usage.`
}

// Run prints the table.
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
	return printRuns(g, dirs, records, !c.Brief)
}

func readRecord(dir string) (r bench.Record, err error) {
	path := filepath.Join(dir, record.RecordFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return r, &engine.Error{Op: "read record", Err: err}
	}
	if err := compile.Validate("#Record", b); err != nil {
		return r, &engine.Error{Op: "read record " + path, Err: err}
	}
	return r, json.Unmarshal(b, &r)
}

// printRuns prints what the records say: for people a table and, beneath it, why
// a run did not pass; for programs the records.
func printRuns(g *globals, dirs []string, records []bench.Record, reasons bool) error {
	if g.json() {
		return printJSON(g.Stdout, records)
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RUN\tARM\tRESET\tLOCKS\tVERDICT\tGATES\tROLLOUTS\tSCORE\tRETURNED\tREADY\tUSABLE\tREPAIR")
	for _, r := range records {
		s := summarize(r)
		locks := r.Settings["locks"]
		if locks == "" {
			locks = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Run, r.Arm, r.Reset, locks, r.Verdict, s.gates, s.rollouts, s.score, s.mechanism, s.ready, s.usable, s.repair)
	}
	t.Flush()
	b.WriteString("times are p50/p95 in ms from the start of a reset: RETURNED the mechanism returned, READY the readiness rule held, USABLE reseeded and gated; REPAIR is the part of it that put locks back\n")
	for i, r := range records {
		if reasons && r.Verdict != engine.RunPassed {
			writeReasons(&b, r)
		}
		fmt.Fprintf(&b, "record  %s\n", filepath.Join(dirs[i], record.RecordFile))
	}
	return printText(g.Stdout, b.String())
}

// summary is a record's line in the table.
type summary struct{ gates, rollouts, score, mechanism, ready, usable, repair string }

func summarize(r bench.Record) summary {
	passed, gates := 0, 0
	for _, s := range r.Steps {
		if s.Kind == "gate" {
			gates++
			if s.Verdict == engine.Pass {
				passed++
			}
		}
	}
	none := summary{gates: fmt.Sprintf("%d/%d", passed, gates), rollouts: "-", score: "-", mechanism: "-", ready: "-", usable: "-", repair: "-"}
	if r.Verdict != engine.RunPassed {
		return none // a run that did not pass yields no number
	}
	out := none
	var mechanism, ready, usable, repair []float64
	measured, success := 0, 0
	scores := map[string]int{}
	for _, o := range r.Rollouts {
		if o.Warmup {
			continue
		}
		measured++
		if o.Class == record.Success {
			success++
		}
		if o.Before != nil && o.After != nil {
			scores[fmt.Sprintf("%.1f->%.1f", *o.Before, *o.After)]++
		}
		if o.Clocks != nil {
			mechanism = appendNS(mechanism, o.Clocks.Mechanism)
			ready = appendNS(ready, o.Clocks.Ready)
			usable = appendNS(usable, o.Clocks.Usable)
		}
		if v, ok := o.Spans["repair"]; ok {
			repair = appendNS(repair, v)
		}
	}
	out.rollouts = fmt.Sprintf("%d/%d", success, measured)
	var parts []string
	for s, n := range scores {
		parts = append(parts, fmt.Sprintf("%s x%d", s, n))
	}
	if len(parts) == 1 {
		out.score = parts[0]
	} else if len(parts) > 1 {
		out.score = strings.Join(parts, ", ")
	}
	out.mechanism, out.ready, out.usable, out.repair = quantiles(mechanism), quantiles(ready), quantiles(usable), quantiles(repair)
	return out
}

func appendNS(list []float64, v bench.Int64) []float64 {
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return list // absent: the rollout did not come that far
	}
	return append(list, float64(n)/float64(time.Millisecond))
}

// quantiles is "p50/p95" of a sample in ms.
func quantiles(ms []float64) string {
	if len(ms) == 0 {
		return "-"
	}
	s := stats.Sample{Xs: ms}
	return fmt.Sprintf("%.1f/%.1f", s.Quantile(0.5), s.Quantile(0.95))
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

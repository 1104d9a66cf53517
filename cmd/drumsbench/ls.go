package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	site "github.com/drumsbench/drumsbench/engine/report"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

type lsCmd struct {
	Folders  []string `arg:"" optional:"" name:"folder" type:"path" help:"Folders of runs (default: runs in the state directory)."`
	Manifest []string `placeholder:"NAME" help:"Only runs of these manifests."`
	Arm      []string `placeholder:"KIND" help:"Only runs on these arms."`
	Reset    []string `placeholder:"MODE" help:"Only runs with these resets: restore, cold."`
	State    []string `placeholder:"STATE" name:"is" help:"Only runs in these states: verified, preliminary, failed, planned, running; or with these verdicts: passed, blocked, review."`
	Since    string   `placeholder:"WHEN" help:"Only runs that started then or later: 2026-12-01, 2026-12-01T15:00:00Z, or 24h for the last day."`
	Until    string   `placeholder:"WHEN" help:"Only runs that started before then."`
	Limit    int      `default:"0" placeholder:"N" help:"At most so many, the newest."`
}

// Help teaches the command.
func (lsCmd) Help() string {
	return `Lists runs, the newest first, as their records have them, and experiments that were registered and not run
(planned; without a folder that is named). What a record says is kept in an index in the state directory by
the stat identity of the record's file, so that only records that are new or changed are read. The state of a
run of a registered experiment is judged as drumsbench judge does, over all its runs that this host knows;
their directories are verified for it, and judged again once a file of theirs (evidence aside), a registration
or a start is another one. Directories of other runs are not verified: drumsbench verify does that.

Examples:

  drumsbench ls
  drumsbench ls --manifest locks --arm drums --is failed --since 2026-12-01
  drumsbench ls -o json --limit 1 runs

Exit codes: 0 listed, even if there is none, 1 a folder cannot be read, 2 wrong usage.`
}

// listedRun is a run's line.
type listedRun struct {
	Path     string           `json:"path"`
	Run      string           `json:"run"`
	Manifest string           `json:"manifest"`
	Arm      string           `json:"arm"`
	Reset    string           `json:"reset"`
	State    string           `json:"state"`
	Verdict  bench.RunVerdict `json:"verdict,omitempty"`
	Reason   string           `json:"reason,omitempty"`
	Started  bench.Time       `json:"started,omitempty"`
	// Measured counts the rollouts that are neither controls nor warm-ups.
	Measured int `json:"measured"`
	// Registration that the run belongs to, or that is planned.
	Registration bench.SHA256 `json:"registration,omitempty"`
}

// stateRunning is that of a run without a record that an engine holds.
const stateRunning = "running"

var listable = []string{string(site.Verified), string(site.Preliminary), string(site.Failed), string(site.Planned), stateRunning,
	string(engine.RunPassed), string(engine.RunBlocked), string(engine.RunReview)}

// Run lists.
func (c lsCmd) Run(ctx context.Context, g *globals) error {
	for _, s := range c.State {
		if !slices.Contains(listable, s) {
			return usage(fmt.Sprintf("no state %q; there are %s", s, strings.Join(listable, ", ")))
		}
	}
	since, err := when(c.Since)
	if err != nil {
		return err
	}
	until, err := when(c.Until)
	if err != nil {
		return err
	}
	named := len(c.Folders) > 0
	if !named {
		c.Folders = []string{filepath.Join(g.State, "runs")}
	}
	index := openRunIndex(filepath.Join(g.State, "cache", "runs.index"))
	all, err := listRuns(g, index, c.Folders)
	if err != nil {
		return err
	}
	judging, err := newJudging(g, index, all)
	if err != nil {
		return err
	}
	if !named {
		judging.forget()
		all = append(all, judging.planned()...)
	}
	list := []listedRun{}
	for _, r := range all {
		if c.wants(r, since, until) {
			list = append(list, r)
		}
	}
	if len(c.State) > 0 { // which state a run has must be known of all
		if err := judging.states(ctx, list); err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(r listedRun) bool {
			return !slices.Contains(c.State, r.State) && !slices.Contains(c.State, string(r.Verdict))
		})
	}
	slices.SortStableFunc(list, func(a, b listedRun) int {
		if n := strings.Compare(string(b.Started), string(a.Started)); n != 0 {
			return n
		}
		return strings.Compare(a.Path, b.Path)
	})
	left := 0
	if c.Limit > 0 && len(list) > c.Limit {
		left = len(list) - c.Limit
		list = list[:c.Limit]
	}
	if len(c.State) == 0 {
		if err := judging.states(ctx, list); err != nil {
			return err
		}
	}
	if err := index.save(c.Folders); err != nil {
		g.Log.Debug("the index of runs was not kept", "error", err) // it only saves time
	}
	if g.json() {
		return printJSON(g.Stdout, list)
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if len(list) > 0 {
		fmt.Fprintln(t, "STARTED\tMANIFEST\tARM\tRESET\tSTATE\tVERDICT\tN\tPATH")
	}
	for _, r := range list {
		started, n := "", ""
		if at, err := time.Parse(time.RFC3339Nano, string(r.Started)); err == nil {
			started, n = at.Format("2006-01-02 15:04:05"), fmt.Sprint(r.Measured)
		}
		if r.State == string(site.Planned) {
			n = ""
		}
		row(t, started, terminal.Line(r.Manifest), terminal.Line(r.Arm), r.Reset, r.State, string(r.Verdict), n, terminal.Line(r.Path))
	}
	t.Flush()
	fmt.Fprintf(&b, "%s of %d", count(len(list), "run"), len(all))
	if left > 0 {
		fmt.Fprintf(&b, ", %d more match", left)
	}
	return printText(g.Stdout, b.String()+"\n")
}

// wants says whether a run is asked for, its state aside. A planned experiment has
// more than one arm and reset.
func (c lsCmd) wants(r listedRun, since, until time.Time) bool {
	has := func(list []string, values ...string) bool {
		return len(list) == 0 || slices.ContainsFunc(values, func(v string) bool { return slices.Contains(list, v) })
	}
	if !has(c.Manifest, r.Manifest) || !has(c.Arm, strings.Split(r.Arm, ",")...) || !has(c.Reset, strings.Split(r.Reset, ",")...) {
		return false
	}
	if since.IsZero() && until.IsZero() {
		return true
	}
	at, err := time.Parse(time.RFC3339Nano, string(r.Started))
	return err == nil && (since.IsZero() || !at.Before(since)) && (until.IsZero() || at.Before(until))
}

// when is a day, a time, or so long ago; the zero time for no text.
func when(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return time.Now().Add(-ago), nil
	}
	for _, form := range []string{time.DateOnly, time.RFC3339, "2006-01-02T15:04", "2006-01-02 15:04:05"} {
		if at, err := time.Parse(form, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, usage(fmt.Sprintf("%q is no day, time or duration", text))
}

// listRuns finds the runs below folders, each once. A folder that does not exist has none.
func listRuns(g *globals, index *runIndex, folders []string) ([]listedRun, error) {
	var list []listedRun
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist) && path != folder:
				return nil // it went away meanwhile
			case err != nil || !d.IsDir():
				return err
			case !record.IsRun(path):
				return nil
			}
			r, known, err := index.look(path)
			if err != nil {
				return err
			}
			if known {
				list = append(list, r)
			}
			return fs.SkipDir // a run holds no run
		})
		if errors.Is(err, fs.ErrNotExist) && folder == filepath.Join(g.State, "runs") {
			continue
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &engine.Error{Op: "find runs", Err: usage(folder + ": no such folder")}
		}
		if err != nil {
			return nil, &engine.Error{Op: "find runs", Err: err}
		}
	}
	return list, nil
}

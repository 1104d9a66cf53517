package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// shot is the screen of some rollouts of a run as an evaluation found it.
// Pictures that are equal, byte for byte, are one file.
type shot struct {
	Run      string  `json:"run"`
	When     string  `json:"when"`
	Rollouts []int64 `json:"rollouts"`
	// Control says who acted, where the rollout is one.
	Control string `json:"control,omitempty"`
	File    string `json:"file"`
}

// printPictures lists the pictures of runs, of some rollouts or of all. One whose bytes are not what the
// receipt says is an error.
func printPictures(g *globals, dirs []string, only []int64) error {
	list := []shot{}
	for _, dir := range dirs {
		shots, err := pictures(dir, only)
		if err != nil {
			return err
		}
		list = append(list, shots...)
	}
	if g.json() {
		return printJSON(g.Stdout, list)
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SCREEN\tROLLOUTS\tACTS\tFILE")
	for _, s := range list {
		row(t, s.When, strings.Trim(fmt.Sprint(s.Rollouts), "[]"), s.Control, s.File)
	}
	t.Flush()
	return printText(g.Stdout, b.String())
}

// pictures finds those of one run, in the plan's order.
func pictures(dir string, only []int64) ([]shot, error) {
	const op = "read pictures of run"
	text, err := record.ReadRegular(filepath.Join(dir, record.PlanFile))
	if err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	var plan bench.Plan
	if err := json.Unmarshal(text, &plan); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	receipts, _, err := record.ReadEvents(dir)
	if err != nil {
		return nil, err
	}
	by := map[string]bench.Receipt{}
	for _, r := range receipts {
		by[r.Step] = r
	}
	store := record.OpenEvidence(dir)
	var list []shot
	index := map[string]int{}
	for _, s := range plan.Steps {
		if s.Kind != "evaluate" || s.Rollout == nil || len(only) > 0 && !slices.Contains(only, *s.Rollout) {
			continue
		}
		for _, e := range by[s.Id].Evidence {
			when, ok := strings.CutPrefix(strings.TrimSuffix(e.Name, ".png"), "screen-")
			if !ok {
				continue
			}
			path := store.Path(e)
			data, err := record.ReadRegular(path)
			if err == nil && canonical.Sum(data) != e.Sha256 {
				err = errors.New(path + " is not what was written")
			}
			if err != nil {
				return nil, &engine.Error{Op: op, Step: s.Id, Err: err, Hint: "drumsbench verify says what was changed"}
			}
			k := path + s.Control
			i, known := index[k]
			if !known {
				i, index[k] = len(list), len(list)
				list = append(list, shot{Run: filepath.Base(dir), When: when, Control: s.Control, File: path})
			}
			list[i].Rollouts = append(list[i].Rollouts, *s.Rollout)
		}
	}
	return list, nil
}

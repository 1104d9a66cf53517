package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// gateCount says of one gate how often it passed in a run.
type gateCount struct {
	Gate   string `json:"gate"`
	Run    string `json:"run"`
	Passed int    `json:"passed"`
	Of     int    `json:"of"`
}

// countGates counts the gates of a run under the names that they have in every
// rollout, in the order in which they first come.
func countGates(r bench.Record) (list []gateCount) {
	index := map[string]int{}
	for _, s := range r.Steps {
		if s.Kind != "gate" {
			continue
		}
		_, name, found := strings.Cut(s.Step, "/")
		if !found {
			name = s.Step
		}
		name = strings.TrimPrefix(name, "gate-")
		i, known := index[name]
		if !known {
			i, index[name] = len(list), len(list)
			list = append(list, gateCount{Gate: name, Run: r.Run})
		}
		list[i].Of++
		if s.Verdict == engine.Pass {
			list[i].Passed++
		}
	}
	return list
}

// printGates prints a line for each gate and a column for each run.
func printGates(g *globals, records []bench.Record) error {
	all := []gateCount{}
	var names []string
	cells := map[string][]string{}
	head := []string{"GATE"}
	for k, r := range records {
		head = append(head, r.Run)
		for _, c := range countGates(r) {
			all = append(all, c)
			if cells[c.Gate] == nil {
				names = append(names, c.Gate)
				cells[c.Gate] = make([]string, len(records))
			}
			cells[c.Gate][k] = fmt.Sprintf("%d/%d", c.Passed, c.Of)
		}
	}
	if g.json() {
		return printJSON(g.Stdout, all)
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row(t, head...)
	for _, name := range names {
		row(t, append([]string{name}, cells[name]...)...)
	}
	t.Flush()
	return printText(g.Stdout, b.String())
}

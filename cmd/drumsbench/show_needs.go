package main

import (
	"fmt"
	"strings"

	"github.com/drumsbench/drumsbench/engine/density"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// needsLine is what a run needed and stored.
type needsLine struct {
	Run       string           `json:"run"`
	Arm       string           `json:"arm"`
	Footprint *bench.Footprint `json:"footprint"`
	Storage   *bench.Storage   `json:"storage"`
}

// printNeeds prints what each run needed of the host, and what it stored there.
func printNeeds(g *globals, records []bench.Record) error {
	lines := []needsLine{}
	for _, r := range records {
		f, err := density.FootprintOf(r)
		if err != nil {
			return err
		}
		lines = append(lines, needsLine{r.Run, r.Arm, f, density.StorageOf(r)})
	}
	if g.json() {
		return printJSON(g.Stdout, lines)
	}
	var b strings.Builder
	for i, l := range lines {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s, %s\n", l.Run, l.Arm)
		for _, r := range density.NeedsRows(l.Footprint, l.Storage) {
			fmt.Fprintf(&b, "  %-12s %s\n", r.What, terminal.Line(r.Text))
		}
	}
	return printText(g.Stdout, b.String())
}

package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	site "github.com/drumsbench/drumsbench/engine/report"
	"github.com/drumsbench/drumsbench/engine/terminal"
)

// writeBranches has a line for each branch of a task that branches and, where they are siblings of one checkpoint, how often
// each check between them passed.
func writeBranches(b *strings.Builder, runs []shownRun) {
	for _, r := range runs {
		lines := site.Branches(r.record)
		if len(lines) == 0 || r.state.State != runSound {
			continue
		}
		b.WriteString("\n")
		t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		fmt.Fprintf(t, "BRANCHES OF %s\tN\tCLASS\tSCORE\n", terminal.Line(r.record.Run))
		for _, l := range lines {
			score := "-"
			if r.counts() {
				score = site.Scores(l.Before) + "->" + site.Scores(l.After)
			}
			row(t, terminal.Line(string(l.Branch)), fmt.Sprint(len(l.Classes)), site.ClassesText(l.Classes), score)
		}
		t.Flush()
		var words []string
		for _, c := range site.SiblingChecks(r.record) {
			words = append(words, fmt.Sprintf("%s %d/%d", c.Name, c.Passed, c.Asked))
		}
		if len(words) > 0 {
			fmt.Fprintf(b, "siblings: %s\n", strings.Join(words, ", "))
		}
	}
}

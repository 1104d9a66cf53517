package report

import (
	"fmt"
	"strconv"
)

// interruptedSection says what attempts at a run had begun and not finished. A run that was never resumed has none.
func interruptedSection(r *Run) (*Section, error) {
	if len(r.Record.Interrupted) == 0 {
		return nil, nil
	}
	t := Table{Name: "interrupted", Caption: "What was interrupted", Head: heads("Attempt#", "Rollout#", "Slot", "Class", "Why", "After receipt#", "Resumed at")}
	attempts := int64(0)
	for _, l := range r.Record.Interrupted {
		rollout, slot := "-", "-"
		if l.Rollout != nil {
			rollout, slot = strconv.FormatInt(*l.Rollout, 10), l.Slot
		}
		attempts = max(attempts, l.Attempt)
		t.Rows = append(t.Rows, []Cell{whole(int(l.Attempt)), text(rollout), text(slot), badge(l.Class), text(l.Reason), whole(int(l.After)), text(string(l.Resumed))})
	}
	return &Section{ID: "interrupted", Title: "Interrupted and resumed", Tables: []Table{t}, Text: []string{
		fmt.Sprintf("The engine of this run ended in its middle, and another went on in the same chain: %d of its attempts were interrupted. Rollouts that were finished stay; what is named here was run anew, and nothing of it is in any number.", attempts),
	}}, nil
}

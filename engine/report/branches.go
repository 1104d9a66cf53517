package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// BranchLine is what became of one branch of a task, over the rounds of a run; warm-ups are left out.
type BranchLine struct {
	Branch bench.Name `json:"branch"`
	// Slots that it was in.
	Slots []string `json:"slots"`
	// Classes of its rollouts, in the order of the rounds, and the scores that there are, before and after the act.
	Classes []bench.RolloutClass `json:"classes"`
	Before  []float64            `json:"before"`
	After   []float64            `json:"after"`
}

// Branches are the branches of a run, in the order of its manifest; empty for a task that does not branch.
func Branches(r bench.Record) (list []BranchLine) {
	for _, o := range r.Rollouts {
		if o.Branch == "" || o.Warmup {
			continue
		}
		i := slices.IndexFunc(list, func(l BranchLine) bool { return l.Branch == o.Branch })
		if i < 0 {
			i = len(list)
			list = append(list, BranchLine{Branch: o.Branch})
		}
		l := &list[i]
		if !slices.Contains(l.Slots, o.Slot) {
			l.Slots = append(l.Slots, o.Slot)
		}
		l.Classes = append(l.Classes, o.Class)
		if o.Before != nil {
			l.Before = append(l.Before, *o.Before)
		}
		if o.After != nil {
			l.After = append(l.After, *o.After)
		}
	}
	return list
}

// Scores are those of a branch as text: one where all rounds had the same, "-" where there is none.
func Scores(list []float64) string {
	if len(list) == 0 {
		return "-"
	}
	var words []string
	for _, v := range list {
		words = append(words, fmt.Sprintf("%.1f", v))
	}
	if same := slices.Compact(slices.Clone(words)); len(same) == 1 {
		return same[0]
	}
	return strings.Join(words, " ")
}

// ClassesText counts classes: "success", or "success 2, invalid 1" where they differ.
func ClassesText(list []bench.RolloutClass) string {
	var order []bench.RolloutClass
	n := map[bench.RolloutClass]int{}
	for _, c := range list {
		if n[c]++; n[c] == 1 {
			order = append(order, c)
		}
	}
	if len(order) == 1 {
		return string(order[0])
	}
	var words []string
	for _, c := range order {
		words = append(words, fmt.Sprintf("%s %d", c, n[c]))
	}
	return strings.Join(words, ", ")
}

// SiblingCheck is how often one of the checks of a task that branches passed.
type SiblingCheck struct {
	Name   string `json:"name"`
	Title  string `json:"title"`
	Passed int    `json:"passed"`
	Asked  int    `json:"asked"`
}

// siblingChecks are the last parts of the ids of steps, with what each stands for.
var siblingChecks = []struct{ step, title string }{
	{"gate-carried", "what the prefix left is in the branch"},
	{"gate-hygiene", "identity is each slot's own"},
	{"gate-audit", "nothing shared that two cold slots do not share"},
	{"isolate", "no canary of another seen, and the deliberate leak was"},
	{"gate-diverged", "different acts, different states"},
	{"gate-parent", "the checkpoint is as it was sealed"},
}

// SiblingChecks are the checks of a run whose task branches from a checkpoint.
func SiblingChecks(r bench.Record) (list []SiblingCheck) {
	if len(Branches(r)) == 0 {
		return nil
	}
	for _, c := range siblingChecks {
		out := SiblingCheck{Name: strings.TrimPrefix(c.step, "gate-"), Title: c.title}
		for _, s := range r.Steps {
			if _, last, _ := strings.Cut(s.Step, "/"); last != c.step {
				continue
			}
			out.Asked++
			if s.Verdict == engine.Pass {
				out.Passed++
			}
		}
		if out.Asked > 0 {
			list = append(list, out)
		}
	}
	return list
}

// branchesSection is a run's branches and what was checked between them.
func branchesSection(r *Run) (*Section, error) {
	if !r.Sound() {
		return nil, nil
	}
	lines := Branches(r.Record)
	if len(lines) == 0 {
		return nil, nil
	}
	b := r.Manifest.Task.Branching
	t := Table{Name: "branches", Caption: "Each branch, over all rounds", Head: heads("Branch", "Acts", "Slot", "Rollouts#", "Class", "Score before", "Score after", "Asked for#")}
	for _, l := range lines {
		acts, asked := "-", "-"
		if b != nil {
			if i := slices.IndexFunc(b.Branches, func(x bench.Branch) bool { return x.Name == l.Branch }); i >= 0 {
				acts, asked = actsText(b.Branches[i].Act), fmt.Sprint(b.Branches[i].Score)
			}
		}
		before, after := "-", "-"
		if r.Counts() {
			before, after = Scores(l.Before), Scores(l.After)
		}
		t.Rows = append(t.Rows, []Cell{text(string(l.Branch)), text(acts), text(strings.Join(l.Slots, ", ")), whole(len(l.Classes)),
			badge(ClassesText(l.Classes)), text(before), text(after), text(asked)})
	}
	out := &Section{ID: "branches", Title: "Branches", Tables: []Table{t}}
	checks := SiblingChecks(r.Record)
	if len(checks) == 0 {
		out.Text = append(out.Text, "Each branch began cold and did set-up and prefix anew: nothing is shared, and nothing is carried over by a checkpoint.")
		return out, nil
	}
	out.Text = append(out.Text, "Each branch is a sibling restored from one checkpoint in the middle of the task, all of them alive at the same time.")
	c := Table{Name: "siblings", Caption: "What was checked of and between the siblings", Head: heads("Check", "What", "Passed#")}
	for _, s := range checks {
		c.Rows = append(c.Rows, []Cell{text(s.Name), text(s.Title), {Text: fmt.Sprintf("%d of %d", s.Passed, s.Asked), Raw: fmt.Sprint(s.Passed)}})
	}
	out.Tables = append(out.Tables, c)
	return out, nil
}

// actsText is the commands of an act, fit for a cell.
func actsText(commands []bench.Command) string {
	const most = 120
	var words []string
	for _, c := range commands {
		argv := slices.Clone(c.Exec)
		for i, w := range argv {
			if strings.Contains(w, "\n") {
				argv[i] = "…" // a program is no name
			}
		}
		words = append(words, strings.Join(argv, " "))
	}
	s := cmp.Or(strings.Join(words, "; "), "nobody acts")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

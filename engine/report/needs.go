package report

import (
	"strconv"

	"github.com/drumsbench/drumsbench/engine/density"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// needsSection is what a run needed of the host, and what it stored there.
func needsSection(r *Run) (*Section, error) {
	f, err := density.FootprintOf(r.Record)
	if err != nil {
		return nil, err
	}
	s := density.StorageOf(r.Record)
	if f == nil && s == nil {
		return nil, nil
	}
	t := Table{Name: "needs", Caption: "Programs, packages, privileges and disk", Head: heads("what", "how much")}
	for _, n := range density.NeedsRows(f, s) {
		t.Rows = append(t.Rows, []Cell{text(n.What), text(n.Text)})
	}
	return &Section{ID: "needs", Title: "What it needs of a host", Tables: []Table{t}}, nil
}

// armsNeedSection sets the arms side by side: of each the newest run that says.
func armsNeedSection(runs []*Run) (*Section, error) {
	t := Table{Name: "footprints", Caption: "What each arm needs of a host, by its newest run that says; disk by all runs that passed",
		Head: heads("arm", "programs#", "MiB of programs#", "packages with dependencies#", "MiB installed#", "image MiB#", "checkpoint MiB#", "own layer of a slot MiB#", "privileges", "run")}
	row := map[string]int{}
	mebibytes := func(n float64) Cell {
		return Cell{Text: strconv.FormatFloat(n/(1<<20), 'f', 2, 64), Raw: strconv.FormatFloat(n, 'f', -1, 64)}
	}
	of := func(v string) Cell {
		n, err := strconv.ParseFloat(v, 64)
		if err != nil {
			return text("unknown")
		}
		return mebibytes(n)
	}
	records := map[string][]bench.Record{}
	for _, r := range runs {
		if r.Sound() {
			records[r.Record.Arm] = append(records[r.Record.Arm], r.Record)
		}
	}
	for _, r := range runs {
		f, err := density.FootprintOf(r.Record)
		if err != nil {
			return nil, err
		}
		if f == nil {
			continue
		}
		cells := []Cell{text(r.Record.Arm), whole(len(f.Programs)), mebibytes(float64(density.ProgramBytes(*f))), whole(len(f.Packages)), of(string(f.Installed)),
			text("unknown"), text("unknown"), text("unknown"), text(density.Privileges(*f)), text(r.Record.Run)}
		if s := density.StorageOf(records[r.Record.Arm]...); s != nil {
			cells[5], cells[6] = of(string(s.Image)), of(string(s.Checkpoint))
			if s.Slot != nil {
				cells[7] = mebibytes(*s.Slot)
			}
		}
		i, there := row[r.Record.Arm]
		if !there {
			i = len(t.Rows)
			row[r.Record.Arm] = i
			t.Rows = append(t.Rows, nil)
		}
		t.Rows[i] = cells
	}
	if len(t.Rows) == 0 {
		return nil, nil
	}
	return &Section{ID: "footprints", Title: "What the arms need", Tables: []Table{t},
		Notes: []string{"packages are those that the host's own programs come from with all that they depend on, as dpkg has them installed; a private copy of criu counts as a program, with its libraries"}}, nil
}

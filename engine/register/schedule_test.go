package register

import (
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

func TestSchedule(t *testing.T) {
	for _, c := range []struct {
		order         string
		kinds, resets string
		blocks        int64
		want          string
	}{
		{"abba", "drums", "restore", 1, "drums-restore"},
		{"abba", "drums", "restore cold", 1, "drums-restore drums-cold"},
		{"abba", "drums oci", "restore", 2, "drums-restore-0 oci-restore-0 oci-restore-1 drums-restore-1"},
		{"abba", "drums oci", "restore", 3, "drums-restore-0 oci-restore-0 oci-restore-1 drums-restore-1 drums-restore-2 oci-restore-2"},
		{"abba", "drums oci", "restore cold", 2, "drums-restore-0 drums-cold-0 oci-restore-0 oci-cold-0 oci-cold-1 oci-restore-1 drums-cold-1 drums-restore-1"},
		{"sequence", "drums oci", "restore", 2, "drums-restore-0 drums-restore-1 oci-restore-0 oci-restore-1"},
	} {
		turns := Schedule(strings.Fields(c.kinds), strings.Fields(c.resets), bench.Experiment{Order: c.order, Blocks: c.blocks})
		var have []string
		for i, turn := range turns {
			have = append(have, turn.Folder())
			if turn.Position != i {
				t.Errorf("%s: turn %d has position %d", c.want, i, turn.Position)
			}
		}
		if got := strings.Join(have, " "); got != c.want {
			t.Errorf("%s of %d: have %s, want %s", c.order, c.blocks, got, c.want)
		}
	}
}

// Levels come after the ordinary runs, a trial after the other, and windows last;
// only a window has a next run, until its time is over.
func TestScheduleOfParts(t *testing.T) {
	e := bench.Experiment{Order: "abba", Blocks: 1, Sweep: &bench.Sweep{Slots: []int64{1, 4}, Trials: 2}, Sustain: &bench.Sustain{Slots: 2, Duration: "1m", Windows: 2}}
	want := map[string]string{
		"abba": "drums-restore oci-restore drums-restore-level1-0 oci-restore-level1-0 drums-restore-level4-0 oci-restore-level4-0 " +
			"oci-restore-level4-1 drums-restore-level4-1 oci-restore-level1-1 drums-restore-level1-1 " +
			"drums-restore-window0-000 oci-restore-window0-000 oci-restore-window1-000 drums-restore-window1-000",
		"sequence": "drums-restore oci-restore drums-restore-level1-0 drums-restore-level1-1 oci-restore-level1-0 oci-restore-level1-1 " +
			"drums-restore-level4-0 drums-restore-level4-1 oci-restore-level4-0 oci-restore-level4-1 " +
			"drums-restore-window0-000 drums-restore-window1-000 oci-restore-window0-000 oci-restore-window1-000",
	}
	for order, text := range want {
		e.Order = order
		var have []string
		for i, turn := range Schedule([]string{"drums", "oci"}, []string{"restore"}, e) {
			have = append(have, turn.Folder())
			if turn.Position != i {
				t.Errorf("turn %d has position %d", i, turn.Position)
			}
			window := turn.Part != nil && turn.Part.Kind == "sustain"
			first := bench.Record{Started: "2026-11-30T00:00:00Z", Ended: "2026-11-30T00:00:20Z"}
			within, after := bench.Record{Started: "2026-11-30T00:00:50Z", Ended: "2026-11-30T00:00:59.999Z"}, bench.Record{Ended: "2026-11-30T00:01:00Z"}
			if turn.Again(e, first, first) != window || turn.Again(e, first, within) != window || turn.Again(e, first, after) || turn.Again(e, first, bench.Record{}) {
				t.Errorf("%s: another run in time %v, after it %v", turn.Folder(), turn.Again(e, first, within), turn.Again(e, first, after))
			}
			if next := turn.Next().Folder(); window != (next != turn.Folder()) {
				t.Errorf("after %s comes %s", turn.Folder(), next)
			}
		}
		if got := strings.Join(have, " "); got != text {
			t.Errorf("%s: have %s, want %s", order, got, text)
		}
	}
}

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

package procfs

import (
	"errors"
	"os/exec"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A process with more capabilities than ours that starts while a slot runs is
// none of the slot's, and its census goes on; whether it holds something of the
// slot cannot be seen. Found by a crash window: such a stranger blocked a run.
func TestGuarded(t *testing.T) {
	c := exec.Command("/bin/sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	older, err := Identity(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	younger := older
	older.StartTicks = "1"     // a slot that was there before
	younger.StartTicks += "00" // one that came later
	for _, g := range []struct {
		what            string
		level           int
		slot            bench.Identity
		inside, unknown bool
	}{
		{"younger than the slot, of our own pid namespace", 1, older, false, true},
		{"older than the slot, of our own pid namespace", 1, younger, false, false},
		{"with a number at the slot's level", 0, older, true, true},
		{"with a number at the slot's level, and older", 0, younger, true, true},
	} {
		inside, err := guarded(c.Process.Pid, g.level, g.slot)
		if inside != g.inside || errors.Is(err, engine.ErrUnknown) != g.unknown || !g.unknown && err != nil {
			t.Errorf("%s: inside %v, %v", g.what, inside, err)
		}
	}
}

package procfs

import (
	"errors"
	"fmt"
	"math"
	"os/exec"
	"slices"
	"testing"
	"time"

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

// A stranger that may not be inspected is waited for, and looked at once it may be;
// one that stays so is unknown. Found by a demo: what a container's init starts
// blocked a run.
func TestStrangerIsWaitedFor(t *testing.T) {
	looks := 0
	look := func(hiddenFor int) func() ([]Task, []int, error, error) {
		looks = 0
		return func() ([]Task, []int, error, error) {
			if looks++; looks <= hiddenFor {
				return nil, nil, fmt.Errorf("%w: pid 7 (spawner) may not be inspected", engine.ErrUnknown), nil
			}
			return []Task{{Inner: 1}}, []int{7}, nil, nil
		}
	}
	tasks, others, err := inspectable(time.Hour, look(3))
	if err != nil || looks != 4 || len(tasks) != 1 || !slices.Equal(others, []int{7}) {
		t.Errorf("after %d looks: %v, %v, %v", looks, tasks, others, err)
	}
	if _, _, err := inspectable(20*time.Millisecond, look(math.MaxInt)); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("one that stays, after %d looks: %v", looks, err)
	}
	broken := errors.New("no /proc")
	if _, _, err := inspectable(time.Hour, func() ([]Task, []int, error, error) { return nil, nil, nil, broken }); !errors.Is(err, broken) {
		t.Errorf("a census that fails: %v", err)
	}
}

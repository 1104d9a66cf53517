package treetest

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// criuSeen says of each criu of a run, by pid, whether it was ever seen under the slot's
// memory limit. One that has ended is in no group of v1 any more, and is not looked at.
type criuSeen map[string]bool

// watchCRIU looks at the processes called criu of a run until the result is called.
func (s Made) watchCRIU() (stop func() criuSeen) {
	done, out := make(chan struct{}), make(chan criuSeen)
	go func() {
		seen := criuSeen{}
		for {
			names, _ := filepath.Glob("/proc/[0-9]*/comm")
			for _, name := range names {
				if comm, err := os.ReadFile(name); err != nil || string(comm) != "criu\n" {
					continue
				}
				pid := filepath.Base(filepath.Dir(name))
				ours, limited := memoryLimited(pid, s.ws.ID)
				// It has a program until it leaves its groups (do_exit).
				if _, err := os.Readlink(filepath.Join("/proc", pid, "exe")); err == nil && ours {
					seen[pid] = seen[pid] || limited
				}
			}
			select {
			case <-done:
				out <- seen
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() criuSeen { close(done); return <-out }
}

// memoryLimited says whether a process is in a group of a run, and whether its group of
// the memory controller is the limits of the run's first slot.
func memoryLimited(pid, run string) (ours, limited bool) {
	f, err := os.Open(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		return false, false
	}
	defer f.Close()
	limits := fmt.Sprintf("/drums-%s-slot-0-", run)
	unified, memory := "", false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		part := strings.SplitN(lines.Text(), ":", 3)
		if len(part) != 3 {
			continue
		}
		ours = ours || strings.Contains(part[2], run)
		in := strings.Contains(part[2], limits)
		switch {
		case part[1] == "":
			unified = part[2]
		case slices.Contains(strings.Split(part[1], ","), "memory"):
			memory, limited = true, in
		}
	}
	if !memory {
		limited = strings.Contains(unified, limits)
	}
	return ours, limited
}

// limited fails unless criu was seen, and under the slot's limits: all of them where every is set.
func (c criuSeen) limited(t *testing.T, during string, every bool) {
	t.Helper()
	inside := 0
	for pid, in := range c {
		if in {
			inside++
		} else if every {
			t.Errorf("%s: criu, pid %s, is outside of the slot's limits", during, pid)
		}
	}
	if inside == 0 {
		t.Errorf("%s: no criu was seen under the slot's limits, %d at all", during, len(c))
	}
}

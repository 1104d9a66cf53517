package steps

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// memory is a page cache that keeps what it is told.
type memory struct {
	left bench.Int64

	mu    sync.Mutex
	drops [][]string
}

func (m *memory) Drop(_ context.Context, paths []string) (bench.CacheDrop, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drops = append(m.drops, paths)
	d := bench.CacheDrop{Files: 2, Resident: "8192", Left: m.left}
	if m.left != "0" {
		d.Held = []string{"/image"}
	}
	return d, nil
}

func dropped(t *testing.T, m *memory, reset string) ran {
	t.Helper()
	pages = m
	t.Cleanup(func() { pages = nil })
	w := workload()
	w.Experiment.Rollouts, w.Experiment.PageCache = 2, PageCacheDropped
	return execute(t, w, reset)
}

// Before each reset, outside of its window, the files of image and checkpoint
// leave memory; without the option no plan has such a step.
func TestDropCache(t *testing.T) {
	for _, reset := range []string{"restore", "cold"} {
		t.Run(reset, func(t *testing.T) {
			m := &memory{left: "0"}
			r := dropped(t, m, reset)
			requirePassed(t, r)
			if len(m.drops) != 4 {
				t.Fatalf("%d drops, want one for each rollout", len(m.drops))
			}
			for _, paths := range m.drops {
				want := []string{"fake.qcow2"}
				if reset == "restore" {
					want = []string{"slot-0", "fake.qcow2"}
				}
				if have := (slices.Collect(bases(paths))); !slices.Equal(have, want) {
					t.Errorf("dropped %q", paths)
				}
			}
			begin := map[string]string{"restore": "r2/restore", "cold": "r2/provision"}[reset]
			for _, s := range r.plan.Steps {
				if s.Id == "r2/drop-cache" && s.Window != "" {
					t.Errorf("the drop is in the window %s", s.Window)
				}
			}
			if !ancestors(r.plan, begin)["r2/drop-cache"] || !ancestors(r.plan, "r2/drop-cache")["r1/gate-canary"] {
				t.Errorf("the drop is not between the rollout before and %s", begin)
			}
			if d := r.facts(t, "r2/drop-cache")[FactCacheDrop]; d != `{"files":2,"left":"0","resident":"8192"}` {
				t.Errorf("the receipt has %s", d)
			}
			if kept := plan(t, workload(), reset); strings.Contains(string(kept.JSON()), KindDropCache) {
				t.Error("a plan drops what nobody asked for")
			}
		})
	}
}

func bases(paths []string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, p := range paths {
			if !yield(filepath.Base(p)) {
				return
			}
		}
	}
}

// Where pages are left nobody knows what a reset reads from the disk: it is not begun.
func TestDropCacheLeft(t *testing.T) {
	r := dropped(t, &memory{left: "4096"}, "restore")
	if r.record.Verdict != engine.RunBlocked || !strings.Contains(r.record.Reason, "still in memory") {
		t.Errorf("%s: %s", r.record.Verdict, r.record.Reason)
	}
	for _, x := range r.record.Rollouts {
		if x.Clocks != nil {
			t.Errorf("rollout %d has clocks", x.Index)
		}
	}
}

// Without means to drop it, nothing is called dropped.
func TestDropCacheNoMeans(t *testing.T) {
	w := workload()
	w.Experiment.PageCache = PageCacheDropped
	r := execute(t, w, "restore")
	if r.record.Verdict == engine.RunPassed || !strings.Contains(r.record.Reason, "drop page cache") {
		t.Errorf("%s: %s", r.record.Verdict, r.record.Reason)
	}
}

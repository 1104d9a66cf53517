package soaktest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	prom "github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/hostview"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
)

// Samples are what a soaked program leaves in its file.
type Samples struct {
	Samples []Sample `json:"samples"`
	// Broken says why the last sample could not be taken; empty if all were.
	Broken string `json:"broken,omitempty"`
}

// Sampler looks at the host and at its own process after rollouts, and passes
// everything on to who else is told of the run's progress.
type Sampler struct {
	engine.Progress
	// Workspace of the run.
	Workspace *engine.Workspace
	// Every so many resets a sample is taken.
	Every int64
	// File gets what was sampled when the run is finished.
	File string
	// Plant is called before each sample, to test the judge; Clear once the run is finished.
	Plant, Clear func(*engine.Workspace)

	resets int64
	taken  Samples
}

// Event implements engine.Progress. It is called between steps: what is looked at is at rest.
func (s *Sampler) Event(e engine.Event) {
	s.Progress.Event(e)
	switch {
	case e.Kind == engine.StepFinished && strings.HasSuffix(e.Step.Id, "/gate-canary") && e.Verdict == engine.Pass:
		if s.resets++; s.resets%s.Every != 0 || s.taken.Broken != "" {
			return
		}
		if s.Plant != nil {
			s.Plant(s.Workspace)
		}
		values, err := look(context.Background(), s.Workspace)
		if err != nil {
			s.taken.Broken = err.Error()
			return
		}
		s.taken.Samples = append(s.taken.Samples, Sample{Reset: s.resets, Values: values})
	case e.Kind == engine.RunFinished:
		if s.Clear != nil {
			s.Clear(s.Workspace)
		}
		text, err := json.Marshal(s.taken)
		if err == nil {
			err = os.WriteFile(s.File, text, 0o644)
		}
		if err != nil { // the reader finds no file
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// look counts everything that there is a bound of.
func look(ctx context.Context, ws *engine.Workspace) (map[string]int64, error) {
	runtime.GC() // what finalizers close is closed by the second one
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	v := map[string]int64{"engine.goroutines": int64(runtime.NumGoroutine()), "engine.heap": int64(memory.HeapAlloc)}
	self, err := prom.Self()
	if err != nil {
		return nil, err
	}
	status, err := self.NewStatus()
	if err != nil {
		return nil, err
	}
	descriptors, err := self.FileDescriptorsLen()
	if err != nil {
		return nil, err
	}
	stat, err := self.Stat()
	if err != nil {
		return nil, err
	}
	v["engine.rss"], v["engine.descriptors"], v["engine.threads"] = int64(status.VmRSS), int64(descriptors), int64(stat.NumThreads)
	if err := Host(ctx, ws.ID, ws.Work, ws.State, v); err != nil {
		return nil, err
	}
	open, _, err := record.ReadLedger(filepath.Join(ws.Run, record.LedgerFile))
	if err != nil {
		return nil, err
	}
	v["own.entries"] = int64(len(open))
	if v["own.disk"], err = engine.DiskUse(ws.Work); err != nil {
		return nil, err
	}
	if v["run.disk"], err = engine.DiskUse(ws.Run); err != nil {
		return nil, err
	}
	if v["state.disk"], err = engine.DiskUse(ws.State); err != nil {
		return nil, err
	}
	v["state.disk"] -= v["run.disk"]
	return v, nil
}

// Host counts what there is on the host of a run, by its claim, its scratch directory and the state directory that is nobody else's, and of anybody.
func Host(ctx context.Context, claim, work, state string, v map[string]int64) error {
	s, err := hostview.Take(ctx, hostview.Scope{ID: claim, Paths: []string{work}})
	if err != nil {
		return err
	}
	ours := func(text string) bool {
		return strings.Contains(text, "drums-"+claim) || strings.Contains(text, work)
	}
	for _, name := range []string{"own.mounts", "own.processes", "own.groups", "own.loops", "own.namespaces", "host.mounts"} {
		v[name] = 0
	}
	for m, n := range s.Mounts {
		v["host.mounts"] += int64(n)
		if ours(m.Point) || ours(m.Source) || ours(m.Layers) {
			v["own.mounts"] += int64(n)
		}
	}
	home := map[string]bool{}
	if err := spaces("self", home); err != nil {
		return err
	}
	found := map[string]bool{}
	for id, p := range s.Processes {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id.Pid))
		if err != nil || id.Pid == os.Getpid() || !p.Ours && !ours(string(args)) {
			continue // also one that has ended meanwhile
		}
		v["own.processes"]++
		if err := spaces(fmt.Sprint(id.Pid), found); err != nil {
			return err
		}
	}
	for space := range found {
		if !home[space] {
			v["own.namespaces"]++
		}
	}
	for _, n := range s.NetNamespaces {
		if n.Held != "" {
			v["own.namespaces"]++ // once more where a process lives in it too: by its descriptor
		}
	}
	for group := range s.Cgroups {
		if ours(group) {
			v["own.groups"]++
		}
	}
	for _, l := range s.Loops {
		if strings.HasPrefix(l.Backing, state+"/") {
			v["own.loops"]++
		}
	}
	v["host.processes"], v["host.groups"], v["host.loops"], v["host.namespaces"] = int64(len(s.Processes)), int64(len(s.Cgroups)), int64(len(s.Loops)), int64(len(s.NetNamespaces))
	return nil
}

// spaces adds the namespaces that a process is in; none of one that has ended.
func spaces(pid string, to map[string]bool) error {
	entries, err := os.ReadDir(filepath.Join("/proc", pid, "ns"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for _, e := range entries {
		if link, err := os.Readlink(filepath.Join("/proc", pid, "ns", e.Name())); err == nil {
			to[link] = true
		}
	}
	return nil
}

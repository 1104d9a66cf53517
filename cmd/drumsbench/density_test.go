//go:build linux && !elsewhere

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/density"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// One manifest gives, for real, slope, memory, stable number, rate, cost and
// isolation beside its fired control; the host was probed around each run.
func TestDensity(t *testing.T) {
	manifest := filepath.Join(realState(), "manifests", "manifests", "density")
	for _, need := range []string{manifest, filepath.Join(realState(), "bin", "canary")} {
		if _, err := os.Stat(need); err != nil {
			t.Fatalf("%v: scripts/prepare makes it", err)
		}
	}
	base := filepath.Join(realState(), "runs")
	if err := os.MkdirAll(base, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := os.MkdirTemp(base, "drums-density-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(out) })
	program := func(args ...string) []byte {
		t.Helper()
		var said, failed bytes.Buffer
		cmd := exec.Command("drumsbench", append([]string{"--state", realState()}, args...)...)
		cmd.Stdout, cmd.Stderr = &said, &failed
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s%s", err, &said, &failed)
		}
		return said.Bytes()
	}
	program("run", "--arm", "drums", "-t", "trials=1", "-t", "windows=1", "-t", "window=1s", "-t", "rollouts=1", "-t", "watch=1s", "--out", out, manifest)
	var all bench.Densities
	if err := json.Unmarshal(program("show", "--density", "-o", "json", out), &all); err != nil || len(all.Densities) != 1 {
		t.Fatalf("%d densities, %v", len(all.Densities), err)
	}
	d := all.Densities[0]
	if len(d.Levels) != 3 || d.Slope.Value == nil || d.Slope.Levels != 3 || d.Slope.Few == nil {
		t.Errorf("levels %+v, slope %+v", d.Levels, d.Slope)
	}
	for _, l := range d.Levels { // a slot's own memory is not its neighbours'
		if l.PrivateDirty == nil || *l.PrivateDirty < 1<<20 || *l.PrivateDirty > 64<<20 || l.Pss == nil || l.Cpu == nil || *l.Cpu <= 0 || l.Engine == nil || *l.Engine < 1<<20 {
			t.Errorf("level %+v", l)
		}
	}
	if len(d.Windows) != 1 || d.Windows[0].Valid < 1 || !d.Windows[0].Short || d.PerHour.Value == "" || len(d.Costs) != 3 || d.Costs[0].Usd == "" || d.Costs[0].Label != "estimate" {
		t.Errorf("windows %+v, %+v, costs %+v", d.Windows, d.PerHour, d.Costs)
	}
	channels := []string{"abstract-socket", "file", "port", "shm", "sysv-shm"}
	if i := d.Isolation; i.Events == nil || *i.Events != 0 || i.Runs != 2 || i.Hours == "" || !slices.Equal(i.Channels, channels) {
		t.Errorf("isolation %+v", i)
	}
	var records []bench.Record
	if err := json.Unmarshal(program("show", "-o", "json", out), &records); err != nil || len(records) != 5 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	for _, r := range records {
		if r.Verdict != engine.RunPassed {
			t.Errorf("%s: %s: %s", r.Run, r.Verdict, r.Reason)
		}
		for _, name := range []string{density.ProbeBefore, density.ProbeAfter} {
			if h, err := density.Probe(r, name); err != nil || h == nil || h.Memcpy == "" || h.Fsync == "" || h.ForkExec == "" || h.PageFault == "" {
				t.Errorf("%s: %s: %+v, %v", r.Run, name, h, err)
			}
		}
	}
	site := filepath.Join(out, "site")
	program("report", "--out", site, out)
	page, err := os.ReadFile(filepath.Join(site, "index.html"))
	if err != nil || !strings.Contains(string(page), "Host memory against slots: drums restore") || !strings.Contains(string(page), "fired in each of 2 runs") {
		t.Errorf("the site does not show it: %v", err)
	}
}

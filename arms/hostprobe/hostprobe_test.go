package hostprobe

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/procfs"

	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func rule(t *testing.T) (r bench.QuietRule) {
	t.Helper()
	if err := compile.Table("quiet", &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// The real host can be probed; everything is known or says why not, and nothing is left.
func TestProbe(t *testing.T) {
	dir := t.TempDir()
	p := New(rule(t), dir)
	h := p.Probe(t.Context())
	for name, v := range map[string]bench.Int64{"memcpy": h.Memcpy, "pageFault": h.PageFault, "forkExec": h.ForkExec, "fsync": h.Fsync, "total": h.Total, "available": h.Available, "elapsed": h.Elapsed} {
		if n, err := strconv.ParseInt(string(v), 10, 64); err != nil || n <= 0 {
			t.Errorf("%s is %q: %s", name, v, h.Unknown[name])
		}
	}
	if h.Thp == "" && h.Unknown["thp"] == "" || h.Ksm == "" && h.Unknown["ksm"] == "" || h.Load == "" || h.Busy == "" {
		t.Errorf("%+v", h)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("it left %v, %v", entries, err)
	}
	text, err := canonical.JSON(h)
	if err == nil {
		err = compile.Validate("#HostProbe", text)
	}
	if err != nil {
		t.Error(err)
	}
	used, err := p.Used()
	total, _ := strconv.ParseInt(string(h.Total), 10, 64)
	if err != nil || used <= 0 || used >= total {
		t.Errorf("%d of %d used: %v", used, total, err)
	}
	if own, err := p.Own(); err != nil || own <= 0 {
		t.Errorf("own memory %d: %v", own, err)
	}
}

// Each part of the rule can fail, and what is not known is not quiet.
func TestNoise(t *testing.T) {
	p := New(rule(t), "")
	quiet := func() bench.HostProbe {
		return bench.HostProbe{Busy: "0.0500", Steal: "0.0000", Swapping: "0", Total: "1000", Available: "900", Pressure: map[string]string{"memory": "0.00"}}
	}
	if n := p.noise(quiet()); len(n) != 0 {
		t.Fatalf("a quiet host: %q", n)
	}
	for want, change := range map[string]func(*bench.HostProbe){
		"others used is 0.1501":              func(h *bench.HostProbe) { h.Busy = "0.1501" },
		"hypervisor gave to others is 0.03":  func(h *bench.HostProbe) { h.Steal = "0.03" },
		"pages swapped is 1":                 func(h *bench.HostProbe) { h.Swapping = "1" },
		"available is 0.0990":                func(h *bench.HostProbe) { h.Available = "99" },
		"pressure of memory is 1.01%":        func(h *bench.HostProbe) { h.Pressure["memory"] = "1.01" },
		"others used is not known":           func(h *bench.HostProbe) { h.Busy = "" },
		"pages swapped is not known: why":    func(h *bench.HostProbe) { h.Swapping, h.Unknown = "", map[string]string{"swapping": "why"} },
		"available memory is not known":      func(h *bench.HostProbe) { h.Total = "" },
		"pressure of memory is not known":    func(h *bench.HostProbe) { h.Pressure = nil },
		"to others is not known: it was not": func(h *bench.HostProbe) { h.Steal = "" },
	} {
		h := quiet()
		change(&h)
		if n := p.noise(h); len(n) != 1 || !strings.Contains(n[0], want) {
			t.Errorf("%q, want %q", n, want)
		}
	}
}

// Half of the time idle or waiting for a disk, a tenth of it stolen.
func TestShares(t *testing.T) {
	a := procfs.CPUStat{User: 10, Idle: 100, Iowait: 5}
	b := procfs.CPUStat{User: 13, System: 1, Steal: 1, Idle: 104, Iowait: 6}
	busy, steal, err := shares(a, b)
	if err != nil || busy != 0.5 || steal != 0.1 {
		t.Errorf("busy %v, steal %v, %v", busy, steal, err)
	}
	if _, _, err := shares(b, b); err == nil {
		t.Error("time that did not go on has shares")
	}
}

// A host whose files are not there is unknown in each, and the probe ends all the same.
func TestProbeOfNothing(t *testing.T) {
	p := Prober{rule: rule(t), dir: filepath.Join(t.TempDir(), "none"), proc: t.TempDir(), sys: t.TempDir()}
	h := p.Probe(t.Context())
	for _, name := range []string{"busy", "steal", "swapping", "total", "available", "load", "pressure.memory", "fsync", "thp"} {
		if h.Unknown[name] == "" {
			t.Errorf("%s is not unknown", name)
		}
	}
	if len(h.Noise) != 5 {
		t.Errorf("noise %q", h.Noise)
	}
	if _, err := p.Used(); err == nil {
		t.Error("no meminfo has memory")
	}
}

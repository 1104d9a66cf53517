package steps

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/arms/fake"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// host is a prober whose memory is what a test says, reading by reading; the last goes on.
type host struct {
	used   []int64
	reads  atomic.Int64
	probes atomic.Int64
	broken bool
}

func (h *host) Probe(context.Context) bench.HostProbe {
	h.probes.Add(1)
	return bench.HostProbe{Memcpy: "1", Noise: []string{"a test"}, Elapsed: "1"}
}

func (h *host) Used() (int64, error) {
	if h.broken {
		return 0, errors.New("no meminfo")
	}
	n := h.reads.Add(1) - 1
	return h.used[min(int(n), len(h.used)-1)], nil
}

func (h *host) Own() (int64, error) { return 7, nil }

// level runs a level of a sweep on the fake arm.
func level(t *testing.T, m bench.Manifest, reset string, slots int64, h engine.HostProber) ran {
	t.Helper()
	arm, err := fake.New(*m.Arms.Fake)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := compile.Workload(m)
	if err != nil {
		t.Fatal(err)
	}
	p, err := BlockOf(m, digest, reset, &bench.Part{Kind: PartLevel, Slots: slots})
	if err != nil {
		t.Fatal(err)
	}
	return executePlan(t, arm, m, p, 0, "", h)
}

func swept() bench.Manifest {
	m := workload()
	m.Experiment.Sweep = &bench.Sweep{Slots: []int64{1, 3}, Trials: 2, Settle: "1s", Samples: 3}
	return m
}

func decodeFact(t *testing.T, r bench.Record, name string, v any) {
	t.Helper()
	for _, f := range r.Facts {
		if f.Name == name && f.Known {
			if err := json.Unmarshal([]byte(f.Value), v); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("the record has no fact %s", name)
}

// All slots of a level are ready when the host is read, none is before and after,
// and nobody acts meanwhile.
func TestLevel(t *testing.T) {
	for _, reset := range []string{"restore", "cold"} {
		t.Run(reset, func(t *testing.T) {
			h := &host{used: []int64{100, 102, 101, 400, 404, 402, 110}}
			r := level(t, swept(), reset, 3, h)
			requirePassed(t, r)
			var before, after bench.HostMemory
			var l bench.Level
			decodeFact(t, r.record, "baseline-before/host-memory", &before)
			decodeFact(t, r.record, "density/level", &l)
			decodeFact(t, r.record, "baseline-after/host-memory", &after)
			if diff := cmp.Diff([]bench.HostMemory{{Used: "101", Low: "100", High: "102", Readings: 3}, {Used: "402", Low: "400", High: "404", Readings: 3}, {Used: "110", Low: "110", High: "110", Readings: 3}},
				[]bench.HostMemory{before, l.Host, after}); diff != "" {
				t.Error(diff)
			}
			if len(l.Slots) != 3 || l.Engine != "7" || h.probes.Load() != 2 {
				t.Errorf("level %+v, %d probes", l, h.probes.Load())
			}
			for i, s := range l.Slots {
				if string(s.Slot) != slotName(i) || s.Memory.PrivateDirty == "" || s.Memory.Processes == 0 || s.Cpu == "" {
					t.Errorf("slot %d: %+v", i, s)
				}
			}
			up := ancestors(r.plan, "density")
			for _, s := range []string{"r2/measure", "r3/measure", "r4/measure", "baseline-before"} {
				if !up[s] {
					t.Errorf("density does not wait for %s", s)
				}
			}
			first, base := "base/provision", ancestors(r.plan, "baseline-after")
			if reset == "cold" {
				first = "r0/provision"
			}
			if !ancestors(r.plan, first)["baseline-before"] {
				t.Errorf("%s does not wait for the baseline", first)
			}
			for k := range 3 {
				if s := "release/" + slotName(k); !base[s] {
					t.Errorf("the baseline after does not wait for %s", s)
				}
			}
			for _, s := range []string{"r2/evaluate-before", "r3/act", "r4/inspect"} {
				if !ancestors(r.plan, s)["density"] {
					t.Errorf("%s does not wait for density", s)
				}
			}
			if ancestors(r.plan, "gate-cleanup")["baseline-after"] != true {
				t.Error("the clean-up gate does not come last")
			}
		})
	}
}

// A level says nothing where the host or one of its slots cannot be read.
func TestLevelUnknown(t *testing.T) {
	m := swept()
	for name, c := range map[string]struct {
		fault string
		host  engine.HostProber
		want  string
	}{
		"no means": {"", nil, "no means"},
		"no host":  {"", &host{broken: true}, "no meminfo"},
		"a slot":   {"unknown-memory@6", &host{used: []int64{1}}, "memory"}, // base, two controls, three slots
	} {
		t.Run(name, func(t *testing.T) {
			m.Arms.Fake.Faults = []string{}
			if c.fault != "" {
				m.Arms.Fake.Faults = []string{c.fault}
			}
			r := level(t, m, "restore", 3, c.host)
			if r.record.Verdict == engine.RunPassed {
				t.Fatal("it passed")
			}
			if !strings.Contains(r.record.Reason, c.want) {
				t.Errorf("reason %q, want %q in it", r.record.Reason, c.want)
			}
			for _, f := range r.record.Facts {
				if f.Name == "density/level" {
					t.Errorf("it has %+v", f)
				}
			}
		})
	}
}

// A part that the experiment does not have is no plan, and a sustained run is the ordinary plan.
func TestParts(t *testing.T) {
	m := workload()
	for _, kind := range []string{PartLevel, PartSustain, "other"} {
		if _, err := BlockOf(m, "", "restore", &bench.Part{Kind: kind, Slots: 2}); !errors.Is(err, engine.ErrUsage) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	m.Experiment.Sustain = &bench.Sustain{Slots: 2, Duration: "1s", Windows: 1}
	a, err := BlockOf(m, "", "restore", &bench.Part{Kind: PartSustain, Slots: 2})
	if err != nil {
		t.Fatal(err)
	}
	m.Experiment.Slots, m.Experiment.Pool, m.Experiment.Warmup = 2, 0, 0
	b, err := Block(m, "", "restore")
	if err != nil || a.Digest() != b.Digest() {
		t.Errorf("digests %s and %s: %v", a.Digest(), b.Digest(), err)
	}
}

// An ordinary run is no part, and a part that does not say how many slots it had is unknown.
func TestPartOf(t *testing.T) {
	fact := func(name, value string) bench.Fact {
		return bench.Fact{Name: "experiment." + name, Known: true, Value: value}
	}
	if p, err := record.PartOf(bench.Record{Facts: []bench.Fact{fact("block", "1")}}); p != nil || err != nil {
		t.Error(p, err)
	}
	if _, err := record.PartOf(bench.Record{Facts: []bench.Fact{fact("part", "level")}}); !errors.Is(err, engine.ErrUnknown) {
		t.Error(err)
	}
	p, err := record.PartOf(bench.Record{Facts: []bench.Fact{fact("part", "sustain"), fact("block", "1"), fact("slots", "4"), fact("run", "3")}})
	if diff := cmp.Diff(&bench.Part{Kind: "sustain", Slots: 4, Series: 1, Run: 3}, p); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

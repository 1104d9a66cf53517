package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// v2Files are what each bound of a slot has to be read from.
var v2Files = []string{"cpu.max", "memory.max", "memory.swap.max", "pids.max"}

// lacksV2 is what a run of the manifest light does not show of a host whose only hierarchy is v2: that it is one,
// and for as many slots at least, what v2's own files bounded them to.
func lacksV2(host bench.HostFacts, receipts []bench.Receipt, slots int) (lacks []string) {
	lack := func(format string, args ...any) { lacks = append(lacks, fmt.Sprintf(format, args...)) }
	if !slices.ContainsFunc(host.Facts, func(f bench.Fact) bool { return f.Name == "cgroup-mode" && f.Known && f.Value == "unified" }) {
		lack("no host fact says that cgroups are unified")
	}
	for _, r := range receipts {
		for _, f := range r.Facts {
			if f.Name != "limits" {
				continue
			}
			slots--
			var have struct{ VCPUs, Memory, Swap, Pids, Tasks float64 }
			err := json.Unmarshal([]byte(f.Value), &have)
			if err != nil || !f.Known || have.VCPUs != 1 || have.Memory != 256<<20 || have.Swap != 0 || have.Pids != 64 || have.Tasks < 1 {
				lack("%s: limits %q are not the manifest's", r.Step, f.Value)
			}
			for _, file := range v2Files {
				if !slices.Contains(strings.FieldsFunc(f.Source, func(r rune) bool { return r == ',' || r == ' ' || r == ';' }), file) {
					lack("%s: limits were read from %q, not from %s", r.Step, f.Source, file)
				}
			}
		}
	}
	if slots > 0 {
		lack("for %d slots no limits were read back", slots)
	}
	return lacks
}

// A record that shows less is found out.
func TestLacksV2(t *testing.T) {
	host := func(mode string) bench.HostFacts {
		return bench.HostFacts{Facts: []bench.Fact{{Name: "cgroup-mode", Known: mode != "", Value: mode}}}
	}
	limits := func(value, source string) bench.Receipt {
		return bench.Receipt{Step: "gate-limits", Facts: []bench.Fact{{Name: "limits", Known: true, Value: value, Source: source}}}
	}
	const (
		value  = `{"memory":268435456,"pids":64,"swap":0,"tasks":2,"vcpus":1}`
		source = "cpu.max, memory.max, memory.swap.max, pids.max of the groups above and of those with /sys/fs/cgroup/g; /proc/PID/cgroup"
	)
	good := limits(value, source)
	for _, c := range []struct {
		name     string
		host     bench.HostFacts
		receipts []bench.Receipt
		want     string
	}{
		{"all of it", host("unified"), []bench.Receipt{good, good}, ""},
		{"hybrid", host("hybrid"), []bench.Receipt{good, good}, "unified"},
		{"an unknown mode", host(""), []bench.Receipt{good, good}, "unified"},
		{"a slot without", host("unified"), []bench.Receipt{good}, "for 1 slots"},
		{"another bound", host("unified"), []bench.Receipt{good, limits(strings.Replace(value, "64", "65", 1), source)}, "not the manifest's"},
		{"no tasks", host("unified"), []bench.Receipt{good, limits(strings.Replace(value, `"tasks":2`, `"tasks":0`, 1), source)}, "not the manifest's"},
		{"no text", host("unified"), []bench.Receipt{good, limits("", source)}, "not the manifest's"},
		{"v1's swap", host("unified"), []bench.Receipt{good, limits(value, strings.Replace(source, "memory.swap.max, ", "", 1))}, "not from memory.swap.max"},
	} {
		lacks := lacksV2(c.host, c.receipts, 2)
		if c.want == "" && lacks != nil || c.want != "" && (len(lacks) != 1 || !strings.Contains(lacks[0], c.want)) {
			t.Errorf("%s: %q, want %q", c.name, lacks, c.want)
		}
	}
}

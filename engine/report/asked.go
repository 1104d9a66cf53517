package report

import (
	"fmt"
	"strings"

	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/density"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// asked are the metrics that people ask of such a page, with what each takes before
// it is a number, and where it is measured: in how many records, or in how many of
// the arms' densities. One that no record has is there all the same, and says so.
var asked = []struct {
	title, unit, takes string
	// metrics of a run by their names; one that ends with . stands for all that begin so.
	metrics []string
	// density says whether a density has it.
	density func(bench.Density) bool
	// record says whether a record of any verdict has it.
	record func(*Run) bool
}{
	{title: "Cold start, restore and reset latency", unit: "time, p50 and p95", takes: "a run that passed: locks, network, files, processes and limits judged on the stopped tree of every reset", metrics: []string{"mechanism", "answer", "ready", "usable", "span."}},
	{title: "Dump latency", unit: "time", takes: "a checkpoint that was found complete", metrics: []string{"dump", "dump.branch"}},
	{title: "Reset correctness", unit: "state matches out of resets", takes: "the state manifest of a slot compared with the checkpoint's after every reset", record: func(r *Run) bool { return r.Sound() && r.attempts().resets > 0 }},
	{title: "Memory of an environment", unit: "MiB private dirty and proportional", takes: "smaps_rollup of every process of the slot, never sums of resident sizes; of a machine, its process", metrics: []string{"private-dirty", "pss"}},
	{title: "Harness beside an environment", unit: "memory and processor time", takes: "the engine's own processes apart from the slot's", metrics: []string{"harness", "harness-cpu"}},
	{title: "Host memory of one more environment", unit: "MiB, slope with its interval", takes: "three levels or more, in four trials or more, between two baselines without a slot", density: func(d bench.Density) bool { return d.Slope.Value != nil }},
	{title: "Processor time of an environment", unit: "s", takes: "the slot's control group, or the machine's process, while all slots rest", density: func(d bench.Density) bool {
		for _, l := range d.Levels {
			if l.Cpu != nil {
				return true
			}
		}
		return false
	}},
	{title: "Storage of an environment", unit: "MiB", takes: "blocks on the host's disk: image, checkpoint, and the slot's own layer after its act", metrics: []string{"stored"}},
	{title: "Stable N", unit: "environments", takes: "the largest number that passed every gate in two separate windows, as every smaller one did", density: func(d bench.Density) bool { return d.Stable.N != nil }},
	{title: "Valid verified rollouts an hour", unit: "rollouts per host-hour", takes: "whole windows, all of their time and all of their failures; below ten minutes each is marked as short", density: func(d bench.Density) bool { return d.PerHour.Value != "" }},
	{title: "Cost of a valid verified rollout", unit: "USD", takes: "three dated prices, inference said to be in or out; everything that was paid for above, only valid rollouts below; an estimate until a receipt is attached", density: func(d bench.Density) bool { return len(d.Costs) > 0 }},
	{title: "Isolation", unit: "contamination events over environment-hours", takes: "a deliberate leak that was caught in the same run, in every channel that is watched", density: func(d bench.Density) bool { return d.Isolation.Events != nil }},
	{title: "Failure rates", unit: "environment failures and lost checks out of attempts", takes: "every attempt of every sound record, each failed reset and time-out on a line of its own", record: func(r *Run) bool { return r.Sound() && r.attempts().begun > 0 }},
	{title: "Footprint of an arm", unit: "programs, packages, MiB, privileges", takes: "the host's package database and the capabilities of the engine's process", record: func(r *Run) bool { f, err := density.FootprintOf(r.Record); return err == nil && f != nil }},
	{title: "Learning curve, and cost to a fixed success rate", unit: "success rate against rollouts and USD", takes: "training with the same model and the same rewards on each arm, which no run of this program does"},
}

// askedSection says of each metric what it takes and how often it is here.
func askedSection(runs []*Run) (*Section, error) {
	all, err := densities(runs)
	if err != nil {
		return nil, err
	}
	t := Table{Name: "asked", Short: "what each takes", Caption: "What each metric takes, and how many records have it", Head: heads("Metric", "Unit", "What it takes", "Measured")}
	for _, a := range asked {
		n, of := 0, "record"
		switch {
		case a.density != nil:
			of = "arm and reset"
			for _, d := range all.Densities {
				if a.density(d) {
					n++
				}
			}
		case a.record != nil:
			for _, r := range runs {
				if a.record(r) {
					n++
				}
			}
		default:
			for _, r := range runs {
				if hasMetric(r, a.metrics) {
					n++
				}
			}
		}
		measured := "not measured"
		if n > 0 {
			measured = fmt.Sprintf("in %d %s", n, of)
			if n > 1 {
				measured = strings.Replace(measured+"s", "arm and resets", "arms and resets", 1)
			}
		}
		t.Rows = append(t.Rows, []Cell{text(a.title), text(a.unit), text(a.takes), text(measured)})
	}
	return &Section{ID: "asked", Title: "What each metric takes", Tables: []Table{t}}, nil
}

func hasMetric(r *Run, names []string) bool {
	for _, m := range r.Metrics() {
		for _, n := range names {
			if m.Name == n || strings.HasSuffix(n, ".") && strings.HasPrefix(m.Name, n) {
				return true
			}
		}
	}
	return false
}

// comparisonKinds are the kinds of comparisons, with what they are for.
var comparisonKinds = []struct {
	kind, what string
	rule       func(bench.SamenessRules) bench.SamenessRule
}{
	{"arm", "two mechanisms, one workload", func(r bench.SamenessRules) bench.SamenessRule { return r.Arm }},
	{"reset", "restore and cold, one arm", func(r bench.SamenessRules) bench.SamenessRule { return r.Reset }},
	{"branch", "what a checkpoint holds of the task", func(r bench.SamenessRules) bench.SamenessRule { return r.Branch }},
	{"setting", "two settings of one arm", func(r bench.SamenessRules) bench.SamenessRule { return r.Setting }},
	{"slots", "two numbers of slots", func(r bench.SamenessRules) bench.SamenessRule { return r.Slots }},
	{"repeat", "the same once more", func(r bench.SamenessRules) bench.SamenessRule { return r.Repeat }},
}

// samenessSection is the rule by which two sides are compared or refused, from the schema.
func samenessSection(runs []*Run) (*Section, error) {
	if len(runs) == 0 {
		return nil, nil
	}
	s, err := compare.Sameness()
	if err != nil {
		return nil, err
	}
	head := []string{"Fact"}
	var kinds []string
	for _, k := range comparisonKinds {
		head = append(head, k.kind)
		kinds = append(kinds, k.kind+": "+k.what)
	}
	t := Table{Name: "sameness", Short: "facts", Caption: "What is asked of each fact of two sides, by what they differ in", Head: heads(head...)}
	for _, f := range s.Facts {
		row := []Cell{text(f.Title)}
		for _, k := range comparisonKinds {
			row = append(row, text(string(k.rule(f.Rules))))
		}
		t.Rows = append(t.Rows, row)
	}
	return &Section{ID: "sameness", Title: "What has to be equal", Tables: []Table{t},
		Text:  []string{"Arms are given the same image, task, checker and limits, the limits read back from the kernel or the hypervisor, and each starts from its checkpoint. A fact that is unknown on a side refuses the comparison, whatever the rule; what cannot be equal is declared, and travels with every number."},
		Notes: []string{"equal: known and the same on both sides; declared: known, and what differs is printed beside the result; compiled: on each side what the engine compiles from that side's manifest", strings.Join(kinds, "; ")}}, nil
}

// armKinds say what the mechanisms are.
var armKinds = map[string]string{
	"drums": "namespaces, overlayfs and CRIU, called directly",
	"oci":   "an OCI container under runc, which has CRIU do the work",
	"qemu":  "a virtual machine under QEMU and its snapshots",
	"fake":  "a model in memory, for tests: none of its times mean anything",
}

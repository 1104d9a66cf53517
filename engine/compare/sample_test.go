package compare

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const noDigest = bench.SHA256("0000000000000000000000000000000000000000000000000000000000000000")

// digestOf some words.
func digestOf(words ...any) bench.SHA256 { return canonical.Sum([]byte(fmt.Sprint(words...))) }

// compiler stands for the engine's: a digest of the reset and of what decides a plan.
func compiler(m bench.Manifest, reset string) (bench.SHA256, error) {
	w, err := compile.Workload(m)
	return digestOf(w, reset, m.Experiment.Slots, m.Experiment.Rollouts), err
}

var program = digestOf("this program")

var options = Options{Compile: compiler, Program: program}

// sample is a run of an arm that passed, with all that a comparison asks for. Its
// clocks are around base milliseconds.
func sample(t testing.TB, arm, reset string, base int) Run {
	t.Helper()
	m := bench.Manifest{
		ApiVersion: engine.APIVersion, Name: "sample", Network: "none",
		Image:     bench.Image{File: "a.qcow2", Sha256: noDigest},
		Guest:     bench.Guest{User: "root", Home: "/root", Services: []bench.Service{}, Server: bench.Server{Port: 5000, Sha256: noDigest, Exec: []string{"/usr/local/bin/guestd"}}},
		Resources: bench.Resources{Vcpus: 1, Memory: "1GiB", Swap: "0", Pids: 10},
		Task:      bench.Task{Id: "task", Setup: []bench.Command{}, Oracle: []bench.Command{}},
		Checker:   bench.Checker{Exec: []string{"/bin/true"}, Timeout: "1s"}, Canary: bench.Canary{File: "/c"},
		Readiness: bench.Readiness{Server: true, Windows: []bench.Window{}, Probes: []bench.Command{}, Period: "1ms", Deadline: "1s"},
		Arms:      bench.Arms{Fake: &bench.FakeSettings{Faults: []string{}}},
		Experiment: bench.Experiment{Reset: []string{"restore", "cold"}, Rollouts: 8, Warmup: 1, Seed: 7,
			Blocks: 2, Order: "abba", Reuse: "post_setup", Slots: 1},
	}
	m.Checker.Failure.Exit = 1
	workload, err := compile.Workload(m)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := compiler(m, reset)
	if err != nil {
		t.Fatal(err)
	}
	fact := func(name, value string) bench.Fact {
		return bench.Fact{Name: name, Known: true, Value: value, Source: "source of " + name, View: engine.ViewHost}
	}
	r := Run{Manifest: m, Plan: bench.Plan{ApiVersion: engine.APIVersion, Workload: workload, Reset: reset}, Steps: map[string]bench.Receipt{}}
	r.Record = bench.Record{
		ApiVersion: engine.APIVersion, Run: "runs/" + arm + "-" + reset, Manifest: "sample", Arm: arm, Reset: reset, Verdict: engine.RunPassed,
		Started: "2026-11-30T01:00:00Z", Ended: "2026-11-30T01:01:00Z",
		Engine:   bench.EngineVersion{Version: "(devel)", Sha256: program, Go: "go1", Schema: engine.APIVersion},
		Digests:  map[string]bench.SHA256{"workload": workload, "plan": plan, "events": digestOf(arm, reset, base)},
		Settings: map[string]string{"of": arm}, Tags: map[string]string{},
		Facts: []bench.Fact{
			fact("host-id", "h"), fact("machine", "x86_64"), fact("kernel-release", "6"), fact("kernel-version", "#1"), fact("cpu-model", "c"),
			fact("cpu-features", "f"), fact("cpus", "2"), fact("memory-bytes", "9"), fact("swap-bytes", "0"), fact("cgroup-mode", "hybrid"),
			fact("transparent-hugepages", "madvise"), fact("ksm", "0"), fact("clock-source", "tsc"), fact("page-cache", "kept"), fact("boot-id", "b"),
			fact("accelerator", engine.Native), fact("criu.sha256", "s"), fact("criu.version", "4"), fact("runc.sha256", "s"), fact("runc.version", "1"),
			fact("qemu.sha256", "s"), fact("qemu.version", "9"),
		},
		Differences: []bench.Difference{{Name: "both", Text: "of both"}, {Name: "own", Text: "of " + arm}},
		Steps:       []bench.StepOutcome{}, Rollouts: []bench.Rollout{},
	}
	step := func(id, kind, params string, facts ...bench.Fact) {
		r.Plan.Steps = append(r.Plan.Steps, bench.Step{Id: id, Kind: kind, Params: params, Needs: []bench.Edge{}, Deadline: "1s"})
		r.Steps[id] = bench.Receipt{Seq: int64(len(r.Steps)), Prev: noDigest, Time: "2026-11-30T01:00:00Z", Event: "step", Step: id, Kind: kind, Verdict: engine.Pass, Facts: facts}
	}
	step("mount", "mount", "{}", fact("image.sha256", string(noDigest)))
	for i := range 11 {
		step(fmt.Sprintf("r%d/gate-limits", i), "gate", `{"gate":"limits"}`, fact("limits", fmt.Sprintf(`{"memory":1073741824,"pids":10,"swap":0,"tasks":%d,"vcpus":1,"capabilities":"CAP_CHOWN","devices":"c 1:3 rwm"}`, i)))
		step(fmt.Sprintf("r%d/gate-state", i), "gate", `{"gate":"state"}`)
		step(fmt.Sprintf("r%d/inspect", i), "inspect", "{}", fact("guest-server-sha256", "g"), fact("os-release", "o"), fact("kernel-release", "6"),
			fact("machine", "x86_64"), fact("packages", "p"), fact("display", "none"))
		o := bench.Rollout{Index: int64(i), Slot: "slot-0", Class: record.Success}
		zero, one := 0.0, 1.0
		o.Before, o.After = &zero, &one
		ms := base + i
		switch i {
		case 0:
			o.Control, o.Class, o.After, ms = "none", record.FailedValid, &zero, 1e6
		case 1:
			o.Control, ms = "oracle", 1e6
		case 2:
			o.Warmup, ms = true, 1e6
		}
		at := func(add int) bench.Int64 { return bench.Int64(strconv.Itoa((ms + add) * 1e6)) }
		o.Clocks = &bench.Clocks{Mechanism: at(0), Answer: at(1), Ready: at(2), Usable: at(3)}
		o.Spans = map[string]bench.Int64{"kill": "1000000", arm: "2000000"}
		o.Memory = &bench.Memory{PrivateDirty: bench.Int64(strconv.Itoa((base + i) << 20)), Pss: "5", Processes: 2, Harness: "0"}
		r.Record.Rollouts = append(r.Record.Rollouts, o)
	}
	r.Dir = "/" + r.Record.Run
	return r
}

// write puts a run into a directory, as far as Load reads one.
func write(t testing.TB, r Run) string {
	t.Helper()
	dir := t.TempDir()
	put := func(name string, v any) {
		data, err := json.Marshal(v)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put(record.RecordFile, r.Record)
	put(record.ManifestFile, r.Manifest)
	put(record.PlanFile, r.Plan)
	var lines strings.Builder
	for _, s := range r.Plan.Steps {
		receipt, ran := r.Steps[s.Id]
		if !ran {
			continue
		}
		data, err := json.Marshal(receipt)
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(append(data, '\n'))
	}
	if err := os.WriteFile(filepath.Join(dir, record.EventsFile), []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// compareTwo is the one comparison of two runs.
func compareTwo(t testing.TB, a, b Run) bench.Comparison {
	t.Helper()
	result, err := Compare([]Run{a, b}, options)
	if err != nil || len(result.Comparisons) != 1 {
		t.Fatalf("%+v, %v", result, err)
	}
	one := result.Comparisons[0]
	form := map[string]bool{fmt.Sprint(one.Kind, one.Verdict, one.Differ, len(one.Metrics) > 0): true}
	for _, r := range one.Refusals {
		form[fmt.Sprint(r.Cause, r.Learn != "")] = true
	}
	for _, f := range one.Facts {
		form[fmt.Sprint(f.Rule, f.Status, f.Refuses, f.A.Known, f.B.Known, f.Learn != "")] = true
	}
	if key := fmt.Sprint(slices.Sorted(maps.Keys(form))); !legal[key] { // one of each form, since it takes the longest
		legal[key] = true
		data, err := canonical.JSON(result)
		if err == nil {
			err = compile.Validate("Comparisons", data)
		}
		if err != nil {
			t.Fatalf("the comparison is none by the schema: %v\n%s", err, data)
		}
	}
	return one
}

// legal are the forms of comparisons that the schema was asked about.
var legal = map[string]bool{}

// another is the run once more: a later block, which shares no memory with it.
func another(r Run) (b Run) {
	data, err := json.Marshal(r)
	if err == nil {
		err = json.Unmarshal(data, &b)
	}
	if err != nil {
		panic(err)
	}
	b.Record.Run += "-1"
	b.Dir += "-1"
	b.Record.Digests["events"] = digestOf(b.Record.Digests["events"], "again")
	return b
}

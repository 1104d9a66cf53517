// Package recordtest makes directories of runs for tests of whatever reads them.
//
// Always holds: a run is executed by the real executor and its record is made by
// package record, so that its directory is sound; only the steps do nothing.
package recordtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Program is the digest that the runs name as their engine's.
var Program = bench.SHA256(strings.Repeat("0", 64))

// Run says what a run is to be like. The zero value is one measured rollout that passes.
type Run struct {
	// Name of the run, Arm and Reset; run/one, fake and restore where empty.
	Name, Arm, Reset, Manifest string
	// Rollouts that are measured, warm-ups, and whether the two controls come first.
	Rollouts, Warmups int
	Controls          bool
	// Gate that ends with Verdict in each rollout, with these findings: locks, mounts, state, live, canary.
	Gate     string
	Verdict  bench.Verdict
	Findings []bench.Finding
	// Evidence that the gate live leaves, by name.
	Evidence map[string][]byte
	// Tools has dumps and restores tell what a tool says of itself.
	Tools bool
	// Pictures before and after each act.
	Pictures bool
	// Facts of the host, and declared differences.
	Facts       []bench.Fact
	Differences []bench.Difference
	Settings    map[string]string
	// Bars of the manifest, the resets of its experiment (Reset alone where empty), and its blocks.
	Bars   []bench.Bar
	Resets []string
	Blocks int
	// Registration that the run belongs to, as the bytes of its file.
	Registration []byte
}

// Engine is the program that the runs name as theirs.
var Engine = bench.EngineVersion{Version: "v", Sha256: Program, Go: "go", Schema: engine.APIVersion}

// filled is o with what it leaves out.
func (o Run) filled() Run {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&o.Name, "run/one")
	def(&o.Arm, "fake")
	def(&o.Reset, "restore")
	def(&o.Manifest, "whole")
	o.Rollouts, o.Blocks = max(o.Rollouts, 1), max(o.Blocks, 1)
	if len(o.Resets) == 0 {
		o.Resets = []string{o.Reset}
	}
	return o
}

// Plans is the manifest that the run is of.
func (o Run) Plans() bench.Manifest {
	o = o.filled()
	m := bench.Manifest{
		ApiVersion: engine.APIVersion, Name: bench.Name(o.Manifest), Network: "none",
		Image:     bench.Image{File: "a.qcow2", Sha256: Program},
		Guest:     bench.Guest{User: "root", Home: "/root", Services: []bench.Service{}, Server: bench.Server{Port: 5000, Sha256: Program, Exec: []string{"/usr/local/bin/guestd"}}},
		Resources: bench.Resources{Vcpus: 1, Memory: "1GiB", Swap: "0", Pids: 10},
		Task:      bench.Task{Id: "task", Instruction: "Rename the folder.", Setup: []bench.Command{}, Oracle: []bench.Command{}},
		Checker:   bench.Checker{Exec: []string{"/bin/true"}, Timeout: "1s"}, Canary: bench.Canary{File: "/c"},
		Readiness:  bench.Readiness{Server: true, Windows: []bench.Window{}, Probes: []bench.Command{}, Period: "1ms", Deadline: "1s"},
		Arms:       bench.Arms{Fake: &bench.FakeSettings{Faults: []string{}}},
		Experiment: bench.Experiment{Reset: o.Resets, Rollouts: int64(o.Rollouts), Warmup: int64(o.Warmups), Blocks: int64(o.Blocks), Order: "abba", Reuse: "post_setup", Slots: 1, Bars: o.Bars},
	}
	m.Checker.Failure.Exit = 1
	return m
}

// Make executes a run in dir, which must be empty, and returns its record.
func (o Run) Make(t testing.TB, dir string) bench.Record {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	o = o.filled()
	m := o.Plans()
	workload, err := compile.Workload(m)
	must(err)
	d, err := record.Create(dir)
	must(err)
	defer func() { must(d.Close()) }()
	p, err := o.plan().Build(workload, o.Reset)
	must(err)
	manifest, err := d.WriteManifest(m)
	must(err)
	facts := append([]bench.Fact{{Name: "kernel-release", Known: true, Value: "6.1", Source: "uname(2)"}, {Name: "cpus", Known: true, Value: "2", Source: "sched_getaffinity(2)"},
		{Name: "nbd", Reason: "the device is not there"}}, o.Facts...)
	host, err := d.WriteHost(bench.HostFacts{ApiVersion: engine.APIVersion, Facts: facts})
	must(err)
	must(d.WritePlan(p))
	id, err := d.Ledger.Intend("cgroup", bench.Claim{Path: "/cg"})
	must(errors.Join(err, d.Ledger.Bind(id, bench.Identity{Dev: "1", Ino: "2"}), d.Ledger.Gone(id)))
	digests := map[string]bench.SHA256{"host": host, "manifest": manifest}
	if o.Registration != nil {
		digests["registration"], err = d.WriteRegistration(o.Registration)
		must(err)
	}
	e := engine.Executor{
		Plan: p, Bindings: o.bindings(), Sink: d.Events, Workspace: &engine.Workspace{Evidence: d.Evidence, Ledger: d.Ledger},
		Digests: digests,
	}
	_, err = e.Run(context.Background())
	must(err)
	r, err := record.Build(d.Path, record.Header{Run: o.Name, Arm: o.Arm, Settings: o.Settings, Differences: o.Differences,
		Engine: Engine})
	must(err)
	_, err = d.WriteRecord(r)
	must(err)
	return r
}

// kinds of the steps of a rollout.
var kinds = []string{"mount", "dump", "restore", "provision", "gate", "resume", "readiness", "reseed", "measure", "evaluate", "act", "release"}

func (o Run) plan() *engine.Builder {
	b := engine.NewBuilder()
	add := func(after []engine.Input, s engine.StepSpec) engine.Promise[int] {
		s.Deadline = time.Minute
		return engine.Add[int](b, s, after...)
	}
	last := add(nil, engine.StepSpec{ID: "mount", Kind: "mount"})
	if o.Reset == "restore" {
		last = add([]engine.Input{engine.After(last)}, engine.StepSpec{ID: "base/dump", Kind: "dump"})
	}
	first := map[string]string{"restore": "restore", "cold": "provision"}[o.Reset]
	controls := 0
	if o.Controls {
		controls = 2
	}
	for i := int64(0); i < int64(controls+o.Warmups+o.Rollouts); i++ {
		step := func(kind, id string, params any, after ...engine.Promise[int]) engine.Promise[int] {
			s := engine.StepSpec{ID: fmt.Sprintf("r%d/%s", i, id), Kind: kind, Params: params, Rollout: &i, Slot: "slot-0"}
			switch {
			case i < int64(controls):
				s.Control = []string{"none", "oracle"}[i]
			case i < int64(controls+o.Warmups):
				s.Warmup = true
			}
			inputs := make([]engine.Input, len(after))
			for k, a := range after {
				inputs[k] = engine.After(a)
			}
			return add(inputs, s)
		}
		start := step(first, first, nil, last)
		locks := step("gate", "gate-locks", bench.GateParams{Gate: "locks"}, start)
		mounts := step("gate", "gate-mounts", bench.GateParams{Gate: "mounts"}, start)
		judged := []engine.Promise[int]{locks, mounts}
		if o.Reset == "restore" {
			judged = append(judged, step("gate", "gate-state", bench.GateParams{Gate: "state"}, start))
		}
		resume := step("resume", "resume", nil, judged...)
		ready := step("readiness", "readiness", nil, resume)
		live := step("gate", "gate-live", bench.GateParams{Gate: "live"}, ready)
		reseed := step("reseed", "reseed", nil, live)
		measure := step("measure", "measure", nil, reseed)
		before := step("evaluate", "evaluate-before", bench.EvaluateParams{When: "before"}, measure)
		act := step("act", "act", nil, before)
		after := step("evaluate", "evaluate-after", bench.EvaluateParams{When: "after"}, act)
		last = step("gate", "gate-canary", bench.GateParams{Gate: "canary"}, after)
	}
	add([]engine.Input{engine.After(last)}, engine.StepSpec{ID: "release", Kind: "release", Release: true})
	return b
}

func (o Run) bindings() engine.Bindings {
	bindings := engine.Bindings{}
	for _, kind := range kinds {
		bindings.Add(engine.Bind(kind, func(ctx context.Context, x *engine.Exec, p map[string]any) (int, error) {
			fact := func(name string, value any) {
				x.Fact(bench.Fact{Name: name, Known: true, Value: fmt.Sprint(value), Source: "a test"})
			}
			switch kind {
			case "restore", "provision":
				stop := engine.StartSpan(ctx, "criu")
				time.Sleep(time.Millisecond)
				stop()
			case "dump", "resume":
				if own := map[string]map[string]int{"dump": {"criu.frozen-ns": 5e6}, "resume": {"criu.restore-ns": 4e6, "criu.pages-restored": 200}}[kind]; o.Tools {
					for _, name := range slices.Sorted(maps.Keys(own)) {
						fact("tool."+name, own[name])
					}
				}
			case "readiness":
				fact("first_answer_ns", x.SinceStart(time.Now()).Nanoseconds())
				time.Sleep(time.Millisecond)
			case "measure":
				fact("memory.private_dirty", 9<<20)
				fact("memory.pss", 10<<20)
				fact("memory.harness", 1<<20)
				fact("memory.processes", 3)
			case "evaluate":
				score := "1"
				if p["when"] == "before" || x.Step().Control == "none" {
					score = "0"
				}
				fact("score", score)
				if o.Pictures {
					return 0, x.Evidence(fmt.Sprintf("screen-%v.png", p["when"]), picture(p["when"] == "after"))
				}
			case "gate":
				if p["gate"] == "live" {
					for name, data := range o.Evidence {
						if err := x.Evidence(name, data); err != nil {
							return 0, err
						}
					}
				}
				if p["gate"] == o.Gate {
					var j engine.Judgement
					j.Findings = o.Findings
					if len(j.Findings) == 0 {
						j.Add(o.Verdict, "planted", "a fault of a test")
					}
					x.Judge(j)
				}
			}
			return 0, nil
		}))
	}
	return bindings
}

// picture is a screen; another after the act.
func picture(after bool) []byte {
	m := image.NewRGBA(image.Rect(0, 0, 64, 48))
	for x := range 64 {
		for y := range 48 {
			m.Set(x, y, color.RGBA{uint8(4 * x), uint8(5 * y), 120, 255})
			if after && x > 20 && x < 40 {
				m.Set(x, y, color.White)
			}
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		panic(err) // a picture in memory can be written
	}
	return b.Bytes()
}

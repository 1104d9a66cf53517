//go:build linux && !elsewhere

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/irregulartest"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func measured(index int64, ready, usable, dirty string) bench.Rollout {
	zero, one := 0.0, 1.0
	return bench.Rollout{
		Index: index, Class: record.Success, Before: &zero, After: &one,
		Clocks: &bench.Clocks{Mechanism: "1000000", Answer: "2000000", Ready: bench.Int64(ready + "000000"), Usable: bench.Int64(usable + "000000")},
		Memory: &bench.Memory{PrivateDirty: bench.Int64(dirty), Pss: "1", Processes: 1, Harness: "0"},
	}
}

func recordOf(run, reset string, verdict bench.RunVerdict, rollouts ...bench.Rollout) bench.Record {
	return bench.Record{
		Run: run, Arm: "drums", Reset: reset, Verdict: verdict, Settings: map[string]string{"locks": "repair"}, Digests: map[string]bench.SHA256{"workload": "w"},
		Steps:    []bench.StepOutcome{{Step: "g", Kind: "gate", Verdict: engine.Pass}, {Step: "h", Kind: "gate", Verdict: engine.NotRun}, {Step: "x", Kind: "restore", Verdict: engine.Pass}},
		Rollouts: rollouts,
	}
}

// printed is what the command prints, without the spaces that line columns up.
func printed(t *testing.T, records ...bench.Record) string {
	t.Helper()
	return printedBeside(t, "", records...)
}

// printedBeside is the same where why keeps runs from standing beside each other.
func printedBeside(t *testing.T, why string, records ...bench.Record) string {
	t.Helper()
	var out bytes.Buffer
	var runs []shownRun
	for _, r := range records {
		runs = append(runs, shownRun{record: r, state: verified{State: runSound}})
	}
	if err := printRuns(&globals{Output: "plain", Stdout: &out}, runs, false, func(int, int) (string, error) { return why, nil }); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func TestShow(t *testing.T) {
	zero, one := 0.0, 1.0
	far := measured(0, "9000", "9000", "900000000")
	nobody, oracle, warm := far, far, far
	nobody.Control, nobody.After, nobody.Class = "none", &zero, record.FailedValid
	oracle.Control, oracle.After = "oracle", &one
	warm.Warmup = true
	restore := recordOf("a/drums-restore", "restore", engine.RunPassed, nobody, oracle, warm,
		measured(3, "20", "30", "1048576"), measured(4, "22", "34", "3145728"), measured(5, "24", "38", "2097152"))
	restore.Rollouts[4].Spans = map[string]bench.Int64{"repair": "5000000"}
	restore.Rollouts[5].Memory.Harness = "524288"
	cold := recordOf("a/drums-cold", "cold", engine.RunPassed, nobody, oracle, measured(2, "50", "60", "4194304"), measured(3, "50", "60", "4194304"))
	cold.Rollouts[2].Memory.Harness, cold.Rollouts[3].Memory.Harness = "524288", "524288"
	restore.Rollouts[5].Memory.HarnessCPU, restore.Rollouts[5].Memory.HarnessLife = "1500000", "12000000000"
	got := printed(t, restore, cold)
	for _, want := range []string{
		"RUN ARM RESET LOCKS VERDICT GATES CONTROLS ROLLOUTS SCORE MEMORY",
		// Controls and warm-ups are in no number.
		"a/drums-restore drums restore repair passed 1/2 none=0.0 oracle=1.0 3/3 0.0->1.0 x3 2.0",
		"a/drums-cold drums cold repair passed 1/2 none=0.0 oracle=1.0 2/2 0.0->1.0 x2 4.0+0.5",
		// A 95th percentile takes 20.
		"a/drums-restore 3 1.0/- 2.0/- 22.0/- 34.0/- 5.0/- of 1",
		"a/drums-cold 2 1.0/- 2.0/- 50.0/- 60.0/- -",
		"a/drums-restore: the holder of the slot's namespace has used 1.5 ms of CPU time in 12.0 s",
		"a/drums-restore: cold ready p50/p95 50.0/- (n 2) beside restore usable p50/p95 34.0/- (n 3)",
	} {
		if !strings.Contains(got+"\n", want+"\n") {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "9000") {
		t.Errorf("a control or warm-up is in a number:\n%s", got)
	}
	// What may not be compared does not stand side by side.
	got = printedBeside(t, "kernel: it is another one", restore, cold)
	if strings.Contains(got, "beside restore") || !strings.Contains(got, "a/drums-restore is not put beside its cold start: kernel: it is another one\n") {
		t.Errorf("a refused comparison:\n%s", got)
	}
	// From 20 on there is a 95th percentile, and what was not valid is in no clock.
	long := recordOf("a/long", "restore", engine.RunPassed)
	for i := range int64(20) {
		long.Rollouts = append(long.Rollouts, measured(i, fmt.Sprint(20+i), fmt.Sprint(40+i), "1048576"))
	}
	lost := measured(20, "9000", "9000", "900000000")
	lost.Class = record.VerifierUnavailable
	long.Rollouts = append(long.Rollouts, lost)
	// By Hyndman and Fan's eighth definition it lies at 20 x 0.95 + 1.95/3 = 19.65 of 20.
	if got := printed(t, long); !strings.Contains(got, "a/long 20 1.0/1.0 2.0/2.0 29.5/38.6 49.5/58.6 -") || !strings.Contains(got, "20/21") || strings.Contains(got, "9000") {
		t.Error(got)
	}
}

// A run that is not as it was written gives no number, whatever its record says:
// show, show -o json, --gates, --profile and --pictures.
func TestShowDamage(t *testing.T) {
	folder := t.TempDir()
	recordtest.Run{Name: "x/whole", Rollouts: 6, Controls: true}.Make(t, filepath.Join(folder, "whole"))
	code, out, errs := call(t, "show", folder)
	if code != 0 || !strings.Contains(out, "x/whole  6 ") || !strings.Contains(out, "6/6") {
		t.Fatalf("%d %s %s", code, out, errs)
	}
	for name, plant := range map[string]func(dir string) error{
		// A clock that is quicker by an order of magnitude, in the record alone and in the chain alone.
		"record": func(dir string) error {
			return edit(filepath.Join(dir, record.RecordFile), regexp.MustCompile(`"usable":"\d+"`), `"usable":"123456789"`)
		},
		"chain": func(dir string) error {
			return edit(filepath.Join(dir, record.EventsFile), regexp.MustCompile(`"end":"\d+"`), `"end":"1"`)
		},
		"verdict": func(dir string) error {
			return edit(filepath.Join(dir, record.EventsFile), regexp.MustCompile(`"outcome":"passed"`), `"outcome":"failed"`)
		},
		"manifest": func(dir string) error {
			return edit(filepath.Join(dir, record.ManifestFile), regexp.MustCompile(`"vcpus":1`), `"vcpus":2`)
		},
		"no record": func(dir string) error { return os.Remove(filepath.Join(dir, record.RecordFile)) },
		"no JSON":   func(dir string) error { return os.WriteFile(filepath.Join(dir, record.RecordFile), []byte("{"), 0o644) },
	} {
		dir := filepath.Join(t.TempDir(), "hurt")
		recordtest.Run{Name: "x/hurt", Rollouts: 6, Controls: true}.Make(t, dir)
		if err := plant(dir); err != nil {
			t.Fatal(err)
		}
		code, out, errs := call(t, "show", filepath.Join(folder, "whole"), dir)
		if code != codeBlocked || !strings.Contains(out, "not sound") || !strings.Contains(out, "no number comes of it") || !strings.Contains(out, "x/whole  6 ") || strings.Count(out, "6/6") != 1 || strings.Contains(out, "123.5") {
			t.Errorf("%s: %d %s %s", name, code, out, errs)
		}
		for _, flags := range [][]string{{"-o", "json"}, {"--gates"}, {"--pictures"}, {"--profile"}} {
			if code, out, errs := call(t, append([]string{"show", folder, dir}, flags...)...); code != codeBlocked || out != "" || !strings.Contains(errs, "not sound") {
				t.Errorf("%s %v: %d %s %s", name, flags, code, out, errs)
			}
		}
	}
}

// edit replaces the first match in a file, which must change.
func edit(path string, what *regexp.Regexp, with string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	at := what.FindIndex(data)
	if at == nil {
		return fmt.Errorf("%s has no %s", path, what)
	}
	return os.WriteFile(path, slices.Concat(data[:at[0]], []byte(with), data[at[1]:]), 0o644)
}

// What an emulated guest took is marked wherever it stands.
func TestShowEmulated(t *testing.T) {
	r := recordOf("a/qemu-restore", "restore", engine.RunPassed, measured(0, "20", "30", "1048576"))
	r.Arm, r.Facts = "qemu", []bench.Fact{{Name: engine.Accelerator, Known: true, Value: "tcg"}}
	got := printed(t, r)
	for _, want := range []string{"a/qemu-restore qemu, emulated restore", "a/qemu-restore (emulated) 1 "} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	r.Facts[0].Value = "kvm"
	if got := printed(t, r); strings.Contains(got, "emulated") {
		t.Error(got)
	}
}

// What did not pass, or was not measured, has no number, and what is not of one experiment is not compared.
func TestShowNoNumber(t *testing.T) {
	good := measured(0, "20", "30", "1048576")
	for _, v := range []bench.RunVerdict{engine.RunFailed, engine.RunBlocked, engine.RunReview} {
		got := printed(t, recordOf("a/drums-restore", "restore", v, good), recordOf("a/drums-cold", "cold", engine.RunPassed, good))
		if !strings.Contains(got, "a/drums-restore drums restore repair "+string(v)+" 1/2 - - - -\n") || strings.Contains(got, "a/drums-restore 1") || strings.Contains(got, "beside restore") {
			t.Errorf("%s:\n%s", v, got)
		}
	}
	bare := measured(1, "20", "30", "1048576")
	bare.Memory = nil
	if got := printed(t, recordOf("a/drums-restore", "restore", engine.RunPassed, good, bare)); !strings.Contains(got, "0.0->1.0 x2 -\n") {
		t.Errorf("a median over some of the slots:\n%s", got)
	}
	other := recordOf("a/drums-cold", "cold", engine.RunPassed, good)
	other.Digests = map[string]bench.SHA256{"workload": "another"}
	elsewhere := recordOf("b/drums-cold", "cold", engine.RunPassed, good)
	settings := recordOf("a/drums-cold", "cold", engine.RunPassed, good)
	settings.Settings = map[string]string{"locks": "criu"}
	restore := recordOf("a/drums-restore", "restore", engine.RunPassed, good)
	cold := recordOf("a/drums-cold", "cold", engine.RunPassed, good)
	for name, with := range map[string][]bench.Record{
		"workload": {other}, "folder": {elsewhere}, "settings": {settings}, "two": {cold, cold}, "none": nil,
	} {
		if got := printed(t, append(with, restore)...); strings.Contains(got, "beside restore") {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}

// Pictures are listed by file, and only as they were written.
func TestShowPictures(t *testing.T) {
	run := t.TempDir()
	dir, err := record.Create(run)
	if err != nil {
		t.Fatal(err)
	}
	keep := func(name, data string) bench.Evidence {
		e, err := dir.Evidence.Put(name, []byte(data))
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	var plan bench.Plan
	for i, step := range []struct {
		id, control string
		evidence    []bench.Evidence
	}{
		{"r0/evaluate-before", "none", []bench.Evidence{keep("screen-before.png", "desk")}},
		{"r1/evaluate-before", "", []bench.Evidence{keep("checker before.stdout", "x"), keep("screen-before.png", "desk")}},
		{"r1/evaluate-after", "", []bench.Evidence{keep("screen-after.png", "one")}},
		{"r2/evaluate-before", "", []bench.Evidence{keep("screen-before.png", "desk")}},
		{"r2/evaluate-after", "", nil},
	} {
		rollout := int64(step.id[1] - '0')
		plan.Steps = append(plan.Steps, bench.Step{Id: step.id, Kind: "evaluate", Rollout: &rollout, Control: step.control, Needs: []bench.Edge{}})
		if err := dir.Events.Append(bench.Receipt{Seq: int64(i), Event: "step", Step: step.id, Evidence: step.evidence}); err != nil {
			t.Fatal(err)
		}
	}
	text, err := canonical.JSON(plan)
	if err == nil {
		err = os.WriteFile(filepath.Join(run, record.PlanFile), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	g := &globals{Output: "plain", Stdout: &out}
	if err := printPictures(g, []string{run}, nil); err != nil {
		t.Fatal(err)
	}
	path := func(name, data string) string { return dir.Evidence.Path(keep(name, data)) }
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	before, after := path("screen-before.png", "desk"), path("screen-after.png", "one")
	want := []string{"SCREEN ROLLOUTS ACTS FILE", "before 0 none " + before, "before 1 2 - " + before, "after 1 - " + after}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("have\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if shots, err := pictures(run, []int64{2}); err != nil || len(shots) != 1 || shots[0].File != before || len(shots[0].Rollouts) != 1 {
		t.Errorf("rollout 2: %+v, %v", shots, err)
	}
	for _, file := range []string{after, filepath.Join(run, record.PlanFile)} {
		irregulartest.Each(t, file, func() error { return printPictures(g, []string{run}, nil) })
	}
	for name, spoil := range map[string]func() error{
		"changed": func() error { return os.WriteFile(after, []byte("two"), 0o644) },
		"gone":    func() error { return os.Remove(after) },
	} {
		out.Reset()
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if err := printPictures(g, []string{run}, nil); err == nil || out.Len() > 0 {
			t.Errorf("%s: %v, printed %q", name, err, out.String())
		}
	}
}

func TestShowGates(t *testing.T) {
	gates := func(run string, verdicts map[string]bench.Verdict, ids ...string) bench.Record {
		r := bench.Record{Run: run}
		for _, id := range ids {
			r.Steps = append(r.Steps, bench.StepOutcome{Step: id, Kind: "gate", Verdict: verdicts[id]})
		}
		return r
	}
	var out bytes.Buffer
	err := printGates(&globals{Output: "plain", Stdout: &out}, []bench.Record{
		gates("a", map[string]bench.Verdict{"r0/gate-locks": engine.Pass, "r1/gate-locks": engine.Fail, "gate-image": engine.NotRun}, "r0/gate-locks", "r1/gate-locks", "gate-image"),
		gates("b", map[string]bench.Verdict{"gate-image": engine.Pass}, "gate-image"),
	})
	if want := "GATE   a    b\nlocks  1/2  -\nimage  0/1  1/1\n"; err != nil || out.String() != want {
		t.Errorf("%v, have\n%s", err, out.String())
	}
}

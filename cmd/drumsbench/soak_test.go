//go:build linux && !elsewhere

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/fake"
	"github.com/drumsbench/drumsbench/arms/soaktest"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/stats"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

var soakOf = flag.String("soak", "", "soak these arms with so many resets each, as in drums=1000,oci=1000 (scripts/soak)")

// Variables of the program that is soaked.
const (
	soakFile  = "DRUMS_SOAK_FILE"
	soakEvery = "DRUMS_SOAK_EVERY"
	soakLeak  = "DRUMS_SOAK_LEAK"
)

// soaked is drumsbench, but for what it writes down between rollouts.
func soaked() {
	every, err := strconv.ParseInt(os.Getenv(soakEvery), 10, 64)
	if err != nil {
		panic(err)
	}
	seams.progress = func(ws *engine.Workspace, p engine.Progress) engine.Progress {
		s := &soaktest.Sampler{Progress: p, Workspace: ws, Every: every, File: os.Getenv(soakFile)}
		if os.Getenv(soakLeak) != "" {
			l := &leak{}
			s.Plant, s.Clear = l.plant, l.clear
		}
		return s
	}
	main()
}

// leak loses one thing of each kind at every sample.
type leak struct {
	kept    [][]byte
	files   []*os.File
	stops   []chan struct{}
	started []*exec.Cmd
	mounts  []string
	groups  []string
}

func (l *leak) plant(ws *engine.Workspace) {
	n := len(l.files)
	file, err := os.Create(filepath.Join(ws.Work, fmt.Sprint("lost-", n)))
	want(err)
	_, err = file.Write(make([]byte, 1<<20))
	want(err)
	stop := make(chan struct{})
	go func() { <-stop }()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUTS, Pdeathsig: syscall.SIGKILL}
	want(cmd.Start())
	mount := filepath.Join(ws.Work, fmt.Sprint("mount-", n))
	want(errors.Join(os.Mkdir(mount, 0o700), unix.Mount("drums", mount, "tmpfs", 0, "size=4k")))
	group := filepath.Join(ownGroup(), fmt.Sprintf("drums-%s-%d", ws.ID, n))
	want(os.Mkdir(group, 0o755))
	_, err = ws.Ledger.Intend("file", bench.Claim{Path: file.Name()})
	want(err)
	big := make([]byte, 1<<20)
	for i := range big {
		big[i] = byte(i)
	}
	l.files, l.stops, l.started, l.kept = append(l.files, file), append(l.stops, stop), append(l.started, cmd), append(l.kept, big)
	l.mounts, l.groups = append(l.mounts, mount), append(l.groups, group)
	want(os.WriteFile(filepath.Join(ws.State, "cache", fmt.Sprint("lost-", n)), make([]byte, 1<<20), 0o600))
}

func (l *leak) clear(ws *engine.Workspace) {
	for i := range l.files {
		close(l.stops[i])
		l.files[i].Close()
		l.started[i].Process.Kill()
		l.started[i].Wait()
		want(errors.Join(unix.Unmount(l.mounts[i], unix.MNT_DETACH), os.Remove(l.groups[i])))
	}
	runtime.KeepAlive(l.kept)
}

func want(err error) {
	if err != nil {
		panic(err)
	}
}

// ownGroup is our v2 group's folder.
func ownGroup() string {
	text, err := os.ReadFile("/proc/self/cgroup")
	want(err)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	want(err)
	for line := range strings.SplitSeq(string(mounts), "\n") {
		if f := strings.Fields(line); strings.Contains(line, " - cgroup2 ") && len(f) > 4 {
			for g := range strings.SplitSeq(string(text), "\n") {
				if path, ok := strings.CutPrefix(g, "0::"); ok {
					return filepath.Join(f[4], path)
				}
			}
		}
	}
	panic("no cgroup2 is mounted")
}

// soakArm is what is kept of one arm.
type soakArm struct {
	Arm      string              `json:"arm"`
	Resets   int                 `json:"resets"`
	Measured int                 `json:"measured"`
	Seconds  float64             `json:"seconds"`
	Verdict  bench.RunVerdict    `json:"verdict"`
	Reason   string              `json:"reason,omitempty"`
	Gates    map[string]int      `json:"gatesPassed"`
	Classes  map[string]int      `json:"classes"`
	Problems []string            `json:"problems"`
	Usable   bench.Summary       `json:"usableMilliseconds"`
	Slope    bench.Slope         `json:"slopeMicrosecondsPerReset"`
	Series   []soaktest.Series   `json:"series"`
	Before   map[string]int64    `json:"before"`
	After    map[string]int64    `json:"after"`
	Engine   bench.EngineVersion `json:"engine"`
	Settings map[string]string   `json:"settings"`
	Host     []bench.Fact        `json:"host"`
	Samples  []soaktest.Sample   `json:"samples"`
}

// soakRecord is what is kept of the suite below the state directory.
type soakRecord struct {
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Commit  string    `json:"commit"`
	Go      string    `json:"go"`
	Rule    string    `json:"rule"`
	Passed  bool      `json:"passed"`
	Arms    []soakArm `json:"arms"`
}

// soak runs so many rollouts in one run and judges what they left. env goes to the program.
func soak(t *testing.T, folder, arm string, resets int, env ...string) soakArm {
	t.Helper()
	s := soakArm{Arm: arm, Resets: resets, Gates: map[string]int{}, Classes: map[string]int{}, Problems: []string{}, Before: map[string]int64{}, After: map[string]int64{}}
	state, manifest := filepath.Join(folder, arm), soakManifest(t, folder, arm)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("soak %s: %v", arm, err)
		}
	}
	ctx := context.Background()
	file, out := filepath.Join(folder, arm+".samples"), filepath.Join(state, "runs", "soak")
	work := filepath.Join(state, "work")
	must(soaktest.Host(ctx, "none", work, state, s.Before))
	start := time.Now()
	args := []string{"--state", state, "run", "--out", out, "--arm", arm, "--reset", "restore", "-t", fmt.Sprint("rollouts=", resets-len(controlRollouts))}
	if arm == "fake" {
		args = append(args, "-t", "server="+string(fake.ServerSHA256()))
	}
	if arm == "qemu" { // an emulated machine loses what another would, and starts on any host
		args = append(args, "-t", "accel=tcg")
	}
	cmd := exec.Command("drumsbench-soak", append(args, manifest)...)
	cmd.Env = append(append(os.Environ(), soakFile+"="+file, fmt.Sprint(soakEvery, "=", max(1, resets/100))), env...)
	log, err := os.Create(filepath.Join(folder, arm+".log"))
	must(err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("the run: %v: %s", err, tail(log.Name())))
	}
	s.Seconds = time.Since(start).Seconds()
	must(soaktest.Host(ctx, "none", work, state, s.After))
	for _, name := range []string{"own.processes", "own.mounts", "own.groups", "own.loops", "own.namespaces"} {
		if s.Before[name] != s.After[name] {
			s.Problems = append(s.Problems, fmt.Sprintf("%s: %d before, %d after", name, s.Before[name], s.After[name]))
		}
	}
	left, err := os.ReadDir(work)
	must(err)
	for _, l := range left {
		s.Problems = append(s.Problems, "left behind: "+filepath.Join(work, l.Name()))
	}

	var taken soaktest.Samples
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &taken)
	}
	if err != nil {
		t.Fatalf("soak %s: %v; %q", arm, err, s.Problems)
	}
	if taken.Broken != "" {
		s.Problems = append(s.Problems, "a sample: "+taken.Broken)
	}
	s.Samples = taken.Samples
	s.judged(filepath.Join(out, arm+"-restore"))
	if s.Series, err = soaktest.Judge(s.Samples, soaktest.Bounds); err != nil {
		s.Problems = append(s.Problems, err.Error())
	}
	if grown := soaktest.Grown(s.Series); grown != "" {
		s.Problems = append(s.Problems, "growth: "+grown)
	}
	return s
}

// controlRollouts are the resets that are not measured.
var controlRollouts = []string{"none", "oracle"}

// judged takes what the record says: every step of every rollout passed, and how reset times went.
func (s *soakArm) judged(dir string) {
	report, err := record.Verify(dir)
	for _, p := range append(report.Damage, report.Crash...) {
		s.Problems = append(s.Problems, p.Error())
	}
	text, rerr := os.ReadFile(filepath.Join(dir, record.RecordFile))
	var r bench.Record
	if rerr == nil {
		rerr = json.Unmarshal(text, &r)
	}
	if err := errors.Join(err, rerr); err != nil {
		s.Problems = append(s.Problems, err.Error())
		return
	}
	s.Verdict, s.Reason, s.Engine, s.Settings = r.Verdict, r.Reason, r.Engine, r.Settings
	for _, f := range r.Facts {
		if f.Known && !strings.Contains(f.Name, "/") {
			s.Host = append(s.Host, f)
		}
	}
	if r.Verdict != engine.RunPassed {
		s.Problems = append(s.Problems, fmt.Sprintf("the run %s: %s", r.Verdict, r.Reason))
	}
	for _, o := range r.Steps {
		if o.Kind != "gate" {
			continue
		}
		_, name, _ := strings.Cut(o.Step, "/")
		switch o.Verdict {
		case engine.Pass, engine.NotApplicable:
			s.Gates[name+" "+string(o.Verdict)]++
		default:
			s.Problems = append(s.Problems, engine.StepReason(o))
		}
	}
	var points []stats.Point
	var times []float64
	for _, rollout := range r.Rollouts {
		s.Classes[string(rollout.Class)]++
		if rollout.Control != "" || rollout.Clocks == nil {
			continue
		}
		if ns, err := strconv.ParseFloat(string(rollout.Clocks.Usable), 64); err == nil {
			points, times = append(points, stats.Point{X: float64(rollout.Index), Y: ns / 1e3}), append(times, ns/1e6)
		}
	}
	s.Measured, s.Usable, s.Slope = len(points), stats.Summarize(times), stats.Trend(points)
	if s.Measured != s.Resets-len(controlRollouts) || s.Classes[string(record.Success)] != s.Measured+1 || s.Classes[string(record.FailedValid)] != 1 {
		s.Problems = append(s.Problems, fmt.Sprintf("of %d resets %d have a time; classes %v", s.Resets, s.Measured, s.Classes))
	}
}

// print says it to a person.
func (s soakArm) print() {
	fmt.Printf("\n%s: %d resets in %.0f s, the run %s\n", s.Arm, s.Resets, s.Seconds, s.Verdict)
	for _, l := range s.Series {
		fmt.Println("  " + l.String())
	}
	if s.Slope.Value == nil || s.Usable.P50 == nil {
		fmt.Printf("  reset time: %s\n", s.Slope.Reason)
	} else {
		fmt.Printf("  reset time: median %.1f ms; slope %+.2f µs a reset, 95%% interval %+.2f to %+.2f, over %d resets\n", *s.Usable.P50.Value, *s.Slope.Value, *s.Slope.Low, *s.Slope.High, s.Measured)
	}
	for _, p := range s.Problems {
		fmt.Println("  PROBLEM: " + p)
	}
}

func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-3000):])
}

// soakManifest makes state directory and manifest of an arm.
func soakManifest(t *testing.T, folder, arm string) string {
	t.Helper()
	state := newState(t, folder, arm)
	if arm == "fake" {
		manifest := filepath.Join(folder, "fake-manifest")
		if err := errors.Join(os.MkdirAll(filepath.Join(state, "cache"), 0o755), writeFakeManifest(state, manifest),
			os.WriteFile(filepath.Join(manifest, "desk", "desk.cue"), []byte(strings.Replace(fakeManifest, `faults: ["slow"]`, "{}", 1)), 0o644)); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(manifest, "desk")
	}
	copyTiny(t, folder, state)
	dir := filepath.Join(folder, "checkout", "manifests", "soak")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "soak.cue"), []byte(renameTiny), 0o644)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// renameTiny renames a folder in the smallest image; a service holds a lock on a file.
const renameTiny = `package soak

import (
	"drumsbench.example/manifests/pins"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

bench.#Manifest & {
	apiVersion: "bench/v1alpha1"
	name:       "soak"
	image: {file: "tiny.qcow2", sha256: pins.tiny}
	guest: {
		services: [{
			name: "reader"
			exec: ["/usr/bin/python3", "/usr/local/lib/locks/reader.py"]
			ready: "/run/locks/ready"
		}]
		server: sha256: pins.guestd
	}
	resources: {vcpus: 1, memory: "512MiB", swap: "0", pids: 128}
	task: {
		id: "rename"
		setup: [{exec: ["/bin/mkdir", "-p", "/root/Desktop/todo"]}]
		oracle: [{exec: ["/bin/mv", "/root/Desktop/todo", "/root/Desktop/done"]}]
	}
	policy: oracle: {}
	checker: exec: ["/usr/bin/test", "-d", "/root/Desktop/done"]
	canary: file: "/root/.canary"
	readiness: {period: "10ms", deadline: "2m"}
	arms: {
		drums: {}
		oci: locks: "repair"
		qemu: accel: *"kvm" | "tcg" @tag(accel)
	}
	experiment: {
		reset: ["restore"]
		rollouts: *2 | int @tag(rollouts,type=int)
	}
}
`

// In the everyday suite the fake arm is soaked, and one that leaks: the judge has to name all of it.
func TestSoak(t *testing.T) {
	if *soakOf != "" {
		soakReal(t, *soakOf)
		return
	}
	if s := soak(t, t.TempDir(), "fake", 24); len(s.Problems) > 0 {
		t.Errorf("the fake arm: %q", s.Problems)
		s.print()
	} else if s.Slope.Value == nil || s.Gates["gate-canary pass"] != 24 {
		t.Errorf("slope %+v, gates %v", s.Slope, s.Gates)
	}
	leaking := soak(t, t.TempDir(), "fake", 16, soakLeak+"=1")
	said := strings.Join(leaking.Problems, "\n")
	for _, name := range []string{
		"own.processes", "own.mounts", "own.groups", "own.namespaces", "own.entries", "own.disk", "state.disk",
		"engine.descriptors", "engine.goroutines", "engine.heap",
	} {
		if !strings.Contains(soaktest.Grown(leaking.Series), name) {
			t.Errorf("a leak of %s is not seen: %s", name, said)
		}
	}
	if !strings.Contains(said, "growth: ") {
		t.Errorf("growth is no problem: %q", said)
	}
}

// testedCommit is what a record is of.
func testedCommit() (string, error) {
	commit, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil {
		return "", fmt.Errorf("git rev-parse: %w", err)
	}
	text := strings.TrimSpace(string(commit))
	if changes, err := exec.Command("git", "status", "--porcelain").Output(); err != nil || len(changes) > 0 {
		text += " with changes"
	}
	return text, nil
}

func soakReal(t *testing.T, which string) {
	kept := soakRecord{Started: time.Now().UTC(), Go: runtime.Version(), Rule: soaktest.Rule, Passed: true}
	var err error
	if kept.Commit, err = testedCommit(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(realState(), 0o755); err != nil {
		t.Fatal(err)
	}
	folder, err := os.MkdirTemp(realState(), "drums-soak-")
	if err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(which, ",") {
		arm, number, _ := strings.Cut(part, "=")
		resets, err := strconv.Atoi(number)
		if err != nil || resets < soaktest.Needed+len(controlRollouts) {
			t.Fatalf("-soak %s: ARM=RESETS, at least %d", which, soaktest.Needed+len(controlRollouts))
		}
		s := soak(t, folder, arm, resets)
		s.print()
		if kept.Arms = append(kept.Arms, s); len(s.Problems) > 0 {
			kept.Passed = false
			t.Errorf("%s: %d problems", arm, len(s.Problems))
		}
	}
	kept.Seconds = time.Since(kept.Started).Seconds()
	text, err := json.MarshalIndent(kept, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(realState(), "soak", kept.Started.Format("20060102T150405")+".json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, append(text, '\n'), 0o644)); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\nrule: %s\nrecord: %s\n", soaktest.Rule, path)
	if !kept.Passed {
		fmt.Printf("the runs stay in %s\n", folder)
		return
	}
	if err := os.RemoveAll(folder); err != nil {
		t.Error(err)
	}
}

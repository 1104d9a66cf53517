package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/arms/crashtest"
	"github.com/drumsbench/drumsbench/arms/fake"
)

var (
	crashAll  = flag.Bool("crash", false, "try every crash window, not a sample")
	crashSeed = flag.Uint64("crash-seed", 0, "seed of the crash windows (default: another one each time)")
	crashOnly = flag.String("crash-only", "", "try the windows whose name, ARM/WINDOW, contains this")
)

// crasher is drumsbench, but for the window in which it kills itself.
func crasher() {
	if w, ok := crashtest.FromEnvironment(); ok {
		seams.ledger, seams.sweep = w.WrapLedger, w.AtPoint
	}
	main()
}

const (
	// insideCrash names the folder of the suite to the process that runs it.
	insideCrash = "DRUMS_CRASH_FOLDER"
	// sampleFake and sampleDrums are how many windows the everyday suite tries.
	sampleFake, sampleDrums = 12, 8
	// randomFake and randomDrums are how many random moments all windows have.
	randomFake, randomDrums = 20, 16
)

// TestCrash kills the program in the crash windows of the fake and the drums arm.
// It runs in a mount namespace with a /tmp of its own: what a killed program
// leaves there is then its own, on a machine that others use too.
func TestCrash(t *testing.T) {
	if folder, ok := os.LookupEnv(insideCrash); ok {
		crashInside(t, folder)
		return
	}
	state := realState()
	if os.Geteuid() != 0 {
		t.Fatal("the crash windows need root")
	}
	if err := os.MkdirAll(state, 0o755); err != nil {
		t.Fatal(err)
	}
	folder, err := os.MkdirTemp(state, "drums-crash-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	program := filepath.Join(folder, "crash.test")
	if err := copyFile("/proc/self/exe", program); err != nil {
		t.Fatal(err)
	}
	args := []string{"-c", `mount -t tmpfs -o mode=1777 drums /tmp && exec "$0" "$@"`, program, "-test.run", "^TestCrash$", "-test.timeout", "0", "-test.v",
		"-crash-seed", fmt.Sprint(seed()), "-crash=" + fmt.Sprint(*crashAll), "-crash-only", *crashOnly}
	cmd := exec.Command("sh", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	cmd.Env = append(os.Environ(), insideCrash+"="+folder, "TMPDIR=/tmp", "DRUMSBENCH_STATE="+state)
	if deadline, ok := t.Deadline(); ok {
		// Time to take away what is left.
		cmd.Env = append(cmd.Env, deadlineVariable+"="+deadline.Add(-2*time.Minute).Format(time.RFC3339))
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Errorf("crash windows: %v; what failed is said above", err)
	}
}

const deadlineVariable = "DRUMS_CRASH_DEADLINE"

func realState() string {
	if state := os.Getenv("DRUMSBENCH_STATE"); state != "" {
		return state
	}
	return "/var/lib/drumsbench"
}

func seed() uint64 {
	if *crashSeed != 0 {
		return *crashSeed
	}
	return uint64(time.Now().UnixNano())
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// crashRecord is what is kept of the suite below the state directory.
type crashRecord struct {
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Seed    uint64    `json:"seed"`
	All     bool      `json:"all"`
	// Tried counts windows in which the program was killed, by arm and kind.
	Tried   map[string]map[string]int `json:"tried"`
	Total   int                       `json:"total"`
	Failed  int                       `json:"failed"`
	Results []crashtest.Result        `json:"results"`
}

func crashInside(t *testing.T, folder string) {
	ctx := context.Background()
	if text := os.Getenv(deadlineVariable); text != "" {
		deadline, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	kept := crashRecord{Started: time.Now().UTC(), Seed: seed(), All: *crashAll, Tried: map[string]map[string]int{}}
	t.Logf("seed %d", kept.Seed)
	for _, arm := range []struct {
		harness        func(*testing.T, string) *crashtest.Harness
		sample, random int
	}{{fakeCrash, sampleFake, randomFake}, {drumsCrash, sampleDrums, randomDrums}} {
		h := arm.harness(t, folder)
		if err := h.Begin(ctx); err != nil {
			t.Fatal(err)
		}
		windows := h.Windows(kept.Seed, arm.random)
		if *crashOnly != "" {
			windows = slices.DeleteFunc(windows, func(w crashtest.Window) bool { return !strings.Contains(h.Arm+"/"+w.String(), *crashOnly) })
		} else if !*crashAll {
			windows = crashtest.Sample(windows, arm.sample, kept.Seed)
		}
		kept.Tried[h.Arm] = map[string]int{}
		for _, w := range windows {
			t.Run(h.Arm+"/"+w.String(), func(t *testing.T) {
				r, err := h.Try(ctx, w)
				if err != nil {
					t.Fatal(err)
				}
				kept.Results = append(kept.Results, r)
				if r.Killed {
					kept.Tried[h.Arm][w.Kind]++
					kept.Total++
				}
				if len(r.Problems) > 0 {
					kept.Failed++
				}
				for _, p := range r.Problems {
					t.Error(p)
				}
			})
		}
	}
	kept.Seconds = time.Since(kept.Started).Seconds()
	path, err := keepCrash(kept)
	if err != nil {
		t.Error(err)
	}
	fmt.Printf("crash windows: %d tried, %d failed, in %.0f s: %v; %s\n", kept.Total, kept.Failed, kept.Seconds, kept.Tried, path)
	if *crashAll && *crashOnly == "" && kept.Total < 200 {
		t.Errorf("%d windows were tried, want at least 200", kept.Total)
	}
}

// keepCrash writes what was tried below the state directory.
func keepCrash(r crashRecord) (string, error) {
	dir := filepath.Join(realState(), "crash")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, r.Started.Format("20060102T150405.000")+".json")
	return path, os.WriteFile(path, append(b, '\n'), 0o644)
}

// crashProgram runs the test binary as drumsbench.
func crashProgram(state string) func(context.Context, []string, ...string) *exec.Cmd {
	return func(ctx context.Context, env []string, args ...string) *exec.Cmd {
		path, err := exec.LookPath("drumsbench-crash")
		if err != nil {
			panic(err) // TestMain puts it there
		}
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Env = append(append(os.Environ(), "DRUMSBENCH_STATE="+state), env...)
		return cmd
	}
}

func newState(t *testing.T, folder, arm string) string {
	state := filepath.Join(folder, arm)
	for _, dir := range []string{"work", "runs", "images"} {
		if err := os.MkdirAll(filepath.Join(state, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return state
}

func fakeCrash(t *testing.T, folder string) *crashtest.Harness {
	state := newState(t, folder, "fake")
	manifest := filepath.Join(folder, "fake-manifest")
	for path, text := range map[string]string{
		filepath.Join(state, "images", "desk.qcow2"): fakeImage,
		filepath.Join(manifest, "desk", "desk.cue"):  fakeManifest,
		filepath.Join(manifest, "cue.mod/module.cue"): `module: "example.com/user@v0"
language: version: "v0.17.1"
`,
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return &crashtest.Harness{
		Arm: "fake", Program: crashProgram(state), State: state,
		Run: []string{"-t", "server=" + string(fake.ServerSHA256()), "--reset", "restore", filepath.Join(manifest, "desk")},
	}
}

const fakeImage = "an image that nobody reads\n"

const fakeManifest = `package desk

import "github.com/drumsbench/drumsbench/schemas/bench"

bench.#Manifest & {
	apiVersion: "bench/v1alpha1"
	name:       "desk"
	image: {file: "desk.qcow2", sha256: "00e4c4fdac6a0ca45fc13dfc2ddb1b7c68c3d150022c4a8622b3761fa76a22af"}
	guest: {
		services: [{name: "holder", exec: ["/usr/bin/holder", "--lock"], ready: "/run/holder.ready"}]
		server: sha256: string @tag(server)
	}
	resources: {vcpus: 2, memory: "256MiB", swap: "0", pids: 64}
	task: {
		id: "rename"
		setup: [{exec: ["mkdir", "-p", "/root/Desktop/todo"]}]
		oracle: [{exec: ["mv", "/root/Desktop/todo", "/root/Desktop/done"]}]
	}
	checker: exec: ["test", "-d", "/root/Desktop/done"]
	canary: file: "/root/.canary"
	readiness: {}
	arms: fake: faults: ["slow"]
	experiment: {reset: ["restore"], rollouts: 2}
}
`

// drumsCrash uses the image, the pins and the criu that scripts/prepare made;
// its scratch directories and runs are its own.
func drumsCrash(t *testing.T, folder string) *crashtest.Harness {
	state := filepath.Join(folder, "drums")
	for _, dir := range []string{"work", "runs"} {
		if err := os.MkdirAll(filepath.Join(state, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, shared := range []string{"images", "cache", "criu"} {
		from := filepath.Join(realState(), shared)
		if _, err := os.Stat(from); err != nil && shared != "cache" {
			t.Fatalf("%v: scripts/prepare makes it", err)
		}
		if err := os.Symlink(from, filepath.Join(state, shared)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(realState(), "cache"), 0o755); err != nil {
		t.Fatal(err)
	}
	return &crashtest.Harness{
		Arm: "drums", Program: crashProgram(state), State: state, Criu: true,
		Run: []string{"-t", "rollouts=1", "--reset", "restore", filepath.Join(realState(), "manifests", "manifests", "locks")},
	}
}

//go:build linux && !elsewhere

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
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/drumsbench/drumsbench/arms/crashtest"
	"github.com/drumsbench/drumsbench/arms/fake"
	"github.com/drumsbench/drumsbench/arms/qemu"
)

var (
	crashAll     = flag.Bool("crash", false, "try every crash window, not a sample")
	crashSeed    = flag.Uint64("crash-seed", 0, "seed of the crash windows (default: another one each time)")
	crashMoments = flag.Int("crash-moments", 500, "with -crash: try so many random moments of a campaign")
	crashOnly    = flag.String("crash-only", "", "ARM/EXPRESSION: try the windows of that arm whose names the regular expression matches; qemu is its three methods")
	crashSample  = flag.Int("crash-sample", 0, "with -crash-only: try a sample of so many windows of each arm, by the seed (0: all)")
)

// crasher is drumsbench, but for the window in which it kills itself.
func crasher() {
	if w, ok := crashtest.FromEnvironment(); ok {
		seams.ledger, seams.sweep, seams.events, seams.machine = w.WrapLedger, w.AtPoint, w.WrapSink, w.Watch()
	}
	main()
}

const (
	// insideCrash names the folder of the suite to the process that runs it.
	insideCrash = "DRUMS_CRASH_FOLDER"
)

// branchSample is how many windows of a task that branches the whole suite tries; -crash-only branch/ tries all.
const branchSample = 60

type crashArm struct {
	harness        func(*testing.T, string) *crashtest.Harness
	sample, random int
}

// crashArms are the arms of the suite: how many windows of each the everyday
// suite tries (of one with none it makes no run), and how many random moments are
// among all windows.
var crashArms = []crashArm{{fakeCrash, 12, 40}, {drumsCrash, 8, 30}, {ociCrash, 6, 20}, {fuseCrash, 2, 6},
	{qemuCrash(qemu.MethodFile), 2, 12}, {qemuCrash(qemu.MethodInPlace), 0, 6}, {qemuCrash(qemu.MethodLoadVM), 0, 6}}

// crashLong are tried only where they are asked for: a task that branches with the whole
// suite, random moments of a campaign where -crash-only names it (scripts/test campaign).
var crashLong = []struct {
	name    string
	harness func(*testing.T, string) *crashtest.Harness
}{{"branch", branchCrash}, {"campaign", campaignCrash}}

// TestCrash kills the program in the crash windows of the arms.
// It runs in a mount namespace where /tmp and its like are its own: what lies
// there afterwards is of a killed program, on a machine that others use too.
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
	args := []string{"-c", `for dir in /tmp /var/tmp /dev/shm /run; do mount -t tmpfs -o mode=1777 drums $dir; done && exec "$0" "$@"`, program, "-test.run", "^TestCrash$", "-test.timeout", "0",
		"-crash-moments", fmt.Sprint(*crashMoments), "-crash-seed", fmt.Sprint(seed()), "-crash=" + fmt.Sprint(*crashAll), "-crash-only", *crashOnly, "-crash-sample", fmt.Sprint(*crashSample)}
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
	// Commit is empty where git does not tell.
	Commit  string  `json:"commit,omitempty"`
	Seconds float64 `json:"seconds"`
	Seed    uint64  `json:"seed"`
	All     bool    `json:"all"`
	// Tried counts windows in which the program was killed, by arm and kind.
	Tried map[string]map[string]int `json:"tried"`
	Total int                       `json:"total"`
	// Inside counts those in which a call of criu or QMP had not ended yet.
	Inside  int                `json:"inside"`
	Failed  int                `json:"failed"`
	Results []crashtest.Result `json:"results"`
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
	onlyArm, expression, one := strings.Cut(*crashOnly, "/")
	if *crashOnly != "" && !one {
		t.Fatalf("-crash-only %q is not ARM/EXPRESSION", *crashOnly)
	}
	only, err := regexp.Compile(expression)
	if err != nil {
		t.Fatal(err)
	}
	kept := crashRecord{Started: time.Now().UTC(), Seed: seed(), All: *crashAll, Tried: map[string]map[string]int{}}
	kept.Commit, _ = testedCommit() // a sample is tried where git refuses the checkout, too
	fmt.Printf("crash windows: seed %d\n", kept.Seed)
	arms := slices.Clone(crashArms)
	for _, long := range crashLong {
		if one && onlyArm == long.name || !one && *crashAll && long.name == "branch" {
			arms = append(arms, crashArm{long.harness, 0, map[string]int{"branch": 20, "campaign": *crashMoments}[long.name]})
		}
	}
	tried := false
	for _, arm := range arms {
		if arm.sample == 0 && !*crashAll && *crashOnly == "" {
			continue
		}
		h := arm.harness(t, folder)
		if one && h.Arm != onlyArm && !(onlyArm == qemu.Kind && strings.HasPrefix(h.Arm, qemu.Kind+"-")) {
			continue
		}
		if err := h.Begin(ctx); err != nil {
			t.Fatal(err)
		}
		windows := h.Windows(kept.Seed, arm.random)
		if one {
			windows = slices.DeleteFunc(windows, func(w crashtest.Window) bool { return !only.MatchString(w.String()) })
			if *crashSample > 0 {
				windows = crashtest.Sample(windows, *crashSample, kept.Seed)
			}
		} else if !*crashAll {
			windows = crashtest.Sample(windows, arm.sample, kept.Seed)
		} else if h.Arm == "branch" { // it has 500, of a minute for four
			windows = crashtest.Sample(windows, branchSample, kept.Seed)
		}
		fmt.Printf("crash windows: %s: %d of %d\n", h.Arm, len(windows), len(h.Windows(kept.Seed, arm.random)))
		kept.Tried[h.Arm] = map[string]int{}
		if (!one || only.MatchString("unswept")) && h.Arm != "branch" && h.Arm != "campaign" {
			tried = true
			t.Run(h.Arm+"/unswept", func(t *testing.T) { unswept(ctx, t, h) })
		}
		tried = tried || len(windows) > 0
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
				if r.Inside {
					kept.Inside++
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
	fmt.Printf("crash windows: %d tried, %d of them while criu or QEMU worked, %d failed, in %.0f s: %v; %s\n", kept.Total, kept.Inside, kept.Failed, kept.Seconds, kept.Tried, path)
	if one && !tried {
		t.Errorf("no window was tried: -crash-only %q names none", *crashOnly)
	}
	if *crashAll && *crashOnly == "" && (kept.Total < 200 || kept.Inside < 4) {
		t.Errorf("%d windows were tried, %d while criu or QEMU worked; want at least 200 and 4", kept.Total, kept.Inside)
	}
}

// unswept wants the criteria to see what a killed run leaves, of each kind.
func unswept(ctx context.Context, t *testing.T, h *crashtest.Harness) {
	see := map[string]struct {
		bind string // the window is after the first line that binds such a thing
		want []string
	}{
		"fake": {"file", []string{"the ledger still has directory", "left behind: file "}},
		"drums": {"process", []string{
			"the ledger still has process", "left behind: process ", "left behind: control group ", "left behind: mount ",
			"left behind: loop device ", "left behind: network namespace ", "left behind: namespace mnt", "left behind: file ",
		}},
		"oci": {"process", []string{
			"the ledger still has process", "left behind: process ", "left behind: control group ", "left behind: mount ",
			"left behind: loop device ", "left behind: network namespace ", "left behind: file ",
		}},
		"drums-fuse": {"mount", []string{"the ledger still has export", "left behind: process ", "left behind: loop device ", "left behind: mount "}},
		"qemu-file": {"process", []string{
			"the ledger still has process", "left behind: process ", "left behind: control group ", "left behind: file ",
		}},
	}[h.Arm]
	if see.bind == "" { // as the same arm before it
		return
	}
	w, ok := h.After("bind", see.bind)
	if !ok {
		t.Fatalf("no line of the ledger binds a %s", see.bind)
	}
	problems, err := h.Unswept(ctx, w)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range see.want {
		if !slices.ContainsFunc(problems, func(p string) bool { return strings.HasPrefix(p, want) }) {
			t.Errorf("killed at %s and not swept, and nothing says %q: %q", w, want, problems)
		}
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
	if err := writeFakeManifest(state, manifest); err != nil {
		t.Fatal(err)
	}
	return &crashtest.Harness{
		Arm: "fake", Program: crashProgram(state), State: state,
		Run: []string{"-t", "server=" + string(fake.ServerSHA256()), "--reset", "restore", filepath.Join(manifest, "desk")},
	}
}

// writeFakeManifest makes a user's repository with a manifest, and the image that it pins.
func writeFakeManifest(state, manifest string) error {
	for path, text := range map[string]string{
		filepath.Join(state, "images", "desk.qcow2"): fakeImage,
		filepath.Join(manifest, "desk", "desk.cue"):  fakeManifest,
		filepath.Join(manifest, "cue.mod/module.cue"): `module: "example.com/user@v0"
language: version: "v0.17.1"
`,
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	return nil
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
	experiment: {reset: ["restore"], rollouts: *2 | int @tag(rollouts,type=int), budget: trials: 1000}
}
`

// drumsCrash takes copies of the image and its pins, which scripts/prepare made
// and may make anew meanwhile; everything else in its state directory is its own.
func drumsCrash(t *testing.T, folder string) *crashtest.Harness {
	state := newState(t, folder, "drums")
	copyTiny(t, folder, state)
	copy := filepath.Join(folder, "checkout")
	return &crashtest.Harness{
		Arm: "drums", Program: crashProgram(state), State: state, Criu: true,
		Run: []string{"-t", "rollouts=2", "--arm", "drums", "--reset", "restore", filepath.Join(copy, "manifests", "locks")},
	}
}

// copyTiny copies the manifests, once, and the image with its pins, which scripts/prepare made
// and may make anew meanwhile, for a state directory of a test's own.
func copyTiny(t *testing.T, folder, state string) {
	t.Helper()
	real := realState()
	lock := flock.New(filepath.Join(real, "prepare.lock"))
	if err := lock.Lock(); err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	copy := filepath.Join(folder, "checkout")
	pins := filepath.Join("manifests", "pins", "pins.cue")
	err := errors.Join(
		copyFile(filepath.Join(real, "images", "tiny.qcow2"), filepath.Join(state, "images", "tiny.qcow2")),
		os.Symlink(filepath.Join(real, "criu"), filepath.Join(state, "criu")),
	)
	if _, lerr := os.Lstat(copy); lerr != nil {
		err = errors.Join(err,
			os.CopyFS(filepath.Join(copy, "manifests"), os.DirFS("../../manifests")),
			os.CopyFS(filepath.Join(copy, "schemas"), os.DirFS("../../schemas")), // where the manifests find it
			os.Remove(filepath.Join(copy, pins)),
			copyFile(filepath.Join(real, "manifests", pins), filepath.Join(copy, pins)),
		)
	}
	for _, name := range []string{"runc", "bin"} { // an operator's own; what the program starts
		if _, lerr := os.Lstat(filepath.Join(real, name)); lerr == nil {
			err = errors.Join(err, os.Symlink(filepath.Join(real, name), filepath.Join(state, name)))
		}
	}
	if err != nil {
		t.Fatalf("%v: scripts/prepare makes it", err)
	}
}

// ociCrash is the oci arm on the same manifest. It comes after drumsCrash and uses its copies.
func ociCrash(t *testing.T, folder string) *crashtest.Harness {
	state := newState(t, folder, "oci")
	copyTiny(t, folder, state)
	return &crashtest.Harness{
		Arm: "oci", Program: crashProgram(state), State: state, Criu: true,
		Run: []string{"-t", "rollouts=2", "--arm", "oci", "--reset", "restore", filepath.Join(folder, "checkout", "manifests", "locks")},
	}
}

// branchCrash is a task that branches, with siblings that all live at once and identities of their own.
func branchCrash(t *testing.T, folder string) *crashtest.Harness {
	state := newState(t, folder, "branch")
	copyTiny(t, folder, state)
	return &crashtest.Harness{
		Arm: "branch", Program: crashProgram(state), State: state, Criu: true,
		Run: []string{"-t", "rollouts=1", "--arm", "drums", "--reset", "restore", filepath.Join(folder, "checkout", "manifests", "branch")},
	}
}

// campaignCrash is an experiment: two arms, restore and cold, slots beside each other and a pool, and the comparison at its end.
func campaignCrash(t *testing.T, folder string) *crashtest.Harness {
	manifest := soakManifest(t, folder, "campaign")
	text := strings.Replace(renameTiny, `reset: ["restore"]`, "reset: [\"restore\", \"cold\"]\n\t\tslots: 2\n\t\tpool: 1", 1)
	if err := os.WriteFile(filepath.Join(manifest, "soak.cue"), []byte(text), 0o644); err != nil || text == renameTiny {
		t.Fatal("the manifest cannot be changed", err)
	}
	state := filepath.Join(folder, "campaign")
	return &crashtest.Harness{
		Arm: "campaign", Program: crashProgram(state), State: state, Campaign: true,
		Run: []string{"-t", "rollouts=3", "--arm", "drums", "--arm", "oci", manifest},
	}
}

// fuseCrash is the drums arm with the image shown by a storage daemon: what is
// different is the beginning of a run. It comes after drumsCrash and uses its state.
func fuseCrash(t *testing.T, folder string) *crashtest.Harness {
	path := filepath.Join(folder, "checkout", "manifests", "locks", "locks.cue")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin = "arms: drums: {"
	changed := strings.Replace(string(text), begin, begin+"\n\t\tattach: \"fuse\"", 1)
	if changed == string(text) {
		t.Fatalf("%s has no %q", path, begin)
	}
	if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(folder, "drums")
	return &crashtest.Harness{
		Arm: "drums-fuse", Program: crashProgram(state), State: state, Lines: 22,
		Run: []string{"-t", "rollouts=1", "--arm", "drums", "--reset", "restore", filepath.Dir(path)},
	}
}

// qemuCrash is the qemu arm, emulated, by one method of snapshots. It comes after
// drumsCrash and uses its copies. The windows at lines of the ledger are those of
// the first method: the others own the same things.
func qemuCrash(method string) func(*testing.T, string) *crashtest.Harness {
	return func(t *testing.T, folder string) *crashtest.Harness {
		state, dir := filepath.Join(folder, "qemu"), filepath.Join(folder, "checkout", "manifests", "crash")
		_, err := os.Stat(dir)
		warm := err == nil // by another method
		if !warm {
			newState(t, folder, "qemu")
			err := errors.Join(
				copyFile(filepath.Join(folder, "drums", "images", "tiny.qcow2"), filepath.Join(state, "images", "tiny.qcow2")),
				os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "crash.cue"), []byte(machineManifest), 0o644),
			)
			if err != nil {
				t.Fatal(err)
			}
		}
		h := &crashtest.Harness{
			Arm: "qemu-" + method, Program: crashProgram(state), State: state, QMP: 4, Warm: warm,
			Run: []string{"--arm", "qemu", "--reset", "restore", "-t", "snapshot=" + method, dir},
		}
		if h.Lines = 40; method != qemu.MethodFile { // up to the first slot that was restored: the next ones are alike
			h.Lines = -1
		}
		return h
	}
}

// machineManifest has no interpreter in it, which takes longer to start under
// emulation than the machine takes to boot.
const machineManifest = `package crash

import (
	"drumsbench.example/manifests/pins"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

bench.#Manifest & {
	apiVersion: "bench/v1alpha1"
	name:       "crash"
	image: {file: "tiny.qcow2", sha256: pins.tiny}
	network: "none"
	guest: {
		services: [{name: "holder", ready: "/run/held", exec: ["/usr/bin/flock", "/root/lock", "/bin/sh", "-c", "touch /run/held; exec sleep 1000000"]}]
		server: {port: 5000, exec: ["/usr/local/bin/guestd", "init"], sha256: pins.guestd}
	}
	resources: {vcpus: 1, memory: "256MiB", swap: "0", pids: 128}
	task: {id: "touch", oracle: [{exec: ["/usr/bin/touch", "/root/done"]}]}
	policy: oracle: {}
	checker: {exec: ["/usr/bin/test", "-e", "/root/done"], success: exit: 0, failure: exit: 1}
	canary: file: "/root/.canary"
	readiness: {period: "10ms", deadline: "60s"}
	checkpoint: establishedTCP: "refuse"
	arms: qemu: {
		accel:    "tcg"
		snapshot: *"file" | "inplace" | "loadvm" @tag(snapshot)
	}
	experiment: {reset: ["restore"], rollouts: 1}
}
`

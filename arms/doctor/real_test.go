package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
}

// left is everything that a probe of ours could leave: mounts, cgroups, loop
// devices, files below dir. Another test's doctor may be at work meanwhile: what
// is left stays, what is not goes.
func left(t *testing.T, dir string) (what string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if what = leftNow(t, dir); what == "" {
			return ""
		}
	}
	return what
}

func leftNow(t *testing.T, dir string) string {
	t.Helper()
	var found []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, prefix) {
			found = append(found, line)
		}
	}
	h := This("/nowhere")
	groups, err := h.groups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if strings.Contains(g, prefix) {
			found = append(found, g)
		}
	}
	for _, pattern := range []string{"/sys/block/loop*/loop/backing_file", filepath.Join(dir, prefix+"*"), filepath.Join(os.TempDir(), prefix+"*")} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, _ := os.ReadFile(name) // a device may go meanwhile
			if strings.Contains(name+string(text), prefix) {
				found = append(found, name+" "+string(text))
			}
		}
	}
	return strings.Join(found, "\n")
}

// Each probe works on the machine that the tests are for, and leaves nothing behind.
func TestProbesOnThisHost(t *testing.T) {
	asRoot(t)
	dir := t.TempDir()
	h := This(dir)
	g, err := h.hierarchies()
	if err != nil || g.v2 == "" {
		t.Fatalf("no v2 hierarchy shows our own group: %+v %v", g, err)
	}
	for name, probe := range map[string]func() error{
		"overlay":        func() error { return h.Overlay(dir) },
		"loop":           func() error { return h.Loop(dir) },
		"fuse":           func() error { return h.Fuse(dir) },
		"group":          func() error { return h.Group(context.Background(), g.v2) },
		"private groups": func() error { return h.PrivateGroups(context.Background(), g.group) },
		"write":          func() error { return h.Write(dir) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := probe(); err != nil {
				t.Error(err)
			}
			if what := left(t, dir); what != "" {
				t.Errorf("it left\n%s", what)
			}
		})
	}
}

// A probe whose effect is not there fails, whatever the calls return.
func TestProbesCanFail(t *testing.T) {
	asRoot(t)
	dir := t.TempDir()
	if err := probeGroup(context.Background(), dir); err == nil || !strings.Contains(err.Error(), "no cgroup.kill") {
		t.Errorf("a folder passed for a cgroup: %v", err)
	}
	g, err := This(dir).hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	if v1, ok := g.v1["pids"]; ok {
		if err := probeGroup(context.Background(), v1.dir); err == nil {
			t.Error("a v1 group passed for one with cgroup.kill")
		}
	}
	for name, probe := range map[string]func(string) error{"overlay": probeOverlay, "loop": probeLoop, "fuse": probeFuse, "write": probeWrite} {
		if err := probe("/proc"); err == nil {
			t.Errorf("%s works in /proc", name)
		}
	}
	// An overlay over an overlay has no place for an upper layer: the kernel says so, or drops options in silence.
	err = inPrivateMounts(func() error {
		at := func(name string) string { return filepath.Join(dir, name) }
		for _, name := range []string{"l", "u", "w", "m"} {
			if err := os.Mkdir(at(name), 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount("overlay", at("m"), "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", at("l"), at("u"), at("w"))); err != nil {
			return err
		}
		defer unix.Unmount(at("m"), unix.MNT_DETACH)
		temporary := at("m/inner")
		if err := os.Mkdir(temporary, 0o755); err != nil {
			return err
		}
		// probeOverlay takes a thread of its own, which sees none of this mount: so its parts are used.
		fd, err := unix.Open(temporary, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		err = probeOverlay(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err == nil || !strings.Contains(err.Error(), "upper") {
			return fmt.Errorf("an upper layer on an overlay: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	plain := t.TempDir()
	for _, name := range []string{"upper", "lower", "merged"} {
		if err := errors.Join(os.Mkdir(filepath.Join(plain, name), 0o755), os.WriteFile(filepath.Join(plain, name, "removed"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := useOverlay(func(name string) string { return filepath.Join(plain, name) }); !errors.Is(err, errNotSeen) {
		t.Errorf("folders passed for an overlay: %v", err)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	if _, err := unix.Write(pipe[1], []byte("no request of the kernel")); err != nil {
		t.Fatal(err)
	}
	if err := firstRequest(pipe[0]); !errors.Is(err, errNotSeen) {
		t.Errorf("a pipe passed for /dev/fuse: %v", err)
	}
	if what := left(t, dir); what != "" {
		t.Errorf("left:\n%s", what)
	}
}

// Whatever /dev/kvm says, it says it in a way that can be judged.
func TestKVMOnThisHost(t *testing.T) {
	k, err := probeKVM()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat("/dev/kvm"); err == nil {
			t.Error("it is there")
		}
	case err == nil && k.VM && k.VCPU:
		if k.API != 12 || k.Err != nil {
			t.Errorf("%+v", k)
		}
	case err == nil && k.Err == nil:
		t.Errorf("it makes nothing, and does not say why: %+v", k)
	}
}

func TestCriuOnThisHost(t *testing.T) {
	asRoot(t)
	state := os.Getenv("DRUMSBENCH_STATE")
	if state == "" {
		state = "/var/lib/drumsbench"
	}
	h := This(state)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tool, err := h.Tool(ctx)
	if err != nil {
		t.Fatalf("%v; run scripts/setup", err)
	}
	if err := h.Check(ctx, tool); err != nil {
		t.Error(err)
	}
	if v, err := h.Version(ctx, tool.Path); err != nil || v != tool.Version {
		t.Errorf("--version says %q, %v; the request says %q", v, err, tool.Version)
	}
	if program := h.recordedCriu(); program == "" {
		t.Error("the state directory names no criu")
	}
	// One that answers no request fails the check, and nothing stays of it.
	if err := h.Check(ctx, criu.Tool{Path: "/bin/false"}); err == nil {
		t.Error("/bin/false passed for criu")
	}
	if what := left(t, state); what != "" {
		t.Errorf("left:\n%s", what)
	}
}

func program(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "criu")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestVersion(t *testing.T) {
	if v, err := version(context.Background(), program(t, `echo "Version: 3.17.1"; echo "GitID: x"`)); err != nil || v != "3.17.1" {
		t.Errorf("%q %v", v, err)
	}
	for _, text := range []string{"exit 1", "echo nothing", "kill -9 $$"} {
		if v, err := version(context.Background(), program(t, text)); err == nil {
			t.Errorf("%s: %q", text, v)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := version(ctx, program(t, "exec sleep 60")); err == nil {
		t.Error("one that does not answer has a version")
	}
}

func TestFind(t *testing.T) {
	name := program(t, "")
	dir := filepath.Dir(name)
	if path, err := find("criu", []string{"", "relative", "/nowhere", dir}); err != nil || path != name {
		t.Errorf("%q %v", path, err)
	}
	if err := os.Chmod(name, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dirs := range [][]string{{dir}, {"/nowhere"}, nil} {
		if path, err := find("criu", dirs); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: %q %v", dirs, path, err)
		}
	}
}

func TestLastErrors(t *testing.T) {
	name := filepath.Join(t.TempDir(), "check.log")
	if err := os.WriteFile(name, []byte("(00.1) Error (a.c:1): one\n(00.2) Warn (b.c:2): two\n(00.3) Error (c.c:3): three\n(00.4) Error (d.c:4): four\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if have := lastErrors(name); have != "(c.c:3): three; (d.c:4): four" {
		t.Error(have)
	}
	if have := lastErrors("/nowhere"); have != "" {
		t.Error(have)
	}
}

func TestSpaceOnThisHost(t *testing.T) {
	s, err := readSpace(t.TempDir())
	if err != nil || s.Bytes == 0 {
		t.Errorf("%+v %v", s, err)
	}
	if _, err := readSpace("/nowhere"); err == nil {
		t.Error("what is not there has space")
	}
}

// Runs of every state, planted for real.
func TestReadRuns(t *testing.T) {
	state := t.TempDir()
	if runs, err := readRuns(state); err != nil || runs != nil {
		t.Errorf("no runs: %v %v", runs, err)
	}
	make := func(name string, gone bool) *record.Dir {
		d, err := record.Create(filepath.Join(state, "runs", name))
		if err != nil {
			t.Fatal(err)
		}
		id, err := d.Ledger.Intend("directory", bench.Claim{Path: "/claimed/" + name})
		if err == nil && gone {
			err = d.Ledger.Gone(id)
		}
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	clean, dead, damaged := make("a/clean", true), make("a/dead", false), make("b/c/damaged", false)
	running := make("b/running", false)
	if err := errors.Join(clean.Close(), dead.Close(), damaged.Close()); err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	ledger := filepath.Join(damaged.Path, record.LedgerFile)
	data, err := os.ReadFile(ledger)
	if err == nil {
		err = os.WriteFile(ledger, append([]byte("nonsense\n"), data...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	begun := filepath.Join(state, "runs", "a", "begun") // ended before it had a ledger
	if err := errors.Join(os.Mkdir(begun, 0o755), os.WriteFile(filepath.Join(begun, record.EventsFile), nil, 0o600), os.WriteFile(filepath.Join(state, "runs", "note"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	runs, err := readRuns(state)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, r := range runs {
		name, _ := filepath.Rel(filepath.Join(state, "runs"), r.Dir)
		fmt.Fprintf(&out, "%s running %v owned %d claimed %d err %v\n", name, r.Running, len(r.Owned), len(r.Claimed), r.Err != nil)
	}
	want := "a/begun running false owned 0 claimed 0 err false\n" +
		"a/clean running false owned 0 claimed 1 err false\n" +
		"a/dead running false owned 1 claimed 1 err false\n" +
		"b/c/damaged running false owned 0 claimed 1 err true\n" +
		"b/running running true owned 0 claimed 1 err false\n"
	if out.String() != want {
		t.Errorf("have\n%swant\n%s", out.String(), want)
	}
	health, err := Diagnose(context.Background(), This(state), "fake")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Join(bad(health), "\n")
	if !strings.Contains(lines, filepath.Join("a", "dead")+" still owns 1 directory and has no engine") || !strings.Contains(lines, "the ledger of "+damaged.Path+" cannot be read") || strings.Contains(lines, running.Path) {
		t.Errorf("%s", lines)
	}
}

// This host as it is: whatever it lacks, the doctor says it in whole findings and in time.
func TestDiagnoseThisHost(t *testing.T) {
	asRoot(t)
	state := t.TempDir() // without a criu: that is a lack
	start := time.Now()
	health, err := Diagnose(context.Background(), This(state), "drums")
	if err != nil {
		t.Fatal(err)
	}
	found := map[bench.Name]string{}
	for _, f := range health.Findings {
		if f.Severity != OK && f.Remedy == "" {
			t.Errorf("no remedy: %+v", f)
		}
		found[f.Subject] = f.Severity
	}
	if health.Verdict != Lack || found["criu"] != Lack || found["overlayfs"] != OK || found["loop"] != OK || found["root"] != OK || found["cgroup2"] == Lack {
		t.Errorf("%s %v", health.Verdict, bad(health))
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	if what := left(t, state); what != "" {
		t.Errorf("left:\n%s", what)
	}
	var refused *engine.Error
	if _, err := Diagnose(context.Background(), This(state), "x"); !errors.As(err, &refused) {
		t.Error(err)
	}
}

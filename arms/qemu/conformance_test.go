package qemu

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/arms/armtest"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// light is the workload without its interpreter, which takes longer to start
// under emulation than the machine takes to boot; one lock is held all the same.
func light(t testing.TB) bench.Manifest {
	m := manifest(t)
	m.Guest.Services = []bench.Service{{Name: "holder", Ready: "/run/held",
		Exec: []string{"/usr/bin/flock", "/root/lock", "/bin/sh", "-c", "touch /run/held; exec sleep 1000000"}}}
	return m
}

// apart is set in a process that runs one test and nothing else.
const apart = "DRUMS_TEST_APART"

// alone says that this process is there for the test. Elsewhere it starts such a one,
// beside the other tests, and tells what became of it. What looks at its own process
// (children, goroutines, network namespaces that it holds) must be alone in it.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(apart) == t.Name() {
		return true
	}
	t.Parallel()
	pattern := "^" + t.Name() + "$"
	if _, below, ok := strings.Cut(flag.Lookup("test.run").Value.String(), "/"); ok {
		pattern += "/" + below
	}
	args := []string{"-test.run=" + pattern}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	if deadline, ok := t.Deadline(); ok { // it ends before we are ended
		args = append(args, "-test.timeout="+(time.Until(deadline)*9/10).String())
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), apart+"="+t.Name())
	out, err := cmd.CombinedOutput()
	if err != nil || testing.Verbose() {
		t.Logf("%s", out)
	}
	if err != nil {
		t.Errorf("in a process of its own: %v", err)
	} else if !strings.Contains(string(out), "PASS") || strings.Contains(string(out), "no tests to run") {
		t.Errorf("it did not run in a process of its own: %s", out)
	}
	return false
}

func TestConformance(t *testing.T) {
	if alone(t) {
		conforms(t)
	}
}

func conforms(t *testing.T) {
	m := light(t)
	base := filepath.Join(stateDir(), "work")
	if err := os.MkdirAll(base, 0o755); err != nil {
		t.Fatal(err)
	}
	armtest.Run(t, armtest.Harness{
		New:      func(t *testing.T) engine.Arm { return newArm(t, MethodFile) },
		Manifest: m, State: stateDir(), Base: base,
		// A boot for each moment: one in the midst of the work. At once is a test of its own; twenty resets are TestMethods.
		Cancel: []time.Duration{100 * time.Millisecond}, Resets: 3, Siblings: 2,
		LockSubjects: []string{"FLOCK WRITE lock on /root/lock bytes 0-EOF"},
	})
}

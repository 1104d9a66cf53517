package qemu

import (
	"os"
	"path/filepath"
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

func TestConformance(t *testing.T) {
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

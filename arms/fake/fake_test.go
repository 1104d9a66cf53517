package fake

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/drumsbench/drumsbench/arms/armtest"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// manifest is a workload for the fake arm; its image is made in a state directory of the test.
func manifest(t *testing.T) (m bench.Manifest, state string) {
	t.Helper()
	state = t.TempDir()
	content := []byte("an image that nobody reads\n")
	if err := os.MkdirAll(filepath.Join(state, "images"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "images", "fake.qcow2"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	return bench.Manifest{
		ApiVersion: engine.APIVersion, Name: "fake",
		Image: bench.Image{File: "fake.qcow2", Sha256: bench.SHA256(hex.EncodeToString(sum[:]))}, Network: "none",
		Guest: bench.Guest{User: "root", Home: "/root",
			Services: []bench.Service{{Name: "holder", Exec: []string{"/usr/bin/holder", "--lock"}, Ready: "/run/holder.ready"}},
			Server:   bench.Server{Port: 5000, Sha256: ServerSHA256(), Exec: []string{serverPath, "init"}}},
		Resources: bench.Resources{Vcpus: 2, Memory: "256MiB", Swap: "0", Pids: 64},
		Canary:    bench.Canary{File: "/root/.canary"},
		Readiness: bench.Readiness{Server: true, Windows: []bench.Window{}, Probes: []bench.Command{}, Period: "1ms", Deadline: "10s"},
	}, state
}

func arm(t *testing.T, faults ...string) engine.Arm {
	t.Helper()
	a, err := New(bench.FakeSettings{Faults: faults})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestConformance(t *testing.T) {
	m, state := manifest(t)
	armtest.Run(t, armtest.Harness{
		New: func(t *testing.T) engine.Arm { return arm(t) }, Manifest: m, State: state,
		LockSubjects: []string{"pid 2 POSIX READ lock on /run/mapped.lock bytes 0-EOF", "pid 2 POSIX READ lock on /run/plain.lock bytes 0-EOF"},
	})
}

// With verbs that take time a cancellation meets them in their midst.
func TestConformanceWhenSlow(t *testing.T) {
	m, state := manifest(t)
	armtest.Run(t, armtest.Harness{New: func(t *testing.T) engine.Arm { return arm(t, "slow") }, Manifest: m, State: state, Resets: 3})
}

// The same with slots that another arm of this process takes over.
func TestConformanceOfOutliving(t *testing.T) {
	m, state := manifest(t)
	armtest.Run(t, armtest.Harness{New: func(t *testing.T) engine.Arm { return Outliving{arm(t).(*Arm)} }, Manifest: m, State: state, Resets: 3})
}

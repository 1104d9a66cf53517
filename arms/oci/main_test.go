package oci

import (
	"context"
	"os"
	"testing"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/hostfacts"
	"github.com/drumsbench/drumsbench/arms/tree/treetest"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func stateDir() string {
	if s := os.Getenv("DRUMSBENCH_STATE"); s != "" {
		return s
	}
	return "/var/lib/drumsbench"
}

// manifest is manifests/locks with the pins of the image that scripts/prepare built.
func manifest(t testing.TB, tags ...string) bench.Manifest {
	t.Helper()
	m := treetest.Manifest(t, stateDir(), tags...)
	m.Arms = bench.Arms{Oci: &bench.OCISettings{Locks: "repair", Sharing: "kept", Attach: "raw", Namespace: "holder", Cgroups: "cgroupfs"}}
	return m
}

func newArm(t testing.TB, m bench.Manifest) *Arm {
	t.Helper()
	tool, err := criu.Locate(context.Background(), stateDir())
	if err != nil {
		t.Fatal(err)
	}
	program := bench.Fact{Name: engine.EngineDigest, Known: true, Value: "this test", Source: "test"}
	runc, err := Locate(context.Background(), stateDir())
	if err != nil {
		t.Fatal(err)
	}
	arm, err := New(*m.Arms.Oci, runc, tool, append(hostfacts.Read(), program))
	if err != nil {
		t.Fatal(err)
	}
	return arm
}

var harness = treetest.Harness{
	State:    stateDir(),
	New:      func(t testing.TB, m bench.Manifest) treetest.Arm { return newArm(t, m) },
	Manifest: manifest,
}

func workspace(t testing.TB) (*engine.Workspace, *record.Dir) { return harness.Workspace(t) }

// execute runs the manifest's plan on an arm and returns the outcomes by step.
func execute(t testing.TB, arm engine.Arm, m bench.Manifest, reset string) (engine.Result, map[string]bench.StepOutcome, bench.Record) {
	t.Helper()
	return harness.Execute(t, arm, m, reset)
}

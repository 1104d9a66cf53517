package oci

import (
	"path/filepath"
	"testing"

	"github.com/drumsbench/drumsbench/arms/armtest"
	"github.com/drumsbench/drumsbench/engine"
)

func TestConformance(t *testing.T) {
	m := manifest(t)
	armtest.Run(t, armtest.Harness{
		New:      func(t *testing.T) engine.Arm { return newArm(t, m) },
		Manifest: m, State: stateDir(), Base: filepath.Join(stateDir(), "work"),
		LockSubjects: []string{
			"POSIX READ lock on /var/lib/locks/plain bytes 100-199",
			"POSIX READ lock on /var/lib/locks/mapped bytes 4096-4607",
			"POSIX WRITE lock on /var/lib/locks/tail bytes 64-EOF",
			"POSIX READ lock on /var/lib/locks/wal.db-shm bytes 128-128",
		},
	})
}

// TestTwentyResets runs the whole plan with twenty resets; execute compares the
// host before and after: mounts, namespaces, cgroups, loop devices, processes.
func TestTwentyResets(t *testing.T) {
	m := manifest(t, "rollouts=18") // and the two controls
	res, _, r := execute(t, newArm(t, m), m, "restore")
	if res.Verdict != engine.RunPassed {
		t.Fatalf("%s: %s", res.Verdict, res.Reason)
	}
	if len(r.Rollouts) != 20 {
		t.Fatalf("%d rollouts", len(r.Rollouts))
	}
	for _, o := range r.Rollouts {
		if o.Control == "none" {
			continue
		}
		if o.Class != "success" || o.Before == nil || *o.Before != 0 || o.After == nil || *o.After != 1 {
			t.Errorf("rollout %d: %+v", o.Index, o)
		}
	}
}

// Siblings share one checkpoint and reset at the same time, in one window.
func TestSiblingsThroughThePlan(t *testing.T) {
	m := manifest(t, "rollouts=6", "slots=3")
	for _, reset := range []string{"restore", "cold"} {
		res, _, r := execute(t, newArm(t, m), m, reset)
		if res.Verdict != engine.RunPassed || len(r.Rollouts) != 8 {
			t.Errorf("%s: %s: %s, %d rollouts", reset, res.Verdict, res.Reason, len(r.Rollouts))
		}
	}
}

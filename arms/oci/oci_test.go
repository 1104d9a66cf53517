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

func TestTwentyResets(t *testing.T) { harness.TwentyResets(t) }

func TestSiblingsThroughThePlan(t *testing.T) { harness.Siblings(t) }

func TestAdopt(t *testing.T) { harness.Adopt(t) }

func TestAdoptRefuses(t *testing.T) { harness.AdoptRefuses(t) }

func TestEscapes(t *testing.T) { harness.Escapes(t) }

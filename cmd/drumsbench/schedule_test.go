//go:build linux && !elsewhere

package main

import (
	"slices"
	"testing"

	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Judging counts on the order in which run takes the arms.
func TestArmsRunInTheJudgedOrder(t *testing.T) {
	m := bench.Manifest{Arms: bench.Arms{Drums: &bench.DrumsSettings{}, Oci: &bench.OCISettings{}, Qemu: &bench.QEMUSettings{}, Fake: &bench.FakeSettings{}}}
	if run, judged := armKinds(m.Arms), register.ArmsInTurn(m); !slices.Equal(run, judged) {
		t.Errorf("run takes %v, judge %v", run, judged)
	}
}

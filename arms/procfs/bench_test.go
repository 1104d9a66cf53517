package procfs_test

import (
	"testing"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/procfs/slottest"
)

// BenchmarkEnclosure checks a slot of five processes that holds one of everything.
func BenchmarkEnclosure(b *testing.B) {
	s := slottest.Start(b)
	busy(s)
	for b.Loop() {
		if fs, err := procfs.Enclosure(s.Init, repair); err != nil || len(fs) > 0 {
			b.Fatal(fs, err)
		}
	}
}

func BenchmarkProcesses(b *testing.B) {
	s := slottest.Start(b)
	busy(s)
	for b.Loop() {
		if _, _, err := procfs.Processes(s.Init); err != nil {
			b.Fatal(err)
		}
	}
}

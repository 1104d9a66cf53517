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

// BenchmarkTasks finds the slot's processes among all of the host's, BenchmarkTree by their descent.
func BenchmarkTasks(b *testing.B) { list(b, procfs.Tasks) }
func BenchmarkTree(b *testing.B)  { list(b, procfs.Tree) }

func list(b *testing.B, tasks func(int) ([]procfs.Task, error)) {
	s := slottest.Start(b)
	busy(s)
	for b.Loop() {
		if _, err := tasks(s.Init); err != nil {
			b.Fatal(err)
		}
	}
}

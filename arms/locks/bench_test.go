package locks_test

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/locks"
	"github.com/drumsbench/drumsbench/arms/procfs/slottest"
)

// BenchmarkCensus reads the locks of a stopped slot of three processes.
func BenchmarkCensus(b *testing.B) {
	slot := slottest.Start(b)
	a := slot.Spawn("a")
	slot.Spawn("b")
	take(a, open(a, "/root/shm", unix.O_RDWR), unix.F_SETLK, unix.F_RDLCK, 128, 1)
	slot.Stop()
	for b.Loop() {
		if ls, _, err := locks.Census(slot.Init); err != nil || len(ls) != 1 {
			b.Fatal(ls, err)
		}
	}
}

// BenchmarkRepair sets 16 locks of one process, each time anew: a lock that is held already costs the same.
func BenchmarkRepair(b *testing.B) {
	const n = 16
	slot := slottest.Start(b)
	a := slot.Spawn("a")
	fd := open(a, "/root/shm", unix.O_RDWR)
	for i := range int64(n) {
		take(a, fd, unix.F_SETLK, unix.F_WRLCK, 100*i, 10)
	}
	wanted, _, err := locks.Census(slot.Init)
	if err != nil || len(wanted) != n {
		b.Fatal(wanted, err)
	}
	slot.Stop()
	var first, others float64
	for b.Loop() {
		report, err := locks.Repair(context.Background(), slot.Init, wanted)
		if err != nil {
			b.Fatal(err)
		}
		first += float64(report.Restored[0].Duration.Nanoseconds())
		for _, r := range report.Restored[1:] {
			others += float64(r.Duration.Nanoseconds())
		}
	}
	b.ReportMetric(first/float64(b.N), "ns/first-lock")
	b.ReportMetric(others/float64(b.N*(n-1)), "ns/further-lock")
}

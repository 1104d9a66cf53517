package criu

import (
	"errors"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/stats"
)

// DumpStats are CRIU's own times and counts of a dump (criu/stats.c).
type DumpStats struct {
	// Freezing is the time to stop the tree, Frozen how long it stood; MemDump and MemWrite are parts of it.
	Freezing, Frozen, MemDump, MemWrite time.Duration
	PagesScanned, PagesWritten          uint64
	SharedPagesWritten                  uint64
}

// RestoreStats are CRIU's own times and counts of a restore.
type RestoreStats struct {
	// Forking is the time to make the tasks, Restore all of it up to their release.
	Forking, Restore            time.Duration
	PagesRestored, PagesSkipped uint64
}

// ReadDumpStats reads stats-dump from the work dir of a dump.
func ReadDumpStats(workDir string) (DumpStats, error) {
	entry, err := one[stats.StatsEntry](OpenImages(workDir), "stats-dump", stats.StatsDump)
	if err != nil {
		return DumpStats{}, err
	}
	d := entry.GetDump()
	if d == nil {
		return DumpStats{}, unknownImage(errors.New("stats-dump holds no statistics of a dump"))
	}
	return DumpStats{
		Freezing: microseconds(d.GetFreezingTime()), Frozen: microseconds(d.GetFrozenTime()),
		MemDump: microseconds(d.GetMemdumpTime()), MemWrite: microseconds(d.GetMemwriteTime()),
		PagesScanned: d.GetPagesScanned(), PagesWritten: d.GetPagesWritten(), SharedPagesWritten: d.GetShpagesWritten(),
	}, nil
}

// ReadRestoreStats reads stats-restore from the work dir of a restore.
func ReadRestoreStats(workDir string) (RestoreStats, error) {
	entry, err := one[stats.StatsEntry](OpenImages(workDir), "stats-restore", stats.StatsRestore)
	if err != nil {
		return RestoreStats{}, err
	}
	r := entry.GetRestore()
	if r == nil {
		return RestoreStats{}, unknownImage(errors.New("stats-restore holds no statistics of a restore"))
	}
	return RestoreStats{
		Forking: microseconds(r.GetForkingTime()), Restore: microseconds(r.GetRestoreTime()),
		PagesRestored: r.GetPagesRestored(), PagesSkipped: r.GetPagesSkippedCow(),
	}, nil
}

func microseconds(n uint32) time.Duration { return time.Duration(n) * time.Microsecond }

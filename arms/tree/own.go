package tree

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// criuWork is the folder, of a checkpoint and of a restored tenancy, in which criu
// leaves its log and its statistics.
const criuWork = "criu"

// count is a number that criu wrote down of itself.
type count struct {
	name  string
	value any
}

// own are facts of criu's statistics: its own times, in nanoseconds, and counts of
// pages. They are named "tool.criu."; where there are none, that is unknown.
func own(file string, err error, counts ...count) (list []bench.Fact) {
	for _, c := range counts {
		name, value := "tool.criu."+c.name, c.value
		if d, is := value.(time.Duration); is {
			name, value = name+"-ns", d.Nanoseconds()
		}
		f := bench.Fact{Name: name, View: engine.ViewHost}
		if err != nil {
			f.Reason = err.Error()
		} else {
			f.Known, f.Value, f.Source = true, fmt.Sprint(value), file
		}
		list = append(list, f)
	}
	return list
}

// dumpFacts are what criu says of the dump that made the checkpoint in dir.
func dumpFacts(dir string) []bench.Fact {
	s, err := criu.ReadDumpStats(filepath.Join(dir, criuWork))
	return own("stats-dump", err, count{"freezing", s.Freezing}, count{"frozen", s.Frozen}, count{"memory-dump", s.MemDump}, count{"memory-write", s.MemWrite},
		count{"pages-scanned", s.PagesScanned}, count{"pages-written", s.PagesWritten})
}

// RestoreFacts are what criu says of the restore that the tenancy began with. Of one
// that was started cold they are what was staged in it, of no tenancy none.
func (t *Tenancy) RestoreFacts() []bench.Fact {
	switch {
	case t == nil:
		return nil
	case t.From == nil && t.Driver != nil:
		return t.Driver.Facts()
	case t.From == nil:
		return nil
	}
	work := filepath.Join(t.Dir, criuWork)
	s, err := criu.ReadRestoreStats(work)
	list := own("stats-restore", err, count{"restore", s.Restore}, count{"forking", s.Forking}, count{"pages-restored", s.PagesRestored}, count{"pages-left", s.PagesSkipped})
	// Where the log has no times of parts nobody asked for them, and nothing is said.
	if l, err := criu.ReadLogTimes(filepath.Join(work, "restore.log")); err == nil {
		list = append(list, own("restore.log", nil, count{"log-namespaces", l.Namespaces}, count{"log-helpers", l.Helpers}, count{"log-pages", l.Pages})...)
	}
	return list
}

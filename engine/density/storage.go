package density

import (
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/stats"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// StorageOf is what runs take of the host's disk, of those that passed; nil where
// none says anything.
func StorageOf(records ...bench.Record) *bench.Storage {
	var out bench.Storage
	var slots []float64
	for _, r := range records {
		if r.Verdict != engine.RunPassed {
			continue
		}
		for _, f := range r.Facts {
			switch {
			case !f.Known:
			case strings.HasSuffix(f.Name, "/"+engine.FactImageStorage):
				out.Image = larger(out.Image, bench.Int64(f.Value))
			case strings.HasSuffix(f.Name, "/"+engine.FactCheckpointStorage):
				out.Checkpoint = larger(out.Checkpoint, bench.Int64(f.Value))
			}
		}
		for _, o := range r.Rollouts {
			if o.Stored == "" || o.Warmup || o.Control != "" || o.Class != record.Success && o.Class != record.FailedValid {
				continue
			}
			slots = append(slots, float64(number(o.Stored)))
			out.Largest = larger(out.Largest, o.Stored)
		}
	}
	out.N, out.Slot = int64(len(slots)), stats.Median(slots).Value
	if out.Image == "" && out.Checkpoint == "" && out.N == 0 {
		return nil
	}
	return &out
}

func larger(a, b bench.Int64) bench.Int64 {
	if a == "" || number(b) > number(a) {
		return b
	}
	return a
}

// storageRows are the numbers of it.
func storageRows(s *bench.Storage) []Row {
	const none = "no run that passed says"
	if s == nil {
		s = &bench.Storage{}
	}
	rows := []Row{
		{Name: "storage-image", Title: "disk of the pinned image", Unit: "MiB", Value: mebibytes(s.Image)},
		{Name: "storage-checkpoint", Title: "disk of a checkpoint with its layers", Unit: "MiB", Value: mebibytes(s.Checkpoint)},
		{Name: "storage-slot", Title: "disk of a slot's own layer, after the act", Unit: "MiB", Value: size(s.Slot), High: mebibytes(s.Largest)},
	}
	for i := range rows {
		r := &rows[i]
		switch {
		case r.Value == "":
			r.Note = none
		case r.High != "":
			r.Low, r.N, r.Of, r.Note = r.Value, strconv.FormatInt(s.N, 10), "valid rollouts", "blocks on the host's disk; from the median to the largest"
		default:
			r.Note = "blocks on the host's disk, of the largest"
		}
	}
	return rows
}

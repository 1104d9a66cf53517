package density

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// FootprintFact is what an arm needs of the host, the JSON of bench.Footprint.
const FootprintFact = "footprint"

// FootprintOf a run; nil where its record does not say.
func FootprintOf(r bench.Record) (*bench.Footprint, error) {
	var f bench.Footprint
	known, err := fact(r, FootprintFact, &f)
	if err != nil || !known {
		return nil, err
	}
	return &f, nil
}

// Need is one line of what a run needed of the host, or stored there.
type Need struct{ What, Text string }

// NeedsRows are those lines; what is not known is said to be.
func NeedsRows(f *bench.Footprint, s *bench.Storage) (rows []Need) {
	if f == nil {
		rows = append(rows, Need{"programs", "unknown: the run does not say"})
	} else {
		sum := int64(0)
		for _, p := range f.Programs {
			from := cmp.Or(p.Package, "no package")
			if len(p.Copied) > 0 {
				from = fmt.Sprintf("private copy of %d packages", len(p.Copied))
			}
			rows = append(rows, Need{"program", fmt.Sprintf("%s: %s MiB, %s", p.Path, mebibytes(p.Bytes), from)})
			sum += number(p.Bytes)
		}
		rows = append(rows, Need{"programs", fmt.Sprintf("%d, %s MiB", len(f.Programs), mebibytes(whole(sum)))})
		if f.Installed != "" {
			rows = append(rows, Need{"packages", fmt.Sprintf("%d with all that they depend on, %s MiB installed", len(f.Packages), mebibytes(f.Installed))})
		}
		for _, p := range f.Privileges {
			held := "held"
			if !p.Held {
				held = "NOT held"
			}
			rows = append(rows, Need{"privilege", fmt.Sprintf("%s, %s: without it %s", p.Name, held, p.Why)})
		}
		for _, what := range slices.Sorted(maps.Keys(f.Unknown)) {
			rows = append(rows, Need{"unknown", what + ": " + f.Unknown[what]})
		}
	}
	if s == nil {
		return append(rows, Need{"disk", "unknown: no run that passed says"})
	}
	for _, one := range []struct {
		name string
		v    bench.Int64
	}{{"image", s.Image}, {"checkpoint", s.Checkpoint}} {
		if one.v != "" {
			rows = append(rows, Need{"disk", one.name + ": " + mebibytes(one.v) + " MiB"})
		}
	}
	if s.Slot != nil {
		rows = append(rows, Need{"disk", fmt.Sprintf("a slot's own layer after the act: median %s MiB, largest %s MiB, of %d rollouts", size(s.Slot), mebibytes(s.Largest), s.N)})
	}
	return rows
}

func mebibytes(v bench.Int64) string {
	if v == "" {
		return ""
	}
	f := float64(number(v))
	return size(&f)
}

// Privileges of a footprint by name, one after the other.
func Privileges(f bench.Footprint) string {
	var names []string
	for _, p := range f.Privileges {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

// ProgramBytes of a footprint together.
func ProgramBytes(f bench.Footprint) int64 {
	sum := int64(0)
	for _, p := range f.Programs {
		n, _ := strconv.ParseInt(string(p.Bytes), 10, 64) // the schema has checked it
		sum += n
	}
	return sum
}

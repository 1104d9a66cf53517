package record

import (
	"fmt"
	"strconv"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// PartOf is the part of an experiment that a run was, by its facts; nil for an
// ordinary run. ErrUnknown where they do not say.
func PartOf(r bench.Record) (*bench.Part, error) {
	var p bench.Part
	for _, f := range r.Facts {
		var err error
		number := func() (n int64) {
			n, err = strconv.ParseInt(f.Value, 10, 64)
			return n
		}
		switch f.Name {
		case "experiment.part":
			p.Kind = f.Value
		case "experiment.slots":
			p.Slots = number()
		case "experiment.block":
			p.Series = number()
		case "experiment.run":
			p.Run = number()
		}
		if err != nil {
			return nil, &engine.Error{Op: "read part of experiment", Err: fmt.Errorf("%w: run %s: fact %s is %q", engine.ErrUnknown, r.Run, f.Name, f.Value)}
		}
	}
	if p.Kind == "" {
		return nil, nil
	}
	if p.Slots <= 0 {
		return nil, &engine.Error{Op: "read part of experiment", Err: fmt.Errorf("%w: run %s does not say how many slots it had", engine.ErrUnknown, r.Run)}
	}
	return &p, nil
}

package sweep

import (
	"context"
	"fmt"

	"github.com/hashicorp/go-multierror"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Take takes away things that an earlier attempt at a run made, the last first, for the
// engine that goes on with it and holds its ledger. As Sweep does, it takes what is the
// run's and nothing else, and writes down what is gone. Things that are gone already are
// passed over, so it is idempotent.
func Take(ctx context.Context, ledger *record.FileLedger, ws *engine.Workspace, things []bench.OwnedThing) error {
	s := &sweeper{Options: Options{RunDir: ws.Run, State: ws.State}, claim: claim{id: ws.ID, work: ws.Work}, ledger: ledger}
	var err error
	if s.boot, err = record.BootID(); err != nil {
		return err
	}
	wanted := map[int64]bool{}
	for _, t := range things {
		wanted[t.Id] = true
	}
	for _, o := range ledger.Open() {
		if wanted[o.ID] {
			s.open = append(s.open, o)
		}
	}
	var r Report
	if err := s.things(ctx, &r); err != nil {
		return err
	}
	var errs *multierror.Error
	for _, t := range r.Things {
		switch t.Outcome {
		case Failed:
			errs = multierror.Append(errs, fmt.Errorf("%s %s: %s", t.Kind, t.What, t.Reason))
		case Unknown:
			errs = multierror.Append(errs, fmt.Errorf("%w: %s %s: %s", engine.ErrUnknown, t.Kind, t.What, t.Reason))
		}
	}
	if err := errs.ErrorOrNil(); err != nil {
		return &engine.Error{Op: "take away what an earlier attempt made", Err: err, Hint: "drumsbench sweep takes away what the ledger owns"}
	}
	return nil
}

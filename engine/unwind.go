package engine

import "context"

// Unwind runs the run's undo stack now, last in first out, and returns its
// gathered errors. It is for the release step of what everything else stands
// on: whatever a failed step left behind must go first. Functions that are
// pushed later still run at the end of the run.
func (x *Exec) Unwind(ctx context.Context) error { return x.run.undo.run(ctx).ErrorOrNil() }

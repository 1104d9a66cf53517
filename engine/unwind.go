package engine

import (
	"context"
	"fmt"

	"github.com/hashicorp/go-multierror"
)

// Unwind runs the run's undo stack now, last in first out, and returns its
// gathered errors. It is for the release step of what everything else stands
// on: whatever a failed step left behind must go first. Functions that are
// pushed later still run at the end of the run.
func (x *Exec) Unwind(ctx context.Context) error {
	var errs *multierror.Error
	u := &x.run.undo
	for {
		u.mu.Lock()
		n := len(u.fns)
		if n == 0 {
			u.mu.Unlock()
			return errs.ErrorOrNil()
		}
		top := u.fns[n-1]
		u.fns = u.fns[:n-1]
		u.mu.Unlock()
		if !top.forgotten {
			if err := u.call(ctx, top); err != nil {
				errs = multierror.Append(errs, fmt.Errorf("undo what step %s made: %w", top.step, err))
			}
		}
	}
}

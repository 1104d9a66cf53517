package confine

import (
	"context"
	"fmt"
	"time"

	"github.com/drumsbench/drumsbench/engine"
)

// settling bounds Wait where its caller's context does not.
const settling = 30 * time.Second

// Wait waits until a first process that another program makes, runc, is confined:
// that program is in its place, with all that it holds, for a moment after it has
// said that it is done, until it executes the image's. engine.ErrUnknown if it never is.
func Wait(ctx context.Context, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	for {
		s, err := Read([]int{pid})
		if err != nil || len(s.Beyond) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: the first process is not confined: %s: %w", engine.ErrUnknown, s.Beyond[0], ctx.Err())
		case <-time.After(200 * time.Microsecond):
		}
	}
}

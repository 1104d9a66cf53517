package fake

import (
	"context"
	"fmt"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
)

// OpenCheckpoint implements engine.CheckpointOpener.
func (a *Arm) OpenCheckpoint(ctx context.Context, r engine.Root, dir string) (engine.Checkpoint, error) {
	mounted, ok := mountedRoot(r)
	if !ok {
		return engine.Checkpoint{}, fmt.Errorf("open checkpoint: root of another arm: %T", r)
	}
	cp, err := checkpoint.Open(dir)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	return cp, a.usable(ctx, mounted, cp)
}

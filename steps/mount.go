package steps

import (
	"context"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Mount compares the image with its pin and mounts it read-only.
func Mount(b *engine.Builder, at At, p bench.MountParams, in ...engine.Input) engine.Promise[engine.Root] {
	return engine.Add[engine.Root](b, at.spec(KindMount, p, deadlineMount), in...)
}

var bindMount = engine.Bind(KindMount, func(ctx context.Context, x *engine.Exec, p bench.MountParams) (engine.Root, error) {
	// What the run stands on goes last: the undo stack is last in, first out.
	x.OnRelease(x.Workspace().Release)
	if arm, ok := x.Arm().(engine.Releaser); ok {
		x.OnRelease(arm.Release)
	}
	root, err := x.Arm().Mount(ctx, x.Workspace(), p)
	if err != nil {
		return nil, err
	}
	x.OnRelease(root.Release)
	for _, f := range root.Facts() {
		x.Fact(f)
	}
	return root, nil
})

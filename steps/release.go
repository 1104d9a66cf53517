package steps

import (
	"context"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// ReleasePlace takes a slot's place away. It runs whatever happened before.
func ReleasePlace(b *engine.Builder, at At, place engine.Promise[engine.Place], after ...engine.Input) engine.Promise[engine.Released] {
	s := at.spec(KindRelease, bench.ReleaseParams{}, deadlineRelease)
	s.Release = true
	return engine.Add[engine.Released](b, s, append([]engine.Input{engine.Move(place)}, after...)...)
}

// ReleaseRoot unmounts the image, after everything that used it, and takes away
// whatever else is left of the run.
func ReleaseRoot(b *engine.Builder, at At, root engine.Promise[engine.Root], after ...engine.Input) engine.Promise[engine.Released] {
	s := at.spec(KindRelease, bench.ReleaseParams{}, deadlineRelease)
	s.Release = true
	return engine.Add[engine.Released](b, s, append([]engine.Input{engine.Read(root)}, after...)...)
}

// A step that failed before it promised anything leaves nothing here: what it
// made is on the run's undo stack or was undone by the arm.
var bindRelease = engine.Bind(KindRelease, func(ctx context.Context, x *engine.Exec, _ bench.ReleaseParams) (engine.Released, error) {
	if x.Step().Slot == "" { // the root's: all that is left goes now, and is gone when the host is looked at
		// A slot whose last step failed is still on the image: the undo stack takes it, then the image.
		if err := x.Unwind(ctx); err != nil {
			return engine.Released{}, err
		}
		return engine.Released{}, x.Workspace().Release(ctx) // also where the run ended before the mount
	}
	if r := engine.In[engine.Releaser](x, 0); r != nil {
		return engine.Released{}, r.Release(ctx)
	}
	return engine.Released{}, nil
})

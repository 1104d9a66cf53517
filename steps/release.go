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

// ReleaseRoot unmounts the image, after everything that used it.
func ReleaseRoot(b *engine.Builder, at At, root engine.Promise[engine.Root], after ...engine.Input) engine.Promise[engine.Released] {
	s := at.spec(KindRelease, bench.ReleaseParams{}, deadlineRelease)
	s.Release = true
	return engine.Add[engine.Released](b, s, append([]engine.Input{engine.Read(root)}, after...)...)
}

// A step that failed before it promised anything leaves nothing here: what it
// made is on the run's undo stack or was undone by the arm.
var bindRelease = engine.Bind(KindRelease, func(ctx context.Context, x *engine.Exec, _ bench.ReleaseParams) (engine.Released, error) {
	switch r := engine.In[engine.Releaser](x, 0).(type) {
	case nil:
		return engine.Released{}, nil
	case engine.Root:
		// A slot whose last step failed is still on the image: the undo stack takes it, then the image.
		return engine.Released{}, x.Unwind(ctx)
	default:
		return engine.Released{}, r.Release(ctx)
	}
})

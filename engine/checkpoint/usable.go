package checkpoint

import (
	"context"
	"fmt"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Usable requires that a checkpoint is whole and of this arm, of this image and
// of a host like this one: each named fact of the handle equals the one in host.
// Else it is engine.ErrRefused.
func Usable(ctx context.Context, cp engine.Checkpoint, arm string, image bench.SHA256, host []bench.Fact, names ...string) error {
	refused := func(what, want, have string) error {
		return &engine.Error{Op: "restore checkpoint", Err: fmt.Errorf("%w: it is of another %s: %s, here %s", engine.ErrRefused, what, want, have), Hint: "make the checkpoint again"}
	}
	if cp.Handle.Arm != arm {
		return refused("arm", cp.Handle.Arm, arm)
	}
	if cp.Handle.Image != image {
		return refused("image", string(cp.Handle.Image), string(image))
	}
	if err := Compatible(cp.Handle, host, names...); err != nil {
		return err
	}
	_, err := Verify(ctx, cp)
	return err
}

package steps

import (
	"context"
	"errors"
	"fmt"
	"image"
	"os"
	"path/filepath"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/screen"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps/gate"
)

// stillTime is how long a dump waits for a screen that stands still. A desktop that
// was ready a moment ago stands still but for what its manifest names.
const stillTime = time.Minute

// stillScreen takes pictures until two in a row are equal outside of what moves by itself.
func stillScreen(ctx context.Context, c *guest.Client, p bench.ScreenPolicy) ([]byte, error) {
	const op = "take picture of the screen"
	ctx, cancel := context.WithTimeout(ctx, stillTime)
	defer cancel()
	var before image.Image
	for {
		data, picture, err := pictureOf(ctx, c)
		if err != nil {
			return nil, err
		}
		if before != nil {
			part, err := screen.Differ(before, picture, p.Moving)
			if err != nil {
				return nil, err
			}
			if part == 0 {
				return data, nil
			}
		}
		before = picture
		select {
		case <-ctx.Done():
			return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: the screen did not stand still for %s", engine.ErrDeadline, stillTime),
				Hint: "name what moves by itself in the manifest: screen.moving"}
		case <-time.After(screenPeriod):
		}
	}
}

func pictureOf(ctx context.Context, c *guest.Client) ([]byte, image.Image, error) {
	data, err := c.Screenshot(ctx)
	if err != nil {
		return nil, nil, err
	}
	picture, err := screen.Decode(data)
	return data, picture, err
}

// fidelity reads the picture in the checkpoint and takes one of the restored slot.
func fidelity(ctx context.Context, x *engine.Exec, p bench.GateParams) (engine.Judgement, error) {
	if p.Screen == nil {
		return engine.Judgement{}, errors.New("compare screens: the manifest does not say how")
	}
	reading := func(data []byte, source string, err error) engine.Reading[[]byte] {
		if err != nil {
			return engine.Unknown[[]byte](err.Error(), engine.ViewGuest)
		}
		return engine.Known(data, source, engine.ViewGuest)
	}
	dumped, err := os.ReadFile(filepath.Join(engine.In[engine.Checkpoint](x, 1).Dir, engine.ScreenFile))
	before := reading(dumped, "screenshot before the dump", err)
	data, err := dial(engine.In[engine.Slot](x, 0), p.Port).Screenshot(ctx)
	return gate.JudgeScreen(*p.Screen, p.Review, before, reading(data, "screenshot", err)), nil
}

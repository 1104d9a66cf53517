package steps

import (
	"context"
	"errors"
	"fmt"
	"image"
	"strconv"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/screen"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// restTime is how long a screen stands still that is taken for the one before an input anew.
const restTime = time.Second

// roundTrip has an input change the screen that was accepted last, and another
// one take it back. An input that came to nothing is no second time tried: it may
// come to something later, when an agent acts. Only where both were answered and all
// else went on meanwhile, as a window does that is still loading, is it done again,
// from the screen that came to rest. What it could not see until ctx ends is the
// error; the pictures are evidence.
func (w *watch) roundTrip(ctx context.Context, x *engine.Exec, c *guest.Client, moving []bench.Region) error {
	in := w.rule.Input
	if in == nil {
		return nil
	}
	failed := func(what string, err error) error {
		if kept := w.keep(x, "screen-input.png"); kept != nil {
			err = errors.Join(err, kept)
		}
		return &engine.Error{Op: "have the screen answer an input", Err: fmt.Errorf("%s: %w", what, err),
			Hint: "look at screen.png and screen-input.png: a frozen screen, a window without the focus, or a pointer that is hidden while somebody types and has to be moved; what moves by itself is named in screen.moving"}
	}
	began := time.Now()
	for rounds := 1; ; rounds++ {
		before := w.picture
		if err := send(ctx, x, c, "input", in.Act); err != nil {
			return failed("input", err)
		}
		var a screen.Answer
		err := w.until(ctx, c, func(now image.Image) (ok bool, text string, err error) {
			a, ok, err = screen.Answered(before, now, *in, moving)
			return ok, fmt.Sprintf("%.6f of the region changed (want %.6f), %.6f of all else (want at most %.6f)", a.Region, in.Least, a.Elsewhere, in.Elsewhere), err
		})
		if err != nil {
			return failed("the screen did not change as predicted", err)
		}
		if err := w.keep(x, "screen-input.png"); err != nil {
			return err
		}
		acted, rest, since := w.picture, w.picture, time.Now()
		if err := send(ctx, x, c, "undo", in.Undo); err != nil {
			return failed("undo", err)
		}
		undone := false
		err = w.until(ctx, c, func(now image.Image) (bool, string, error) {
			part, err := screen.Differ(before, now, moving)
			if undone = part == 0; undone || err != nil {
				return undone, "", err
			}
			moved, err := screen.Differ(rest, now, moving)
			if moved != 0 || err != nil {
				rest, since = now, time.Now()
			}
			text := fmt.Sprintf("%.6f of it differs", part)
			if err != nil || time.Since(since) < restTime {
				return false, text, err
			}
			back, _, err := screen.Answered(acted, now, *in, moving)
			return back.Region >= in.Least, text, err
		})
		if err != nil {
			return failed("the screen is not as it was before the input", err)
		}
		if !undone {
			continue
		}
		part := func(f float64) string { return strconv.FormatFloat(f, 'f', 4, 64) }
		fact := func(name, value string) bench.Fact {
			return bench.Fact{Name: name, Known: true, Value: value, Source: "screenshots", View: engine.ViewGuest}
		}
		x.Fact(fact("input-changed", part(a.Region)), fact("input-changed-elsewhere", part(a.Elsewhere)), fact("input-rounds", strconv.Itoa(rounds)),
			fact("input-undone", "true"), fact("input_ns", strconv.FormatInt(time.Since(began).Nanoseconds(), 10)))
		return nil
	}
}

func send(ctx context.Context, x *engine.Exec, c *guest.Client, name string, commands []bench.Command) error {
	for i, cmd := range commands {
		if err := command(ctx, x, c, fmt.Sprintf("%s %d", name, i), cmd); err != nil {
			return err
		}
	}
	return nil
}

// until takes pictures until holds does; text says what was seen last. The last picture stays.
func (w *watch) until(ctx context.Context, c *guest.Client, holds func(image.Image) (ok bool, text string, err error)) error {
	last := "no picture was taken"
	for {
		data, picture, err := pictureOf(ctx, c)
		w.pictures++
		switch {
		case ctx.Err() != nil: // what it echoes says nothing
		case err != nil:
			last = err.Error()
		default:
			w.data, w.picture = data, picture
			ok, text, err := holds(picture)
			if err != nil {
				return err
			}
			if ok {
				return nil
			}
			last = text
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", engine.ErrDeadline, last)
		case <-time.After(screenPeriod):
		}
	}
}

package engine

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/go-multierror"
)

// undoStack holds what takes things away again when nothing else did.
type undoStack struct {
	limit, grace time.Duration

	mu   sync.Mutex
	fns  []*undo
	done bool
}

type undo struct {
	step      string
	f         func(context.Context) error
	forgotten bool
}

// push adds f. A step that was given up may push after the stack has run: f then runs at once.
func (u *undoStack) push(step string, f func(context.Context) error) (forget func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	entry := &undo{step: step, f: f}
	if u.done {
		go u.call(context.Background(), entry)
		return func() {}
	}
	u.fns = append(u.fns, entry)
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		entry.forgotten, entry.f = true, nil
		for n := len(u.fns); n > 0 && u.fns[n-1].forgotten; n-- {
			u.fns = u.fns[:n-1]
		}
	}
}

func (u *undoStack) pop() *undo {
	u.mu.Lock()
	defer u.mu.Unlock()
	for n := len(u.fns); n > 0; n-- {
		top := u.fns[n-1]
		u.fns = u.fns[:n-1]
		if !top.forgotten {
			return top
		}
	}
	return nil
}

// close runs what is left; whatever is pushed from here on runs at once.
func (u *undoStack) close(ctx context.Context) *multierror.Error {
	errs := u.run(ctx)
	u.mu.Lock()
	u.done = true
	u.mu.Unlock()
	return multierror.Append(errs, u.run(ctx).WrappedErrors()...)
}

// run calls everything, last in first out. ctx must not be one that can be cancelled.
func (u *undoStack) run(ctx context.Context) *multierror.Error {
	var errs *multierror.Error
	for entry := u.pop(); entry != nil; entry = u.pop() {
		if err := u.call(ctx, entry); err != nil {
			errs = multierror.Append(errs, fmt.Errorf("undo what step %s made: %w", entry.step, err))
		}
	}
	return errs
}

// call gives up on a function that does not heed its context, so that the others get their turn.
func (u *undoStack) call(ctx context.Context, entry *undo) error {
	ctx, cancel := context.WithTimeout(ctx, u.limit)
	defer cancel()
	f := entry.f
	result := make(chan error, 1)
	go func() {
		err := fmt.Errorf("the function ended its goroutine")
		defer func() {
			if cause := recover(); cause != nil {
				err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
			}
			result <- err
		}()
		err = f(ctx)
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-result:
		return err
	case <-time.After(u.grace):
		return fmt.Errorf("%w: it still runs %v after its deadline of %v", ErrDeadline, u.grace, u.limit)
	}
}

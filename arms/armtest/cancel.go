package armtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// after runs f with a context that is cancelled after d, and requires that f
// returns soon after, with the context's error if it failed.
func (r *run) after(d time.Duration, f func(ctx context.Context) error) error {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.ctx(), d)
	defer cancel()
	done := make(chan error, 1)
	start := time.Now()
	go func() { done <- f(ctx) }()
	select {
	case err := <-done:
		if late := time.Since(start) - d; late > r.h.Bound {
			r.t.Errorf("returned %s after it was cancelled", late)
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) && !errors.Is(err, engine.ErrDeadline) {
			r.t.Errorf("cancelled after %s: %v, want the context's error wrapped", d, describe(err))
		}
		return err
	case <-time.After(d + 4*r.h.Bound):
		r.t.Fatalf("did not return within %s after it was cancelled", 4*r.h.Bound)
		return nil
	}
}

// A context that is done already: no verb begins.
func testCancelledBefore(t *testing.T, h Harness) {
	r := begin(t, h)
	defer r.finish()
	done, cancel := context.WithCancel(r.ctx())
	cancel()
	canceled := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context: %v, want context.Canceled wrapped", what, describe(err))
		}
	}
	root, err := r.arm.Mount(done, r.ws, bench.MountParams{Image: h.Manifest.Image})
	if canceled("mount", err); err == nil {
		root.Release(r.ctx())
	}
	s, err := r.arm.Provision(done, r.ws, r.root, nil, r.provisionParams("slot-0"))
	if canceled("provision", err); err == nil {
		r.keep(s)
	}
	slot := r.prepared("slot-1")
	ref := r.reference(slot)
	_, _, err = slot.Dump(done, r.dumpParams(), ref)
	canceled("dump", err)
	noCheckpoints(t, r)
	r.answers(slot)
	cp, place := r.dump(slot)
	restored := r.resume(r.restore(cp, place, "slot-1"))
	r.ready(restored)
	stopped, err := r.arm.Restore(done, r.ws, r.root, cp, restored, r.restoreParams("slot-1"))
	if canceled("restore", err); err == nil {
		r.resume(stopped)
	}
	r.answers(restored)
}

// Each cancellation is a run of its own, so that each ends with nothing left.
func testCancelProvision(t *testing.T, h Harness) {
	for _, d := range h.Cancel {
		t.Run(fmt.Sprint(d), func(t *testing.T) {
			defer leaves(t, h)()
			r := begin(t, h)
			defer r.finish()
			before := names(t, r.ws.Work)
			var s engine.Slot
			err := r.after(d, func(ctx context.Context) (err error) {
				s, err = r.arm.Provision(ctx, r.ws, r.root, nil, r.provisionParams("slot-0"))
				return err
			})
			if err == nil {
				r.keep(s)
				r.ready(s) // who succeeds has succeeded
				return
			}
			r.sameScratch(before)
			// The place's name is free again.
			r.judgeCold(r.provision("slot-0"))
		})
	}
}

func testCancelDump(t *testing.T, h Harness) {
	for _, d := range h.Cancel {
		t.Run(fmt.Sprint(d), func(t *testing.T) {
			defer leaves(t, h)()
			r := begin(t, h)
			defer r.finish()
			s := r.prepared("slot-0")
			ref := r.reference(s)
			var cp engine.Checkpoint
			var place engine.Place
			err := r.after(d, func(ctx context.Context) (err error) {
				cp, place, err = s.Dump(ctx, r.dumpParams(), ref)
				return err
			})
			if err == nil {
				r.judgeStopped(r.restore(cp, place, "slot-0"), cp)
				return
			}
			noCheckpoints(t, r)
			// Whether the tree still runs is the arm's affair; that the place can be used again is not.
			if err := s.Vacate(r.ctx()); err != nil {
				t.Fatalf("vacate after a cancelled dump: %v", describe(err))
			}
			again, err := r.arm.Provision(r.ctx(), r.ws, r.root, s, r.provisionParams("slot-0"))
			if err != nil {
				t.Fatalf("provision after a cancelled dump: %v", describe(err))
			}
			r.ready(again)
			r.judgeCold(again)
		})
	}
}

func testCancelRestore(t *testing.T, h Harness) {
	for _, inPlace := range []bool{true, false} {
		for _, d := range h.Cancel {
			t.Run(fmt.Sprintf("in place %v/%s", inPlace, d), func(t *testing.T) {
				defer leaves(t, h)()
				cp := h.checkpoint(t)
				r := begin(t, h)
				defer r.finish()
				old, name := engine.Place(nil), "slot-1"
				if inPlace {
					old, name = r.resume(r.restore(cp, nil, "slot-0")), "slot-0"
				}
				before := names(t, r.ws.Work)
				var s engine.Stopped
				err := r.after(d, func(ctx context.Context) (err error) {
					s, err = r.arm.Restore(ctx, r.ws, r.root, cp, old, r.restoreParams(name))
					return err
				})
				if err == nil {
					if !inPlace {
						r.keep(s)
					}
				} else {
					r.sameScratch(before)
					s = r.restore(cp, old, name)
				}
				r.judgeStopped(s, cp)
				r.judgeResumed(r.resume(s), cp)
			})
		}
	}
}

// sameScratch requires that a verb that failed took back what it made in the
// scratch directory; it may have taken away what was in the place before.
func (r *run) sameScratch(before []string) {
	r.t.Helper()
	for _, name := range names(r.t, r.ws.Work) {
		if !slices.Contains(before, name) {
			r.t.Errorf("a verb that failed left %s in the scratch directory", name)
		}
	}
}

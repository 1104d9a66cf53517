package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Exec is a step while it runs: what it may ask for and where it puts what it
// found. Safe for concurrent use. Once the step has returned, or was given up,
// it takes nothing more.
type Exec struct {
	run   *run
	index int
	began time.Time
	// settled by whoever comes first: the step's return, or the end of its grace.
	settled atomic.Bool

	mu       sync.Mutex
	closed   bool
	facts    []bench.Fact
	findings []bench.Finding
	spans    []bench.Span
	evidence []bench.Evidence
	held     []heldEvidence // until the window closes

	hooks hooks

	// Written by the one who settled, then read by the run.
	ended time.Time
	value any
	err   error
	// others are values of steps of an earlier attempt; written before the step returns.
	others map[string]any
	// late: the step did not return within its grace.
	late bool
}

type heldEvidence struct {
	name string
	data []byte
}

// Workspace of the run.
func (x *Exec) Workspace() *Workspace { return x.run.Workspace }

// Arm that the run is on.
func (x *Exec) Arm() Arm { return x.run.Arm }

// Inputs counts the inputs that carry values: In takes 0 to Inputs()-1.
func (x *Exec) Inputs() int { return len(x.run.plan.nodes[x.index].inputs) }

// Step as the plan has it.
func (x *Exec) Step() bench.Step { return x.run.plan.Steps[x.index] }

// SinceStart is t on the run's clock: the time since the run's start. t comes from time.Now.
func (x *Exec) SinceStart(t time.Time) time.Duration { return t.Sub(x.run.start) }

// Fact adds a fact to the step's receipt.
func (x *Exec) Fact(facts ...bench.Fact) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.closed {
		x.facts = append(x.facts, facts...)
	}
}

// Judge adds a gate's answer to the step's receipt and returns its verdict. The
// worst finding of all decides the step. Evidence that cannot be stored is a fail.
func (x *Exec) Judge(j Judgement) bench.Verdict {
	for _, name := range slices.Sorted(maps.Keys(j.Evidence)) {
		if err := x.Evidence(name, j.Evidence[name]); err != nil {
			j.Add(Fail, name, err.Error())
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.closed {
		x.facts = append(x.facts, j.Facts...)
		x.findings = append(x.findings, j.Findings...)
	}
	return j.Verdict()
}

// Evidence keeps data under name with the step's receipt. Inside a measurement
// window it is copied and stored once the window is closed; it is an error of
// the run then if it cannot be.
func (x *Exec) Evidence(name string, data []byte) error {
	if x.run.plan.nodes[x.index].window >= 0 {
		data = bytes.Clone(data)
		x.mu.Lock()
		defer x.mu.Unlock()
		if !x.closed {
			x.held = append(x.held, heldEvidence{name, data})
		}
		return nil
	}
	stored, err := x.run.store(name, data)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.closed {
		x.evidence = append(x.evidence, stored)
	}
	return nil
}

// OnRelease pushes f on the run's undo stack and returns a function that takes
// it off again. When all steps are finished the stack is run, last in first
// out, whatever happened; f must be idempotent and stand that a release step
// did its work already. Its ctx is detached from the run's cancellation and has
// a deadline of its own. An error makes the run failed.
func (x *Exec) OnRelease(f func(ctx context.Context) error) (forget func()) {
	return x.run.undo.push(x.Step().Id, f)
}

// OnCancel has f called once if the step's deadline passes or the run is
// cancelled while the step runs, and returns a function that takes it off
// again. f ends what the step waits for; it must be quick and must not block.
func (x *Exec) OnCancel(f func()) (remove func()) { return x.hooks.add(f) }

// spans is the sink of the sub-spans of a step.
type spans struct{ x *Exec }

func (s spans) Span(name string, start, end time.Time) {
	s.x.mu.Lock()
	defer s.x.mu.Unlock()
	if !s.x.closed {
		s.x.spans = append(s.x.spans, bench.Span{Name: name, Start: int64Text(start.Sub(s.x.began)), End: int64Text(end.Sub(s.x.began))})
	}
}

func int64Text(d time.Duration) bench.Int64 { return bench.Int64(strconv.FormatInt(int64(d), 10)) }

// hooks are called at most once, never after close.
type hooks struct {
	mu     sync.Mutex
	next   int
	fns    map[int]func()
	fired  bool
	closed bool
}

func (h *hooks) add(f func()) (remove func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return func() {}
	}
	if h.fired {
		h.call(f)
		return func() {}
	}
	if h.fns == nil {
		h.fns = map[int]func(){}
	}
	id := h.next
	h.next++
	h.fns[id] = f
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.fns, id)
	}
}

func (h *hooks) fire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.fired = true
	for _, id := range slices.Sorted(maps.Keys(h.fns)) {
		h.call(h.fns[id])
	}
}

// call keeps a panic of a hook from ending the engine. The step itself tells how it ended.
func (h *hooks) call(f func()) {
	defer func() { _ = recover() }()
	f()
}

func (h *hooks) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
}

// begin runs the step in a goroutine of its own and reports it to done once:
// when it returns, or when its grace is over.
func (x *Exec) begin(parent context.Context, f stepFunc, limit, grace time.Duration, done chan<- *Exec) {
	ctx, cancel := context.WithTimeout(WithSpans(parent, spans{x}), limit)
	returned := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		go x.hooks.fire()
		select {
		case <-returned:
		case <-time.After(grace):
			x.settle(time.Now(), nil, x.overrun(ctx.Err(), limit, grace), true, done)
		}
	})
	go func() {
		var value any
		var err error
		regular := false
		defer func() {
			ended, passed := time.Now(), ctx.Err()
			if !regular {
				value, err = nil, x.broken(recover())
			}
			close(returned)
			stop()
			cancel()
			x.hooks.close()
			x.settle(ended, value, x.explain(passed, limit, err), false, done)
		}()
		x.mu.Lock()
		x.began = time.Now()
		x.mu.Unlock()
		value, err = f(ctx, x)
		regular = true
	}()
}

// settle reports the step, unless it was reported before.
func (x *Exec) settle(ended time.Time, value any, err error, late bool, done chan<- *Exec) {
	if x.settled.CompareAndSwap(false, true) {
		x.ended, x.value, x.err, x.late = ended, value, err, late
		done <- x
	}
}

// overrun is the error of a step that does not heed its context.
func (x *Exec) overrun(passed error, limit, grace time.Duration) error {
	e := &Error{Op: "end step", Hint: "the step's function must return when its context is done; what it does from here on is not in the record"}
	if errors.Is(passed, context.DeadlineExceeded) {
		e.Err = fmt.Errorf("%w: it still runs %v after its deadline of %v", ErrDeadline, grace, limit)
	} else {
		e.Err = fmt.Errorf("it still runs %v after it was cancelled: %w", grace, passed)
	}
	return e
}

// explain turns the end of a step's time into ErrDeadline. A step that is done
// too late is not done: a deadline is a bound.
func (x *Exec) explain(passed error, limit time.Duration, err error) error {
	if !errors.Is(passed, context.DeadlineExceeded) || x.run.cancelled() && !x.Step().Release || errors.Is(err, ErrDeadline) {
		return err
	}
	late := &Error{Op: "finish step", Err: fmt.Errorf("%w: %v", ErrDeadline, limit)}
	if err != nil {
		late.Err = fmt.Errorf("%w: %v: %w", ErrDeadline, limit, err)
	}
	var inner *Error
	if errors.As(err, &inner) {
		late.Log, late.Hint, late.Findings = inner.Log, inner.Hint, inner.Findings
	}
	return late
}

// broken is the error of a step that did not return: it panicked, asked for an
// input that it does not have, or ended its goroutine (cause nil).
func (x *Exec) broken(cause any) error {
	if w, ok := cause.(wiring); ok {
		return &Error{Op: "read input", Err: w.error}
	}
	e := &Error{Op: "run step", Err: fmt.Errorf("panic: %v", cause)}
	if cause == nil {
		e.Err = errors.New("the function ended its goroutine")
	}
	stack := debug.Stack()
	if err := x.Evidence("panic.txt", stack); err != nil {
		e.Err = fmt.Errorf("%w\n%s", e.Err, stack)
	}
	return e
}

package engine

import (
	"context"
	"time"
)

// A measurement window holds the host alone: everything of ours that runs ends
// before it opens, and until it closes only its own steps run. What they leave
// (receipts, evidence, progress) stays in memory and is written, in order, at
// the close. A window opens when everything that any of its steps needs from
// outside is finished, so that nothing within it waits for something without.

// window of a run.
type window struct {
	outside int       // needs from outside that are not finished
	left    int       // steps that are not finished
	queue   indexHeap // steps that are ready
}

// startReady starts what can be started, in the order of the plan.
func (r *run) startReady(ctx context.Context) {
	for r.active < r.Parallel {
		switch {
		case r.open >= 0:
			i, ok := r.next(&r.windows[r.open].queue)
			if !ok {
				return
			}
			r.launch(ctx, i)
		case r.opening >= 0:
			if r.active > 0 {
				return // drain
			}
			r.openWindow()
		default:
			i, ok := r.peek()
			if !ok {
				return
			}
			if w := r.plan.nodes[i].window; w >= 0 {
				r.doors.pop()
				r.opening = w
				continue
			}
			if r.plan.Steps[i].Release && r.working > 0 {
				return // what is released may be in the hands of a step that is not among its needs
			}
			r.queue.pop()
			r.launch(ctx, i)
		}
	}
}

// next pops the first step that still is to be started.
func (r *run) next(q *indexHeap) (int, bool) {
	for len(*q) > 0 {
		if i := q.pop(); r.states[i] == ready {
			return i, true
		}
	}
	return 0, false
}

// peek returns the first step of the plan, or first step of a window, whose turn it is.
func (r *run) peek() (int, bool) {
	for len(r.queue) > 0 && r.states[r.queue[0]] != ready {
		r.queue.pop()
	}
	for len(r.doors) > 0 && r.windows[r.plan.nodes[r.doors[0]].window].left == 0 {
		r.doors.pop()
	}
	switch {
	case len(r.doors) > 0 && (len(r.queue) == 0 || r.doors[0] < r.queue[0]):
		return r.doors[0], true
	case len(r.queue) > 0:
		return r.queue[0], true
	}
	return 0, false
}

// openWindow opens the window that was waited for, unless none of its steps is left to run.
func (r *run) openWindow() {
	w := r.opening
	r.opening = -1
	if r.windows[w].left == 0 {
		return
	}
	r.tell(Event{Kind: WindowOpened, At: time.Since(r.start), Done: r.reported, Window: r.plan.windows[w].name})
	r.open = w
}

// leaveWindow counts a finished step off its window; the last one closes it.
func (r *run) leaveWindow(i int) {
	w := r.plan.nodes[i].window
	if w < 0 {
		return
	}
	if r.windows[w].left--; r.windows[w].left > 0 || r.open != w {
		return
	}
	r.open = -1
	r.tell(Event{Kind: WindowClosed, At: time.Since(r.start), Done: r.reported, Window: r.plan.windows[w].name})
	held := r.held
	r.held = nil
	for _, f := range held {
		f()
	}
}

// publish calls f now, or when the window closes.
func (r *run) publish(f func()) {
	if r.open >= 0 {
		r.held = append(r.held, f)
		return
	}
	f()
}

// indexHeap is a heap of places in the plan, the lowest on top.
type indexHeap []int

func (h *indexHeap) push(v int) {
	*h = append(*h, v)
	s := *h
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if s[up] <= s[i] {
			return
		}
		s[up], s[i] = s[i], s[up]
		i = up
	}
}

func (h *indexHeap) pop() int {
	s := *h
	top, last := s[0], len(s)-1
	s[0] = s[last]
	s = s[:last]
	*h = s
	for i := 0; ; {
		low := 2*i + 1
		if low >= last {
			return top
		}
		if low+1 < last && s[low+1] < s[low] {
			low++
		}
		if s[i] <= s[low] {
			return top
		}
		s[i], s[low] = s[low], s[i]
		i = low
	}
}

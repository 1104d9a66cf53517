package pages

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/criu"
)

// Stats say what happened to a slot's pages. Counts are of pages but for Forks and Tasks.
type Stats struct {
	// Lazy pages CRIU left out; First were brought before anything else; Pushed were brought unasked, of the set; Faults were touched before that, Around
	// came with one that was. Zeros had no content. Missing are not there yet.
	Lazy, First, Pushed, Faults, Around, Zeros, Missing int64
	// Set is the size of the working set that was there at the restore; Recorded is that of the one being recorded.
	Set, Recorded int64
	// Tasks are the address spaces that are watched; Forks, how many of all were made meanwhile.
	Tasks, Forks int64
	// PushNS is the time from the end of CRIU's part until the last page of the set was there, -1 before that.
	// ServeNS is the time that the server spent on faults, without what they waited to be read.
	PushNS, ServeNS int64
}

// slot is one slot's tasks. One goroutine owns it (run); everything else reaches it through do.
type slot struct {
	images *images
	tasks  []*task
	// set is pushed once CRIU has finished; nil where none was recorded yet: then recorded is one.
	set      workingSet
	recorded workingSet
	// until is when recording ends; zero before the slot is ready.
	until time.Time
	// queue is what is still to be pushed.
	queue    []push
	finished time.Time
	stats    Stats
	// forked tells the engine of a descriptor; left, that one is done with.
	forked func(*task) error
	left   func(*task)

	requests chan func()
	// done is closed when run has returned; failed is why nothing can be asked any more.
	done     chan struct{}
	failed   error
	doorbell int // an eventfd: a request is there
	stop     bool
}

var errEnded = errors.New("the slot's pages are not served any more")

// push is a piece to be brought unasked.
type push struct {
	task *task
	piece
}

func newSlot(im *images, set workingSet, forked func(*task) error, left func(*task)) (*slot, error) {
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make eventfd: %w", err)
	}
	s := &slot{images: im, set: set, forked: forked, left: left, requests: make(chan func(), 16), done: make(chan struct{}), doorbell: bell}
	s.stats.PushNS, s.stats.Set = -1, int64(set.pages())
	if set == nil {
		s.recorded = workingSet{}
	}
	return s, nil
}

// do has the slot's own goroutine call f, and returns its error.
func (s *slot) do(f func() error) error {
	result := make(chan error, 1)
	select {
	case s.requests <- func() { result <- f() }:
	case <-s.done:
		return s.failed
	}
	one := [8]byte{0: 1}
	if _, err := unix.Write(s.doorbell, one[:]); err != nil {
		return fmt.Errorf("ring: %w", err)
	}
	select {
	case err := <-result:
		return err
	case <-s.done:
		select {
		case err := <-result: // it was the last thing done
			return err
		default:
			return s.failed
		}
	}
}

// add takes a task over, by the pid that it has inside the slot.
func (s *slot) add(key int64, pid int, fd descriptor) error {
	for _, m := range s.images.memory {
		if m.Pid == pid {
			t := &task{key: key, fd: fd, missing: s.images.lacks(m)}
			t.holes, t.first = holes(m, t.missing), m.First
			s.stats.Lazy += int64(t.missing.pages())
			s.tasks = append(s.tasks, t)
			return nil
		}
	}
	return fmt.Errorf("the images hold no task %d", pid)
}

// finish: CRIU has made every mapping; what is pushed is pushed from here on. When it returns, what others than the
// tasks themselves read of them is there.
func (s *slot) finish() error {
	s.finished = time.Now()
	for _, t := range s.tasks {
		for _, r := range t.first {
			if err := s.bring(t, r); err != nil {
				return err
			}
		}
	}
	for _, t := range s.tasks {
		for _, r := range t.holes {
			// What cannot be given back is served: with zeros, as the kernel would.
			_ = t.fd.unregister(r)
		}
		t.holes = nil
		for _, p := range t.missing {
			for _, part := range s.set.of(p) {
				s.queue = append(s.queue, push{t, part})
			}
		}
	}
	if len(s.queue) == 0 {
		s.stats.PushNS = 0
	}
	return nil
}

// bring has all pages of a range that have content there when it returns.
func (s *slot) bring(t *task, r criu.Range) error {
	deadline := time.Now().Add(firstTime)
	for !t.gone {
		parts := t.missing.within(r)
		if len(parts) == 0 {
			return nil
		}
		n, err := t.place(parts[0])
		s.stats.First += int64(n)
		switch {
		case err != nil && !errors.Is(err, errChanging):
			return err
		case n > 0:
		case time.Now().After(deadline):
			return fmt.Errorf("the pages at %#x cannot be filled", parts[0].Start)
		default: // its mapping is not there yet, or changes
			if err := s.drain(t); err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// firstTime bounds how long the first pages of a range are tried.
const firstTime = 5 * time.Second

// records says whether a page that is touched at a time belongs to the set.
func (s *slot) records(at time.Time) bool {
	return s.recorded != nil && (s.until.IsZero() || at.Before(s.until))
}

// run serves until it is told to stop, or an error, after which the slot can only be killed.
func (s *slot) run() (err error) {
	defer func() {
		s.failed = errors.Join(errEnded, err)
		close(s.done)
	}()
	for !s.stop {
		wait := -1
		switch {
		case s.waiting():
			wait = 1 // the kernel is about to let go of the mappings
		case len(s.queue) > 0:
			wait = 0
		}
		ready, err := s.poll(wait)
		if err != nil {
			return err
		}
		start := time.Now()
		for _, t := range ready {
			if err := s.drain(t); err != nil {
				return err
			}
		}
		if len(ready) > 0 {
			s.stats.ServeNS += time.Since(start).Nanoseconds()
		}
		select {
		case f := <-s.requests:
			f()
		default:
		}
		if err := s.push(); err != nil {
			return err
		}
		s.tidy()
	}
	return nil
}

// waiting says whether a fault waits for the end of a change of mappings.
func (s *slot) waiting() bool {
	return slices.ContainsFunc(s.tasks, func(t *task) bool { return len(t.again) > 0 })
}

// poll waits for events, in milliseconds as poll(2); the tasks that have some, or a fault to be tried again, are returned.
func (s *slot) poll(wait int) (ready []*task, err error) {
	fds := make([]unix.PollFd, len(s.tasks)+1)
	fds[0] = unix.PollFd{Fd: int32(s.doorbell), Events: unix.POLLIN}
	for i, t := range s.tasks {
		fds[i+1] = unix.PollFd{Fd: int32(t.fd), Events: unix.POLLIN}
	}
	if _, err := unix.Poll(fds, wait); err != nil && !errors.Is(err, unix.EINTR) {
		return nil, fmt.Errorf("poll: %w", err)
	}
	if fds[0].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(s.doorbell, b[:])
	}
	for i, t := range s.tasks {
		if fds[i+1].Revents != 0 || len(t.again) > 0 {
			ready = append(ready, t)
		}
	}
	return ready, nil
}

// drain deals with a task's events until there are none, then with faults that had to wait.
func (s *slot) drain(t *task) error {
	for !t.gone {
		e, ok, err := t.fd.read()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if err := s.handle(t, e); err != nil {
			return err
		}
	}
	again := t.again
	t.again = nil
	for _, at := range again {
		if t.gone {
			break
		}
		if err := s.serve(t, at); err != nil {
			return err
		}
	}
	return nil
}

// push brings one batch of what is queued, so far as it is still where it was.
func (s *slot) push() error {
	if len(s.queue) == 0 {
		return nil
	}
	next := s.queue[0]
	for _, p := range next.task.missing.within(next.Range) {
		if p.file != next.file || p.off-int64(p.Start) != next.off-int64(next.Start) {
			continue // something else was moved here
		}
		end := min(p.End, p.Start+batch*criu.PageSize)
		n, err := next.task.place(p.part(criu.Range{Start: p.Start, End: end}))
		s.stats.Pushed += int64(n)
		if errors.Is(err, errChanging) {
			return nil // its event comes first
		}
		if err != nil {
			return err
		}
		if end < next.End {
			s.queue[0].piece = next.part(criu.Range{Start: end, End: next.End})
			return nil
		}
		break
	}
	s.queue = s.queue[1:]
	if len(s.queue) == 0 {
		s.stats.PushNS = time.Since(s.finished).Nanoseconds()
	}
	return nil
}

// tidy lets go of tasks that have ended, or, once CRIU has finished, lack nothing: the kernel fills what they touch from there on.
func (s *slot) tidy() {
	if s.finished.IsZero() {
		return
	}
	s.tasks = slices.DeleteFunc(s.tasks, func(t *task) bool {
		if !t.gone && len(t.missing) > 0 {
			return false
		}
		t.close()
		s.left(t)
		return true
	})
}

func (t *task) close() { _ = unix.Close(int(t.fd)) }

// look marks the address spaces that are gone; tidy lets go of them.
func (s *slot) look() {
	for _, t := range s.tasks {
		if !t.gone && !t.fd.alive() {
			t.end()
		}
	}
}

// complete brings every page that is missing. Events of a tree that runs are dealt with between the copies.
func (s *slot) complete() error {
	if s.finished.IsZero() {
		return errors.New("criu has not finished")
	}
	s.queue = nil
	deadline := time.Now().Add(completeTime)
	for len(s.tasks) > 0 {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d pages are still missing after %s", s.counts().Missing, completeTime)
		}
		moved := false
		for _, t := range slices.Clone(s.tasks) {
			if err := s.drain(t); err != nil {
				return err
			}
			if t.gone || len(t.missing) == 0 {
				continue
			}
			p := t.missing[0]
			n, err := t.place(p.part(criu.Range{Start: p.Start, End: min(p.End, p.Start+batch*criu.PageSize)}))
			if err != nil && !errors.Is(err, errChanging) {
				return err
			}
			s.stats.Pushed += int64(n)
			moved = moved || n > 0
		}
		s.tidy()
		if !moved && len(s.tasks) > 0 {
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// completeTime bounds how long pages are brought for a dump.
const completeTime = 30 * time.Second

// counts are the statistics as they stand.
func (s *slot) counts() Stats {
	out := s.stats
	for _, t := range s.tasks {
		out.Missing += int64(t.missing.pages())
	}
	out.Tasks, out.Recorded = int64(len(s.tasks)), int64(s.recorded.pages())
	return out
}

// close lets go of everything; what is missing is gone, so the tree must be.
func (s *slot) close() {
	for _, t := range s.tasks {
		t.close()
		s.left(t)
	}
	s.tasks = nil
	_ = unix.Close(s.doorbell)
}

package pages

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/criu"
)

const (
	// around is how many pages a fault brings at most, the one that was touched among them.
	around = 16
	// batch is how many pages one call copies at most: meanwhile nobody's fault is served.
	batch = 128
)

// task is one address space, with the userfaultfd that watches it.
type task struct {
	key     int64 // the engine's number of the descriptor
	fd      descriptor
	missing missing
	// holes are the long ranges without content; the kernel gets them back once CRIU has finished.
	holes []criu.Range
	// first are the ranges that are brought before anything else.
	first []criu.Range
	// again are addresses whose fault could not be served while the mappings were being changed.
	again []uint64
	// gone: the address space is.
	gone bool
}

// errChanging: the kernel is in the middle of a change of mappings; its event is to be read first.
var errChanging = errors.New("mappings are being changed")

// place copies a piece's pages, which are missing, to where they belong.
//
// A page that is there already stays as it is: the task has it. Each failed call is followed by a wake-up, since a task
// may wait for a page that no call will bring any more and looks again then.
func (t *task) place(p piece) (placed uint64, err error) {
	for p.Start < p.End {
		part := p.part(criu.Range{Start: p.Start, End: min(p.End, p.Start+batch*criu.PageSize)})
		done, err := t.fd.copy(part.Range, part.content())
		if err == nil {
			done = part.End - part.Start
		}
		if done > 0 {
			t.missing.cut(criu.Range{Start: p.Start, End: p.Start + done})
			placed += done / criu.PageSize
			p = p.part(criu.Range{Start: p.Start + done, End: p.End})
			continue
		}
		single := criu.Range{Start: p.Start, End: p.Start + criu.PageSize}
		switch {
		case errors.Is(err, unix.EAGAIN):
			return placed, errChanging
		case errors.Is(err, unix.ESRCH):
			t.end()
			return placed, nil
		case errors.Is(err, unix.EEXIST):
			t.missing.cut(single)
		case errors.Is(err, unix.ENOENT) && part.End > single.End:
			// The guest has split the mapping, or a part of it is not watched yet: page by page.
			n, err := t.placeEach(part)
			if placed += n; err != nil || t.gone {
				return placed, err
			}
			p = p.part(criu.Range{Start: part.End, End: p.End})
			continue
		case errors.Is(err, unix.ENOENT):
			// Not watched yet, before CRIU has finished; the page stays missing.
		default:
			return placed, fmt.Errorf("fill %d pages at %#x: %w", (part.End-part.Start)/criu.PageSize, p.Start, err)
		}
		if err := t.wake(single); err != nil {
			return placed, err
		}
		p = p.part(criu.Range{Start: single.End, End: p.End})
	}
	return placed, nil
}

func (t *task) placeEach(p piece) (placed uint64, err error) {
	for at := p.Start; at < p.End && !t.gone; at += criu.PageSize {
		n, err := t.place(p.part(criu.Range{Start: at, End: at + criu.PageSize}))
		if placed += n; err != nil {
			return placed, err
		}
	}
	return placed, nil
}

func (t *task) wake(r criu.Range) error {
	if err := t.fd.wake(r); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("wake at %#x: %w", r.Start, err)
	}
	return nil
}

// end of the address space: nothing of it is missing any more.
func (t *task) end() { t.gone, t.missing, t.again = true, nil, nil }

// empty says whether a page is all zeros.
func empty(page []byte) bool {
	for _, b := range page {
		if b != 0 {
			return false
		}
	}
	return true
}

// serve brings the page of a fault, with those around it where wide says so.
func (s *slot) serve(t *task, at uint64) error {
	page := criu.Range{Start: at, End: at + criu.PageSize}
	touched := t.missing.within(page)
	// Zeros, where nothing was ever there, the guest has thrown it away, or the image says so: a page of the kernel's
	// that takes no memory until somebody writes it.
	if len(touched) == 0 || empty(touched[0].content()) {
		err := t.fd.zero(page)
		switch {
		case err == nil:
			t.missing.cut(page)
			s.stats.Zeros++
			return nil
		case errors.Is(err, unix.EAGAIN):
			t.again = append(t.again, at)
			return nil
		case errors.Is(err, unix.ESRCH):
			t.end()
			return nil
		case errors.Is(err, unix.EEXIST):
			t.missing.cut(page)
			return t.wake(page)
		case errors.Is(err, unix.ENOENT):
			return t.wake(page)
		}
		return fmt.Errorf("fill a page of zeros at %#x: %w", at, err)
	}
	// Until the slot is ready, page by page: the set has most of what it needs, and what lies around a page that is
	// touched may be needed by nobody.
	if now := time.Now(); !s.until.IsZero() && !s.records(now) {
		start := at &^ (around*criu.PageSize - 1)
		for _, p := range t.missing.within(criu.Range{Start: start, End: start + around*criu.PageSize}) {
			if p.Start <= at && at < p.End {
				touched[0] = p
			}
		}
	}
	n, err := t.place(touched[0])
	switch {
	case errors.Is(err, errChanging):
		if len(t.missing.within(page)) > 0 {
			t.again = append(t.again, at)
		}
	case err != nil:
		return err
	}
	if n > 0 {
		s.stats.Faults++
		s.stats.Around += int64(n) - 1
		if s.recorded != nil && s.records(time.Now()) {
			s.recorded.add(touched[0])
		}
	}
	return nil
}

// handle deals with one event.
func (s *slot) handle(t *task, e event) error {
	switch r := (criu.Range{Start: e.at, End: e.at + e.length}); e.kind {
	case eventFault:
		return s.serve(t, e.at)
	case eventRemap:
		t.missing.move(r, e.to)
	case eventRemove, eventUnmap:
		t.missing.cut(r)
	case eventFork:
		s.look() // a program that forks has had children before
		child := &task{fd: e.child, missing: slices.Clone(t.missing)}
		s.tasks = append(s.tasks, child)
		s.stats.Forks++
		return s.forked(child)
	}
	return nil
}

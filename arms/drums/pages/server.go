package pages

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// programName is what the server is called: any program of ours that is started by it becomes one.
const programName = "drums-pages"

// socketFD is where the server finds its socket.
const socketFD = 3

func init() {
	if len(os.Args) != 1 || os.Args[0] != programName {
		return
	}
	hurry()
	if err := serve(link{socketFD}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// hurry puts the server before what it serves: whoever touches a missing page stands still until it has run. A host that
// does not allow it has slower faults and nothing else, so an error is no error.
func hurry() {
	threads, _ := os.ReadDir("/proc/self/task") // new ones inherit it
	for _, t := range threads {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, priority)
		}
	}
}

// priority is the server's nice value.
const priority = -10

// server is the process that fills pages.
type server struct {
	link link

	mu     sync.Mutex
	slots  map[int64]*served
	images map[string]*images
	next   int64 // number of the next descriptor that a fork made; below 0
}

// served is a slot with what ends it.
type served struct {
	*slot
	root int // pidfd of the slot's first process; -1 before it is known
}

// serve until the engine says so. Where the engine goes without a word its slots are killed, and only
// then their descriptors closed.
func serve(l link) error {
	s := &server{link: l, slots: map[int64]*served{}, images: map[string]*images{}, next: -1}
	for {
		m, fd, err := l.receive()
		if errors.Is(err, io.EOF) {
			return s.orphaned()
		}
		if err != nil {
			return errors.Join(err, s.orphaned())
		}
		if m.Op == opQuit {
			return l.send(message{Op: opQuit})
		}
		answer := message{Op: m.Op, Slot: m.Slot}
		// A slot's own work is its goroutine's; this one waits for it, so the engine's requests are dealt with in turn.
		if m.Op == opComplete || m.Op == opEnd {
			go func() {
				s.request(m, fd, &answer)
				_ = l.send(answer) // an engine that is gone is seen by receive
			}()
			continue
		}
		s.request(m, fd, &answer)
		if err := l.send(answer); err != nil {
			return errors.Join(err, s.orphaned())
		}
	}
}

func (s *server) request(m message, fd int, answer *message) {
	if err := s.act(m, fd, answer); err != nil {
		answer.Err = err.Error()
	}
}

func (s *server) act(m message, fd int, answer *message) error {
	if m.Op == opSlot {
		return s.open(m)
	}
	s.mu.Lock()
	at := s.slots[m.Slot]
	s.mu.Unlock()
	if at == nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return fmt.Errorf("there is no slot %d", m.Slot)
	}
	switch m.Op {
	case opTask:
		err := at.do(func() error { return at.add(m.Key, m.Pid, descriptor(fd)) })
		if err != nil {
			unix.Close(fd)
		}
		return err
	case opFinished:
		return at.do(at.finish)
	case opRoot:
		at.root = fd
		return nil
	case opReady:
		return at.do(func() error { at.until = time.Now().Add(time.Duration(m.For)); return nil })
	case opStats, opComplete:
		return at.do(func() error {
			var err error
			if m.Op == opComplete {
				err = at.complete()
			}
			stats := at.counts()
			answer.Stats = &stats
			return err
		})
	case opEnd:
		return s.end(m, at, answer)
	}
	return fmt.Errorf("nobody knows %q", m.Op)
}

func (s *server) open(m message) error {
	var set workingSet
	if m.File != "" {
		var err error
		if set, err = readSet(m.File); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	im := s.images[m.Dir]
	if im == nil {
		var err error
		if im, err = openImages(m.Dir); err != nil {
			return err
		}
		s.images[m.Dir] = im
	}
	one, err := newSlot(im, set, func(t *task) error {
		s.mu.Lock()
		t.key = s.next
		s.next--
		s.mu.Unlock()
		return s.link.send(message{Op: opForked, Slot: m.Slot, Key: t.key}, int(t.fd))
	}, func(t *task) {
		_ = s.link.send(message{Op: opLeft, Slot: m.Slot, Key: t.key}) // an engine that is gone is seen by receive
	})
	if err != nil {
		return err
	}
	im.users++
	s.slots[m.Slot] = &served{slot: one, root: -1}
	go func() {
		if err := one.run(); err != nil {
			_ = s.link.send(message{Op: opFailed, Slot: m.Slot, Err: err.Error()})
		}
	}()
	return nil
}

// end of a slot whose tree is gone. The set that was recorded of one that became ready is written.
func (s *server) end(m message, at *served, answer *message) error {
	err := at.do(func() error {
		stats := at.counts()
		answer.Stats = &stats
		at.stop = true
		if m.File != "" && at.recorded != nil && !at.until.IsZero() {
			return at.recorded.write(m.File)
		}
		return nil
	})
	<-at.done // also of one that had failed
	at.close()
	if at.root >= 0 {
		unix.Close(at.root)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.slots, m.Slot)
	if at.images.users--; at.images.users == 0 && len(s.images) > maxImages {
		at.images.close()
		delete(s.images, at.images.dir)
	}
	if errors.Is(err, errEnded) {
		return nil // it failed before; the engine has been told why
	}
	return err
}

// maxImages is how many checkpoints that no slot uses stay mapped.
const maxImages = 16

// orphaned kills the slots of an engine that has gone. The descriptors stay open until no process is left.
func (s *server) orphaned() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs error
	for _, at := range s.slots {
		if at.root < 0 {
			continue // no instruction of it has run: CRIU leaves its tasks stopped
		}
		if err := unix.PidfdSendSignal(at.root, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = errors.Join(errs, fmt.Errorf("kill a slot: %w", err))
			continue
		}
		// The first process of a pid namespace ends after all others of it.
		fds := []unix.PollFd{{Fd: int32(at.root), Events: unix.POLLIN}}
		for {
			if _, err := unix.Poll(fds, int(orphanTime.Milliseconds())); !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	return errs
}

const orphanTime = 10 * time.Second

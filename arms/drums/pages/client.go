package pages

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// ErrLost: whoever filled a slot's pages has ended, or could not go on; the slot was killed.
var ErrLost = fmt.Errorf("%w: nobody fills its pages any more", engine.ErrDead)

// answerTime bounds how long the server may take to answer; completing a slot and ending it may take as long as a copy of all.
const (
	answerTime = 10 * time.Second
	endTime    = completeTime + answerTime
)

// Server is the engine's hold on the process that fills pages.
//
// Always holds: it is in the ledger before it is born; the engine has a duplicate of each userfaultfd that the server
// has, so that the kernel fills no missing page with zeros when the server ends; each slot is killed before those are
// closed. Safe for concurrent use.
type Server struct {
	ledger engine.Ledger
	owned  int64
	link   link
	cmd    *exec.Cmd

	mu      sync.Mutex
	slots   map[int64]*Slot
	next    int64
	answers map[string]chan message // by operation and slot: one at a time each
	quit    bool
	lost    chan struct{} // closed once the server is gone
}

// Start starts the server in a cgroup of the run's, whose path the ledger gets.
func Start(ledger engine.Ledger, cgroupFD int, cgroupPath string) (*Server, error) {
	owned, err := ledger.Intend("process", bench.Claim{Cgroup: cgroupPath, Note: "server of pages"})
	if err != nil {
		return nil, err
	}
	s := &Server{ledger: ledger, owned: owned, slots: map[int64]*Slot{}, answers: map[string]chan message{}, lost: make(chan struct{})}
	if err := s.start(cgroupFD); err != nil {
		return nil, errors.Join(&engine.Error{Op: "start server of pages", Err: err}, ledger.Gone(owned))
	}
	id, err := procfs.Identity(s.cmd.Process.Pid)
	if err == nil {
		err = ledger.Bind(owned, id)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close(context.Background()))
	}
	return s, nil
}

func (s *Server) start(cgroupFD int) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	theirs := os.NewFile(uintptr(fds[1]), "server of pages")
	defer theirs.Close()
	s.link = link{fds[0]}
	s.cmd = &exec.Cmd{Path: "/proc/self/exe", Args: []string{programName}, Env: []string{}, Dir: "/", ExtraFiles: []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: cgroupFD}}
	if err := s.cmd.Start(); err != nil {
		unix.Close(fds[0])
		return err
	}
	go s.listen()
	return nil
}

// Pid of the server.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// listen takes what the server says until it is gone.
func (s *Server) listen() {
	for {
		m, fd, err := s.link.receive()
		if err != nil {
			break
		}
		s.mu.Lock()
		slot := s.slots[m.Slot]
		s.mu.Unlock()
		switch {
		case m.Op == opForked && slot != nil && fd >= 0:
			slot.hold(m.Key, fd)
			continue
		case m.Op == opLeft && slot != nil:
			slot.drop(m.Key)
		case m.Op == opFailed && slot != nil:
			go slot.lose(errors.New(m.Err))
		case m.Op == opForked, m.Op == opLeft, m.Op == opFailed:
		default:
			s.mu.Lock()
			answer := s.answers[answerOf(m)]
			s.mu.Unlock()
			if answer != nil {
				answer <- m
			}
		}
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	err := s.cmd.Wait()
	s.mu.Lock()
	quit, slots := s.quit, s.slots
	s.slots = map[int64]*Slot{}
	s.mu.Unlock()
	if !quit || len(slots) > 0 {
		why := fmt.Errorf("the server of pages has ended: %w", err)
		if err == nil {
			why = errors.New("the server of pages has ended")
		}
		for _, slot := range slots {
			slot.lose(why)
		}
	}
	close(s.lost)
}

func answerOf(m message) string { return fmt.Sprint(m.Op, " ", m.Slot) }

// ask sends a request and waits for its answer.
func (s *Server) ask(ctx context.Context, m message, within time.Duration, fds ...int) (message, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, engine.ErrDeadline)
	defer cancel()
	answer, name := make(chan message, 1), answerOf(m)
	s.mu.Lock()
	s.answers[name] = answer
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.answers, name)
		s.mu.Unlock()
	}()
	if err := s.link.send(m, fds...); err != nil {
		return message{}, errors.Join(ErrLost, err)
	}
	select {
	case got := <-answer:
		if got.Err != "" {
			return got, errors.New(got.Err)
		}
		return got, nil
	case <-s.lost:
		return message{}, ErrLost
	case <-ctx.Done():
		return message{}, context.Cause(ctx)
	}
}

// Alive says whether the server is there.
func (s *Server) Alive() bool {
	select {
	case <-s.lost:
		return false
	default:
		return true
	}
}

// Close ends the server, after every slot. A server that does not end is killed.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.quit = true
	s.mu.Unlock()
	if s.Alive() {
		_, _ = s.ask(ctx, message{Op: opQuit}, answerTime)
		select {
		case <-s.lost:
		case <-time.After(answerTime):
			_ = s.cmd.Process.Kill()
			<-s.lost
		}
	}
	unix.Close(s.link.fd)
	return s.ledger.Gone(s.owned)
}

// Slot is one slot whose pages are filled while it runs.
type Slot struct {
	server *Server
	id     int64
	kill   func() error

	mu sync.Mutex
	// held are duplicates of the server's descriptors.
	held map[int64]int
	// ended: nothing is held any more.
	ended  bool
	reason error

	listener *net.UnixListener
	socket   string
	finished chan error // one result, when CRIU's part is over
}

// Options of a slot.
type Options struct {
	// Images is the folder of CRIU's images, Work that which CRIU works in; there the socket is made.
	Images, Work string
	// Set is the file of the working set; where there is none, this slot's is recorded.
	Set string
	// Kill ends every process of the slot. It is called when its pages are filled by nobody any more.
	Kill func() error
}

// socketName is where CRIU looks for its server (criu/uffd.c).
const socketName = "lazy-pages.socket"

// finishedMark is what CRIU sends when every mapping is there (criu/uffd.c, LAZY_PAGES_RESTORE_FINISHED).
const finishedMark = 0x52535446

// Slot has the server take a slot of a checkpoint; CRIU may be started then.
func (s *Server) Slot(ctx context.Context, o Options) (*Slot, error) {
	const op = "serve pages"
	s.mu.Lock()
	s.next++
	slot := &Slot{server: s, id: s.next, kill: o.Kill, held: map[int64]int{}, finished: make(chan error, 1), socket: filepath.Join(o.Work, socketName)}
	s.slots[slot.id] = slot
	s.mu.Unlock()
	if _, err := s.ask(ctx, message{Op: opSlot, Slot: slot.id, Dir: o.Images, File: o.Set}, answerTime); err != nil {
		s.forget(slot)
		return nil, &engine.Error{Op: op, Err: err}
	}
	if err := slot.open(o.Work); err != nil {
		_, eerr := slot.End(ctx, "")
		return nil, errors.Join(&engine.Error{Op: op, Err: err}, eerr)
	}
	return slot, nil
}

func (s *Server) forget(slot *Slot) {
	s.mu.Lock()
	delete(s.slots, slot.id)
	s.mu.Unlock()
}

// open makes the socket; its path may be longer than a socket's may be, so it is reached through the folder's descriptor.
func (s *Slot) open(work string) error {
	dir, err := os.Open(work)
	if err != nil {
		return err
	}
	defer dir.Close()
	s.listener, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName)})
	if err != nil {
		return err
	}
	s.listener.SetUnlinkOnClose(false) // its name led through a descriptor that is closed by then
	go func() {
		err := s.accept()
		s.finished <- err
	}()
	return nil
}

// accept speaks with CRIU: for each task its pid and a userfaultfd, a pid below 0 for a zombie, and a mark at the end.
func (s *Slot) accept() error {
	conn, err := s.listener.AcceptUnix()
	if err != nil {
		return err
	}
	defer conn.Close()
	f, err := conn.File()
	if err != nil {
		return err
	}
	defer f.Close()
	fd := int(f.Fd()) // blocking, from here on
	for key := int64(1); ; key++ {
		var b [4]byte
		if err := full(fd, b[:]); err != nil {
			return fmt.Errorf("criu's socket of lazy pages: %w", err)
		}
		word := binary.NativeEndian.Uint32(b[:])
		if word == finishedMark {
			_, err := s.server.ask(context.Background(), message{Op: opFinished, Slot: s.id}, answerTime)
			return err
		}
		pid := int(int32(word))
		if pid <= 0 {
			continue
		}
		uffd, err := right(fd)
		if err != nil {
			return fmt.Errorf("criu's socket of lazy pages: %w", err)
		}
		s.hold(key, uffd)
		if _, err := s.server.ask(context.Background(), message{Op: opTask, Slot: s.id, Key: key, Pid: pid}, answerTime, uffd); err != nil {
			return err
		}
	}
}

// full reads all of b.
func full(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Read(fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return errors.New("it ends before criu has finished")
		default:
			b = b[n:]
		}
	}
	return nil
}

// right reads one byte and the descriptor that comes with it.
func right(fd int) (int, error) {
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, _, _, err := unix.Recvmsg(fd, b, oob, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return -1, err
		}
		got, err := oneRight(oob[:oobn])
		if err == nil && (n == 0 || got < 0) {
			err = errors.New("a task comes without a descriptor")
		}
		return got, err
	}
}

// hold keeps a descriptor, which is the slot's from here on.
func (s *Slot) hold(key int64, fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		unix.Close(fd)
		return
	}
	s.held[key] = fd
}

func (s *Slot) drop(key int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fd, ok := s.held[key]; ok {
		unix.Close(fd)
		delete(s.held, key)
	}
}

// release closes what is held: the tree is dead, or lacks nothing.
func (s *Slot) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for key, fd := range s.held {
		unix.Close(fd)
		delete(s.held, key)
	}
}

// lose kills the slot, and says why from then on.
func (s *Slot) lose(why error) {
	s.mu.Lock()
	over := s.ended || s.reason != nil
	if !over {
		s.reason = fmt.Errorf("%w: %w", ErrLost, why)
	}
	s.mu.Unlock()
	if over {
		return
	}
	if err := s.kill(); err != nil {
		// The descriptors stay open: a task that lives waits for its pages, and reads no zeros.
		s.mu.Lock()
		s.reason = errors.Join(s.reason, fmt.Errorf("kill it: %w", err))
		s.mu.Unlock()
	}
}

// Lost is nil, or ErrLost with why.
func (s *Slot) Lost() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

// Restored waits until CRIU has said that all mappings are there, which it does before it returns, and gives the
// server the slot's first process to kill, should the engine end.
func (s *Slot) Restored(ctx context.Context, pid int) error {
	const op = "serve pages"
	select {
	case err := <-s.finished:
		s.finished <- err
		if err != nil {
			return &engine.Error{Op: op, Err: err}
		}
	case <-ctx.Done():
		return &engine.Error{Op: op, Err: context.Cause(ctx)}
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	defer unix.Close(pidfd)
	if _, err := s.server.ask(ctx, message{Op: opRoot, Slot: s.id}, answerTime, pidfd); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	return nil
}

// Ready says that the slot is: recording goes on for so long.
func (s *Slot) Ready(ctx context.Context, record time.Duration) error {
	_, err := s.server.ask(ctx, message{Op: opReady, Slot: s.id, For: record.Nanoseconds()}, answerTime)
	return err
}

// Stats of the slot as they stand.
func (s *Slot) Stats(ctx context.Context) (Stats, error) {
	return s.stats(s.server.ask(ctx, message{Op: opStats, Slot: s.id}, answerTime))
}

func (s *Slot) stats(m message, err error) (Stats, error) {
	if lost := s.Lost(); lost != nil {
		return Stats{}, lost
	}
	if err == nil && m.Stats == nil {
		err = errors.New("the server of pages gives no numbers")
	}
	if err != nil {
		return Stats{}, err
	}
	return *m.Stats, nil
}

// Complete brings every page that is missing. The slot runs on, and needs nobody then.
func (s *Slot) Complete(ctx context.Context) (Stats, error) {
	got, err := s.stats(s.server.ask(ctx, message{Op: opComplete, Slot: s.id}, endTime))
	if err == nil && (got.Missing > 0 || got.Tasks > 0) {
		err = fmt.Errorf("%d pages of %d tasks are missing still", got.Missing, got.Tasks)
	}
	if err != nil {
		return got, &engine.Error{Op: "complete pages", Err: err}
	}
	return got, nil
}

// End lets go of a slot whose tree is gone, or was completed. The working set that was recorded of one that became
// ready is written to set, where that is not empty. Idempotent.
func (s *Slot) End(ctx context.Context, set string) (Stats, error) {
	s.mu.Lock()
	over := s.ended
	s.mu.Unlock()
	if over {
		return Stats{}, nil
	}
	if s.listener != nil {
		s.listener.Close()
		os.Remove(s.socket)
	}
	var got message
	var err error
	if s.server.Alive() {
		got, err = s.server.ask(ctx, message{Op: opEnd, Slot: s.id, File: set}, endTime)
	}
	s.release()
	s.server.forget(s)
	if err != nil && !errors.Is(err, ErrLost) {
		return Stats{}, &engine.Error{Op: "end serving pages", Err: err}
	}
	if got.Stats == nil {
		return Stats{}, nil
	}
	return *got.Stats, nil
}

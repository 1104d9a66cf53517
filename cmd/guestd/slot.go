package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// readyPeriod is how often a service's ready path is looked for.
const readyPeriod = 5 * time.Millisecond

// slot supervises the services.
//
//	starting  until the last service is ready
//	running   then
//	failed    for good, once a service ended or could not be started
type slot struct {
	procs  *processes
	who    *identity
	config []bench.Service

	mu     sync.Mutex
	phase  proto.Phase
	reason string
	states []proto.ServiceState
	ending bool
}

func newSlot(procs *processes, who *identity, services []bench.Service) *slot {
	s := &slot{procs: procs, who: who, config: services, phase: proto.PhaseStarting}
	for _, c := range services {
		s.states = append(s.states, proto.ServiceState{Name: string(c.Name)})
	}
	return s
}

// status returns phase, reason and a copy of the services' states.
func (s *slot) status() (proto.Phase, string, []proto.ServiceState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase, s.reason, slices.Clone(s.states)
}

// fail makes the slot failed; the first reason stays.
func (s *slot) fail(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != proto.PhaseFailed && !s.ending {
		s.phase, s.reason = proto.PhaseFailed, reason
		fmt.Fprintln(os.Stderr, "guestd: slot is failed:", reason)
	}
}

// start starts the services in order. Each is waited for before the next, for as
// long as it lives: how long that may take is for the readiness rule to say.
func (s *slot) start() {
	for i, c := range s.config {
		if err := s.startService(i, c); err != nil {
			s.mu.Lock()
			if s.states[i].Exit == "" {
				s.states[i].Exit = err.Error()
			}
			s.mu.Unlock()
			s.fail(fmt.Sprintf("service %s: %v", c.Name, err))
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == proto.PhaseStarting {
		s.phase = proto.PhaseRunning
	}
}

var errEnded = errors.New("it ended before it was ready")

func (s *slot) startService(i int, c bench.Service) error {
	ready := string(c.Ready)
	if ready != "" {
		// A path that is there already would prove nothing.
		if _, err := os.Lstat(ready); err == nil {
			return fmt.Errorf("its ready path %s is there before it was started", ready)
		}
	}
	who := s.who
	if c.User == "root" {
		who = rootIdentity()
	}
	path, err := who.program(c.Exec[0])
	if err != nil {
		return err
	}
	if err := os.MkdirAll(proto.LogDir, 0o755); err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	log, err := os.OpenFile(filepath.Join(proto.LogDir, string(c.Name)+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()

	s.mu.Lock()
	if s.ending {
		s.mu.Unlock()
		return errors.New("the slot is ending")
	}
	pid, ended, err := s.procs.start(path, c.Exec, who.attributes(c.Env, null.Fd(), log.Fd(), log.Fd()), noMark)
	if err != nil {
		s.mu.Unlock()
		return fmt.Errorf("start %s: %w", path, err)
	}
	s.states[i].Pid, s.states[i].Alive = pid, true
	s.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		s.ended(i, <-ended)
	}()

	for ready != "" && !isReady(ready) {
		select {
		case <-gone:
			return errEnded
		case <-time.After(readyPeriod):
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.states[i].Alive {
		return errEnded
	}
	s.states[i].Ready = true
	return nil
}

// isReady says whether a service's ready path is there. A socket is there when it
// is bound, and of use when it is listened on: a client that comes in between is
// turned away. The kernel's table says so without a connection.
func isReady(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket {
		return err == nil
	}
	table, err := os.ReadFile("/proc/self/net/unix")
	if err != nil {
		return false
	}
	const listening = "00010000" // __SO_ACCEPTCON, include/linux/net.h
	for line := range strings.Lines(string(table)) {
		// Address, references, protocol, flags, type, state, inode, path: see proc_net(5).
		// The path is as it was bound, so it may be relative or lead over a link; one
		// that begins with @ is no file.
		f := strings.Fields(line)
		if len(f) < 8 || f[3] != listening || f[7][0] == '@' {
			continue
		}
		bound, name := strings.TrimSuffix(line, "\n"), filepath.Base(path)
		if strings.HasSuffix(bound, "/"+name) || strings.HasSuffix(bound, " "+name) {
			return true
		}
	}
	return false
}

func (s *slot) ended(i int, status syscall.WaitStatus) {
	how := "exit " + fmt.Sprint(status.ExitStatus())
	if status.Signaled() {
		how = "signal " + fmt.Sprint(int(status.Signal()))
	}
	s.mu.Lock()
	s.states[i].Alive, s.states[i].Ready, s.states[i].Exit = false, false, how
	s.mu.Unlock()
	s.fail(fmt.Sprintf("service %s ended: %s", s.config[i].Name, how))
}

// shutdown ends everything in the slot but its first process: services get
// SIGTERM and some time, then everybody gets SIGKILL and is reaped.
func (s *slot) shutdown(signals <-chan os.Signal) {
	s.mu.Lock()
	s.ending = true
	for _, st := range s.states {
		if st.Alive {
			unix.Kill(-st.Pid, unix.SIGTERM) // its session's first group
		}
	}
	s.mu.Unlock()

	deadline := time.After(shutdownGrace)
	for s.anyAlive() {
		select {
		case <-signals:
			s.procs.reap()
		case <-deadline:
			deadline = nil
		case <-time.After(readyPeriod):
		}
		if deadline == nil {
			break
		}
	}
	for unix.Kill(-1, unix.SIGKILL); s.procs.reap(); unix.Kill(-1, unix.SIGKILL) {
		time.Sleep(readyPeriod)
	}
}

func (s *slot) isEnding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}

func (s *slot) anyAlive() bool {
	_, _, states := s.status()
	return slices.ContainsFunc(states, func(st proto.ServiceState) bool { return st.Alive })
}

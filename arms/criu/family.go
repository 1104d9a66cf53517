package criu

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// family is CRIU and everything that comes from it: its process group, its
// descendants, and a restored root task, which with rst_sibling is no descendant
// but a child of ours. A process outside of these is never touched; above all
// the tree that is being dumped is not.
type family struct {
	leader int

	mu   sync.Mutex
	held map[int]int // pid to pidfd
	// reaped: the leader's number, and its group's, may be anybody's from now on.
	reaped bool
}

// hold opens a pidfd, by which the process is meant from now on.
func (f *family) hold(pid int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.holdLocked(pid)
}

func (f *family) holdLocked(pid int) bool {
	if _, ok := f.held[pid]; ok {
		return false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false // gone
	}
	if f.held == nil {
		f.held = map[int]int{}
	}
	f.held[pid] = fd
	return true
}

// kill ends all of it. They are stopped first: a tree that stands still can be
// enumerated. Safe to call twice and from two goroutines.
func (f *family) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reaped {
		return
	}
	for {
		_ = unix.Kill(-f.leader, unix.SIGSTOP)
		more := false
		for _, pid := range append(groupMembers(f.leader), descendants(f.leader)...) {
			if f.holdLocked(pid) {
				_ = unix.PidfdSendSignal(f.held[pid], unix.SIGSTOP, nil, 0)
				more = true
			}
		}
		if !more {
			break
		}
	}
	f.killHeld()
	_ = unix.Kill(-f.leader, unix.SIGKILL)
	_ = unix.Kill(f.leader, unix.SIGKILL) // before it had a group
}

func (f *family) killHeld() {
	for _, fd := range f.held {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}

// retire is called before the leader is reaped.
func (f *family) retire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reaped = true
}

// settle kills what is held, waits until it is dead, and reaps what is a
// child of ours, members of CRIU's process group included: with rst_sibling the
// root task is one before CRIU has named it. CRIU itself was reaped before.
func (f *family) settle(patience time.Duration) error {
	deadline := time.Now().Add(patience)
	if err := f.settleHeld(deadline); err != nil {
		return err
	}
	for time.Now().Before(deadline) {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PGID, f.leader, &info, unix.WEXITED|unix.WNOHANG|unix.WALL, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil // no child of ours is in the group
		}
		if info.Signo == 0 { // one is, and not dead yet
			time.Sleep(time.Millisecond)
		}
	}
	return fmt.Errorf("process group %d still has a child of ours %s after SIGKILL", f.leader, patience)
}

// settleHeld kills what is held, waits until it is dead and reaps what is a child of ours.
func (f *family) settleHeld(deadline time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.killHeld()
	for pid, fd := range f.held {
		for {
			left := time.Until(deadline)
			if left <= 0 {
				return fmt.Errorf("process %d is still there after SIGKILL", pid)
			}
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("wait for process %d: %w", pid, err)
			}
			if n > 0 {
				break
			}
		}
		_ = unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG|unix.WALL, nil) // not ours: ECHILD
	}
	return nil
}

func (f *family) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fd := range f.held {
		unix.Close(fd)
	}
	f.held = nil
}

// descendants of a process, deepest last. The kernel's own list of children
// (CONFIG_PROC_CHILDREN, which CRIU needs too).
func descendants(pid int) []int {
	var found []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, word := range strings.Fields(string(data)) {
			if child, err := strconv.Atoi(word); err == nil {
				found = append(found, child)
				found = append(found, descendants(child)...)
			}
		}
	}
	return found
}

// groupMembers are the living processes of a group but its leader, orphans of it included.
func groupMembers(group int) []int {
	var found []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // ended
		}
		// pid (comm) state ppid pgrp ...; comm may hold anything
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if len(fields) < 3 || fields[0] == "Z" || fields[2] != strconv.Itoa(group) {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(name, "/")[2]); err == nil && pid != group {
			found = append(found, pid)
		}
	}
	return found
}

// isChild says whether pid is a child of ours, dead or alive.
func isChild(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}

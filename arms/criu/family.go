package criu

import (
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
	// leader is unreaped as long as a method is called, so that its pid and its group's number are ours.
	leader int

	mu   sync.Mutex
	held map[int]int // pid to pidfd
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
	for {
		_ = unix.Kill(-f.leader, unix.SIGSTOP)
		more := false
		for _, pid := range descendants(f.leader) {
			if f.holdLocked(pid) {
				_ = unix.PidfdSendSignal(f.held[pid], unix.SIGSTOP, nil, 0)
				more = true
			}
		}
		if !more {
			break
		}
	}
	for _, fd := range f.held {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
	_ = unix.Kill(-f.leader, unix.SIGKILL)
	_ = unix.Kill(f.leader, unix.SIGKILL) // before it had a group
}

// end waits until everything that is held is dead and reaps what is a child of
// ours, the members of CRIU's process group included: with rst_sibling the root
// task is one before CRIU has named it. CRIU itself was reaped before.
func (f *family) end(root int, patience time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	deadline := time.Now().Add(patience)
	for pid, fd := range f.held {
		if pid == root {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		for {
			left := time.Until(deadline)
			if left <= 0 {
				break
			}
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
			if n > 0 || !errors.Is(err, unix.EINTR) {
				break
			}
		}
		_ = unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG|unix.WALL, nil)
	}
	for time.Now().Before(deadline) {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PGID, f.leader, &info, unix.WEXITED|unix.WNOHANG|unix.WALL, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return // no child of ours is in the group
		}
		if info.Signo == 0 { // one is, and not dead yet
			time.Sleep(time.Millisecond)
		}
	}
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

// isChild says whether pid is a child of ours, dead or alive.
func isChild(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// processes starts programs and reaps everything that ends in the slot.
//
// One lock is held while a program is started and while zombies are taken, so
// that a pid is never reaped before it is known who waits for it, and os/exec is
// not used: it would wait for its children itself, and keep pidfds.
//
// # Trees
//
// A tree is a program with all that it started, wherever that went: a daemon
// forks twice, leaves the session, and belongs to pid 1 like everybody else's
// orphans. So each program that may have to be ended with its tree carries a
// mark that fork and exec hand on and that nothing else looks at: the soft limit
// RLIMIT_LOCKS, which no kernel since 2.4.25 enforces (getrlimit(2)) and which
// everybody can read in /proc/PID/limits. The limit is set on guestd itself for
// the moment of the fork.
type processes struct {
	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
	marks   uint64
	// group is the control group that programs are born into; nil for guestd's own.
	group *os.File
}

// noMark is the mark of what is never ended as a tree: no limit.
const noMark = ^uint64(0)

// firstMark lies far from what anybody sets as a number of locks.
const firstMark = 1 << 40

func newProcesses() *processes {
	return &processes{waiting: make(map[int]chan syscall.WaitStatus), marks: firstMark}
}

// mark returns a mark that was never used before.
func (p *processes) mark() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.marks++
	return p.marks
}

// start starts a program; its status comes once on the channel.
func (p *processes) start(path string, argv []string, attr *syscall.ProcAttr, mark uint64) (int, <-chan syscall.WaitStatus, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if mark != noMark {
		var own unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_LOCKS, &own); err != nil {
			return 0, nil, fmt.Errorf("read limit: %w", err)
		}
		if err := unix.Setrlimit(unix.RLIMIT_LOCKS, &unix.Rlimit{Cur: mark, Max: own.Max}); err != nil {
			return 0, nil, fmt.Errorf("mark the program's tree: %w", err)
		}
		defer unix.Setrlimit(unix.RLIMIT_LOCKS, &own)
	}
	if p.group != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(p.group.Fd())
	}
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, nil, err
	}
	ended := make(chan syscall.WaitStatus, 1)
	p.waiting[pid] = ended
	return pid, ended, nil
}

// signal sends a signal to a program that was started and not reaped yet: its pid is nobody else's.
func (p *processes) signal(pid int, sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ours := p.waiting[pid]; !ours {
		return nil
	}
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}

// reap takes every zombie that is there and returns how many children are left: none is 0.
func (p *processes) reap() (left bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return false // ECHILD
		case pid == 0:
			return true
		default:
			if ended, ok := p.waiting[pid]; ok {
				delete(p.waiting, pid)
				ended <- status
			}
		}
	}
}

// task is one process as /proc shows it.
type task struct {
	pid, parent, session int
	state                byte
	started              uint64 // ticks since boot; with the pid an identity
	mark                 uint64
}

func (t task) dead() bool { return t.state == 'Z' || t.state == 'X' }

// tasks reads all processes of the slot and hands each to visit at once.
//
// settled says that what was read is what there is. It is not where a process
// ended between the listing and its reading, or is an orphan that nobody has
// reaped yet: it may have left a child behind that the listing does not have.
func tasks(visit func(task) error) (all []task, settled bool, err error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, false, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, false, err
	}
	settled = true
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		t, err := readTask(pid)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			settled = false
			continue
		}
		if err == nil {
			err = visit(t)
		}
		if err != nil {
			return nil, false, err
		}
		if t.dead() && t.parent == 1 {
			settled = false
		}
		all = append(all, t)
	}
	return all, settled, nil
}

// readTask reads proc_pid_stat(5) and the mark. The mark is read first: a
// process that is a zombie by then has none, and its state says so.
func readTask(pid int) (task, error) {
	t := task{pid: pid, mark: noMark}
	base := "/proc/" + strconv.Itoa(pid)
	limits, err := os.ReadFile(base + "/limits")
	if err != nil {
		return t, err
	}
	if _, rest, ok := strings.Cut(string(limits), "\nMax file locks "); ok {
		// "unlimited" does not parse, and leaves noMark.
		if soft := strings.Fields(rest); len(soft) > 0 {
			if n, err := strconv.ParseUint(soft[0], 10, 64); err == nil {
				t.mark = n
			}
		}
	}
	stat, err := os.ReadFile(base + "/stat")
	if err != nil {
		return t, err
	}
	// The name may hold anything, also ") R 1".
	rest := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
	f := strings.Fields(rest)
	if len(f) < 20 {
		return t, fmt.Errorf("%s/stat has %d fields", base, len(f))
	}
	t.state = f[0][0]
	t.parent, _ = strconv.Atoi(f[1])
	t.session, _ = strconv.Atoi(f[3])
	t.started, err = strconv.ParseUint(f[19], 10, 64)
	return t, err
}

// tree returns the live processes of the tree of root: those that carry its
// mark, those in its session, and all that descend from one of them. The latter
// two catch who has set its own limits.
func tree(all []task, root int, mark uint64) []task {
	in := make(map[int]bool)
	for grown := true; grown; {
		grown = false
		for _, t := range all {
			if t.pid != 1 && !in[t.pid] && (t.pid == root || t.mark == mark || t.session == root || in[t.parent]) {
				in[t.pid], grown = true, true
			}
		}
	}
	var out []task
	for _, t := range all {
		if in[t.pid] && !t.dead() {
			out = append(out, t)
		}
	}
	return out
}

// endTree ends a tree and returns nil once a settled reading of /proc shows nobody of it.
//
// First everybody is stopped, until a settled reading shows nobody new: a stopped
// process does not fork, and still counts against the slot's pids limit, so that
// a tree that grows while it is ended runs out of room. Then everybody is killed.
func endTree(root int, mark uint64, limit time.Duration) error {
	begin := time.Now()
	type identity struct {
		pid     int
		started uint64
	}
	stopped := make(map[identity]bool)
	stop := func(t task) error {
		id := identity{t.pid, t.started}
		if stopped[id] {
			return nil
		}
		stopped[id] = true
		return signalTask(t, unix.SIGSTOP)
	}
	kill := func(t task) error { return signalTask(t, unix.SIGKILL) }

	act := stop
	for {
		known := len(stopped)
		all, settled, err := tasks(func(t task) error {
			// Those that are known at sight are not left running until the whole list is read.
			if t.mark == mark && t.pid != 1 && !t.dead() {
				return act(t)
			}
			return nil
		})
		if err != nil {
			return err
		}
		left := tree(all, root, mark)
		for _, t := range left {
			if err := act(t); err != nil {
				return err
			}
		}
		spent := time.Since(begin)
		switch {
		case len(left) == 0 && settled:
			return nil
		case spent > limit:
			return fmt.Errorf("not gone %s after its end began: %d processes in the last reading, settled %t", limit, len(left), settled)
		case spent > limit/2 || (settled && len(stopped) == known):
			act = kill
		}
		time.Sleep(time.Millisecond)
	}
}

// signalTask sends to exactly the process that t was read of, not to one that has its pid by now.
func signalTask(t task, sig unix.Signal) error {
	fd, err := unix.PidfdOpen(t.pid, 0)
	// A process that is reaped in this moment is EINVAL on older kernels: its number leads no group of threads any more.
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open pid %d: %w", t.pid, err)
	}
	defer unix.Close(fd)
	now, err := readTask(t.pid)
	if err != nil || now.started != t.started {
		return nil // it has ended
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send %s to pid %d: %w", unix.SignalName(sig), t.pid, err)
	}
	return nil
}

package tree

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	prom "github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/locks"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// pollTime is how long a kernel state is waited for between two looks.
const pollTime = 200 * time.Microsecond

// GuestEnv is all of the environment that the first process gets.
func GuestEnv(g bench.Guest) ([]string, error) {
	b, err := json.Marshal(g)
	if err != nil {
		return nil, err
	}
	return []string{guest.ConfigVariable + "=" + string(b), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + string(g.Home), "LANG=C.UTF-8"}, nil
}

// RepairLocks puts back the locks that the restored, stopped tree lacks. The
// gate takes a census of all locks; nothing here is believed.
func RepairLocks(ctx context.Context, pid int, want []bench.Lock) error {
	if len(want) == 0 {
		return nil
	}
	_, err := locks.Restore(ctx, pid, want)
	return err
}

// Continue sends SIGCONT to every task of a tree that stands still but those whose
// inner pids are in stopped, and returns once none of them is stopped any more.
func Continue(ctx context.Context, pid int, stopped map[int]bool) error {
	tasks, err := procfs.Tree(pid)
	if err != nil {
		return err
	}
	return continued(ctx, tasks, func(inner int) bool { return !stopped[inner] })
}

// ContinueOnly is Continue for the tasks whose inner pids are in these, and no
// others, those that joined the slot from outside among them.
func ContinueOnly(ctx context.Context, pid int, these map[int]bool) error {
	tasks, err := procfs.Tasks(pid)
	if err != nil {
		return err
	}
	return continued(ctx, tasks, func(inner int) bool { return these[inner] })
}

func continued(ctx context.Context, tasks []procfs.Task, meant func(inner int) bool) error {
	tasks = slices.DeleteFunc(tasks, func(t procfs.Task) bool { return !meant(t.Inner) })
	for _, task := range tasks {
		if err := unix.Kill(task.Pid, unix.SIGCONT); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("continue pid %d: %w", task.Inner, err)
		}
	}
	for _, task := range tasks {
		for {
			st, err := observe.ReadStatus(os.DirFS("/proc"), task.Pid)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || err == nil && st.State != 'T' {
				break
			}
			if err != nil {
				return fmt.Errorf("look whether pid %d runs: %w", task.Inner, err)
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(pollTime):
			}
		}
	}
	return nil
}

// Reap waits for a dead child of ours. It was killed and its group is empty, so
// the wait is for the kernel only; WNOHANG keeps the deadline in our hands. One
// that is nobody's child of ours was reaped by who has it.
func Reap(ctx context.Context, pid int) error {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.ECHILD):
			return nil
		case err != nil:
			return fmt.Errorf("wait for pid %d: %w", pid, err)
		case got == pid && (status.Exited() || status.Signaled()):
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for pid %d: %w", pid, context.Cause(ctx))
		case <-time.After(pollTime):
		}
	}
}

// ReapStrays waits for the children of ours in groups that were killed: an
// operation that was cut short may have made processes before anybody learnt their
// pids. A killed group counts as empty before its tasks are zombies (cgroup_exit
// comes before exit_notify, which for the first of a pid namespace waits for all of
// it), and an orphan is ours only once its parent is that far: so whatever descends
// from us in these groups is waited for, in whatever state it is.
func ReapStrays(ctx context.Context, groups ...*cgroup.Group) error {
	for {
		children, more, err := strays(groups)
		if err != nil {
			return err
		}
		for _, pid := range children {
			if err := Reap(ctx, pid); err != nil {
				return err
			}
		}
		if len(children) == 0 && !more {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for what was killed: %w", context.Cause(ctx))
		case <-time.After(pollTime):
		}
	}
}

// strays lists our children in groups; more says that there are descendants too.
func strays(groups []*cgroup.Group) (children []int, more bool, err error) {
	fs, err := prom.NewDefaultFS()
	if err != nil {
		return nil, false, err
	}
	all, err := fs.AllProcs()
	if err != nil {
		return nil, false, err
	}
	parent := map[int]int{}
	for _, proc := range all {
		if stat, err := proc.Stat(); err == nil {
			parent[proc.PID] = stat.PPID
		}
	}
	for _, proc := range all {
		above := parent[proc.PID]
		for above != os.Getpid() && above > 1 {
			above = parent[above]
		}
		if above != os.Getpid() || !within(proc, groups) {
			continue
		}
		if parent[proc.PID] == os.Getpid() {
			children = append(children, proc.PID)
		} else {
			more = true
		}
	}
	return children, more, nil
}

// within says whether a process is in one of the groups, or was when it ended. A
// zombie keeps its v2 group until it is reaped; the line ends in "(deleted)" where
// that was renewed.
func within(proc prom.Proc, groups []*cgroup.Group) bool {
	theirs, err := proc.Cgroups()
	if err != nil {
		return false // it is gone
	}
	for _, their := range theirs {
		for _, g := range groups {
			// The host's and our own view of the hierarchy may begin elsewhere: the end of the path counts.
			path := "/" + filepath.Join(filepath.Base(filepath.Dir(g.Path())), g.Name())
			if their.HierarchyID == 0 && (strings.Contains(their.Path+"/", path+"/") || strings.Contains(their.Path, path+" ")) {
				return true
			}
		}
	}
	return false
}

// Ended says whether a child of ours has ended; it does not reap it.
func Ended(pid int) (bool, error) {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return info.Signo != 0, err
}

// Leads requires that a slot's first process is number 1, and leads a group and
// a session of its own namespace: CRIU cannot dump a session whose leader is outside.
func Leads(pid int) error {
	first, err := procfs.First(pid)
	if err != nil {
		return err
	}
	if first.Session != 1 || first.Group != 1 {
		return fmt.Errorf("pid %d, session %d, group %d inside, want 1, 1 and 1", first.Inner, first.Session, first.Group)
	}
	return nil
}

// Limited requires that the kernel already holds a slot's first process to its bounds.
func (t Tree) Limited() error {
	op := "read back limits of " + t.Name
	r := t.Limits.Read([]int{t.Pid})
	got, ok := r.Get()
	if !ok {
		return &engine.Error{Op: op, Err: fmt.Errorf("%w: %s", engine.ErrUnknown, r.Reason())}
	}
	if len(got.Outside) > 0 {
		return &engine.Error{Op: op, Err: fmt.Errorf("pid %d is not in the limits group", t.Pid)}
	}
	return nil
}

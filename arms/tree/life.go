package tree

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	prom "github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/locks"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
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
// gate takes the census again; nothing here is believed.
func RepairLocks(ctx context.Context, pid int, want []bench.Lock) error {
	have, _, err := locks.Census(pid)
	if err != nil {
		return fmt.Errorf("census of locks: %w", err)
	}
	missing, _ := locks.Diff(want, have)
	if len(missing) == 0 {
		return nil
	}
	_, err = locks.Repair(ctx, pid, missing)
	return err
}

// Continue sends SIGCONT to every task but those whose inner pids are in
// stopped, and returns once none of them is stopped any more.
func Continue(ctx context.Context, pid int, stopped map[int]bool) error {
	tasks, err := procfs.Tasks(pid)
	if err != nil {
		return err
	}
	for _, task := range tasks {
		if stopped[task.Inner] {
			continue
		}
		if err := unix.Kill(task.Pid, unix.SIGCONT); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("continue pid %d: %w", task.Inner, err)
		}
	}
	for {
		tasks, err := procfs.Tasks(pid)
		if err != nil {
			return err
		}
		running := true
		for _, task := range tasks {
			running = running && (task.Status.State != 'T' || stopped[task.Inner])
		}
		if running {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollTime):
		}
	}
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

// ReapStrays waits for the dead children of ours that were in a v2 group, named
// by the end of its path ("/drums-ID/slot-0"): an operation that was cut short
// may have made processes before anybody learnt their pids.
func ReapStrays(ctx context.Context, group string) error {
	fs, err := prom.NewDefaultFS()
	if err != nil {
		return err
	}
	all, err := fs.AllProcs()
	if err != nil {
		return err
	}
	for _, proc := range all {
		stat, err := proc.Stat()
		if err != nil || stat.PPID != os.Getpid() || stat.State != "Z" {
			continue
		}
		// A zombie keeps its v2 group until it is reaped; the line then ends in "(deleted)".
		groups, err := proc.Cgroups()
		if err != nil {
			continue
		}
		for _, g := range groups {
			if g.HierarchyID == 0 && strings.Contains(g.Path+"/", group+"/") || strings.Contains(g.Path, group+" ") {
				if err := Reap(ctx, proc.PID); err != nil {
					return err
				}
				break
			}
		}
	}
	return nil
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
	tasks, err := procfs.Tasks(pid)
	if err != nil {
		return err
	}
	for _, task := range tasks {
		if task.Pid == pid && (task.Inner != 1 || task.Session != 1 || task.Group != 1) {
			return fmt.Errorf("pid %d, session %d, group %d inside, want 1, 1 and 1", task.Inner, task.Session, task.Group)
		}
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

package oci

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/tree"
)

// halt stops the tree, so that the census is of the very state that is dumped:
// runc tells nobody when its criu holds the tree, and between a census of a
// running tree and that moment anything could change. It returns the inner pids
// that the guest itself had stopped before.
//
// The group is frozen first: nothing is born while the signals are sent. A frozen
// task meets its SIGSTOP on its way out, before an instruction of its own.
func (p *place) halt(ctx context.Context, t *tenancy) (stopped map[int]bool, err error) {
	stopped = map[int]bool{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("stop the tree: %w", err), p.unhalt(ctx, t, stopped))
		}
	}()
	if err := p.group.Freeze(ctx); err != nil {
		return stopped, err
	}
	tasks, err := procfs.Tasks(t.Pid)
	if err != nil {
		return stopped, err
	}
	for _, task := range tasks {
		switch {
		case task.Zombie():
		case task.Status.State == 'T':
			stopped[task.Inner] = true
		default:
			if err := unix.Kill(task.Pid, unix.SIGSTOP); err != nil {
				return stopped, fmt.Errorf("signal pid %d: %w", task.Inner, err)
			}
		}
	}
	if err := p.group.Thaw(ctx); err != nil {
		return stopped, err
	}
	return stopped, criu.WaitStopped(ctx, t.Pid)
}

// unhalt lets a tree run on that was halted and not dumped, also where the
// operation's time is up.
func (p *place) unhalt(ctx context.Context, t *tenancy, stopped map[int]bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tree.UndoTime)
	defer cancel()
	return errors.Join(p.group.Thaw(ctx), tree.Continue(ctx, t.Pid, stopped))
}

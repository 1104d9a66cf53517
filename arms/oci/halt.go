package oci

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
)

// haltTime bounds the wait until every task stands still: one in an uninterruptible
// sleep, or that somebody traces, may never.
const haltTime = 3 * time.Second

// halted is what halt did to a tree, by inner pids.
type halted struct {
	// stopped are the tasks that the guest itself had stopped before.
	stopped map[int]bool
	// signalled are those that were sent a SIGSTOP; only they are continued.
	signalled map[int]bool
}

// halt stops the tree, so that the census is of the very state that is dumped:
// runc tells nobody when its criu holds the tree, and between a census of a
// running tree and that moment anything could change. On an error the tree runs
// on; criu.ErrTransient where a task does not stop in haltTime.
//
// The group is frozen first: nothing is born while the signals are sent. A frozen
// task meets its SIGSTOP on its way out, before an instruction of its own.
func (p *place) halt(ctx context.Context, t *tenancy) (h halted, err error) {
	h = halted{stopped: map[int]bool{}, signalled: map[int]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("stop the tree: %w", err), p.unhalt(ctx, t, h))
		}
	}()
	if err := p.holding(t).Freeze(ctx); err != nil {
		return h, err
	}
	tasks, err := procfs.Tasks(t.Pid)
	if err != nil {
		return h, err
	}
	// A freeze that is quick does not look at the time.
	if err := ctx.Err(); err != nil {
		return h, fmt.Errorf("%w: %w", engine.ErrDeadline, err)
	}
	// All of them before the first signal.
	for _, task := range tasks {
		if task.Status.State == 'T' {
			h.stopped[task.Inner] = true
		}
	}
	for _, task := range tasks {
		if task.Zombie() || h.stopped[task.Inner] {
			continue
		}
		if err := unix.Kill(task.Pid, unix.SIGSTOP); err != nil {
			return h, fmt.Errorf("signal pid %d: %w", task.Inner, err)
		}
		h.signalled[task.Inner] = true
	}
	if err := p.holding(t).Thaw(ctx); err != nil {
		return h, err
	}
	limited, cancel := context.WithTimeout(ctx, haltTime)
	defer cancel()
	err = criu.WaitStopped(limited, t.Pid)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: after %v %v", criu.ErrTransient, haltTime, err)
	}
	return h, err
}

// unhalt lets a tree run on that was halted, all or in part, and not dumped, also
// where the operation's time is up.
func (p *place) unhalt(ctx context.Context, t *tenancy, h halted) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tree.UndoTime)
	defer cancel()
	err := p.holding(t).Thaw(ctx)
	if len(h.signalled) == 0 {
		return err
	}
	return errors.Join(err, tree.ContinueOnly(ctx, t.Pid, h.signalled))
}

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// Group is a child of the ownership cgroup: one for the tools, one for each
// slot. Start processes in it with SysProcAttr{UseCgroupFD: true, CgroupFD:
// g.FD()}, so that they never exist outside of it. Safe for concurrent use.
type Group struct {
	owner *Owner
	name  string
	path  string

	mu   sync.Mutex
	node *node
	dir  *os.File
	// killed says that the group was, or may have been, killed and was not made anew since.
	killed bool
	// units is the systemd that made the group, a scope; nil for one that we made.
	units Units
}

// make owns, makes and opens the group's directory.
func (g *Group) make() error {
	n, err := makeNode(g.owner.ws.Ledger, g.owner.mkdir, g.path, "ownership of "+g.name)
	if err != nil {
		return err
	}
	g.node = n
	if g.dir, err = os.Open(g.path); err != nil {
		return &engine.Error{Op: "open cgroup", Err: err}
	}
	return nil
}

// Name of the group below its owner.
func (g *Group) Name() string { return g.name }

// Path of the group's directory. It stays the same for the group's life.
func (g *Group) Path() string { return g.path }

// FD of the group's directory. Ask anew for each start: Kill changes it.
func (g *Group) FD() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return int(g.dir.Fd())
}

// Pids lists the processes of the group and of the groups below it. Dead
// processes that nobody has waited for are not listed (cgroup-v2.rst).
func (g *Group) Pids() ([]int, error) {
	list := func() ([]int, error) { return pidsBelow(g.path) }
	if g.units != nil { // which takes an empty one away
		list = g.node.pids
	}
	pids, err := list()
	if err != nil {
		return nil, &engine.Error{Op: "list cgroup", Err: err}
	}
	return pids, nil
}

// Kill ends every process of the group and of the groups below it with SIGKILL
// and returns once the kernel says that none is left. Idempotent; a group that
// is gone is empty. When ctx ends first it returns ErrDeadline naming the pids.
// Reaping is the parents' business: a dead process that was not waited for no
// longer counts as in the group.
//
// A group that was killed is made anew under its name, without the groups below
// it (limits on a unified host: read their usage first). Linux 6.14 and later
// count the kills of a group and compare the count with the one of the group
// that a process is cloned from, so that whatever is cloned into a group that
// was ever killed dies at once (cgroup_css_set_fork, cgroup_post_fork). A Kill
// whose ctx ended first has killed all the same: the next one makes the group anew.
func (g *Group) Kill(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.units != nil {
		return g.killScope(ctx)
	}
	killed, err := kill(ctx, g.node)
	g.killed = g.killed || killed
	if err != nil || !g.killed {
		return err
	}
	if err := g.node.remove(ctx); err != nil {
		return err
	}
	if err := g.dir.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return &engine.Error{Op: "close cgroup", Err: err}
	}
	if err := g.make(); err != nil {
		return err
	}
	g.killed = false
	return nil
}

// kill says whether there was anything to kill, also where it did not see its end.
func kill(ctx context.Context, n *node) (bool, error) {
	ours, err := n.present()
	if err != nil {
		return false, &engine.Error{Op: "kill cgroup", Err: err}
	}
	if !ours {
		return false, nil
	}
	// Nothing can be born in an empty group but from us.
	if populated, err := event(n.path, "populated"); err == nil && !populated {
		return false, nil
	}
	err = write(filepath.Join(n.path, "cgroup.kill"), "1")
	// Kernels before 5.14 have no cgroup.kill.
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return false, &engine.Error{Op: "kill cgroup", Err: err}
	}
	return true, awaitEmpty(ctx, n, missing)
}

// awaitEmpty polls until no process is left. The kernel's own notification on
// cgroup.events is held back for up to 10 ms, which is half of a reset's kill.
func awaitEmpty(ctx context.Context, n *node, signal bool) error {
	for wait := 100 * time.Microsecond; ; wait = min(wait*5/4, 5*time.Millisecond) {
		populated, err := event(n.path, "populated")
		if err != nil {
			return &engine.Error{Op: "kill cgroup", Err: err}
		}
		pids, err := pidsBelow(n.path)
		if err != nil {
			return &engine.Error{Op: "kill cgroup", Err: err}
		}
		if !populated && len(pids) == 0 {
			return nil
		}
		if signal {
			for _, pid := range pids {
				if err := killMember(pid, n.path); err != nil {
					return &engine.Error{Op: "kill cgroup", Err: err}
				}
			}
		}
		select {
		case <-ctx.Done():
			return &engine.Error{Op: "kill cgroup", Err: fmt.Errorf("%w: %s still holds pids %v: %w", engine.ErrDeadline, n.path, pids, ctx.Err())}
		case <-time.After(wait):
		}
	}
}

// killMember signals one process through a pidfd. Membership is looked at
// again once the pidfd pins the process, so that a pid that was given to
// somebody else in between is left alone.
func killMember(pid int, group string) error {
	if pid == 0 {
		return fmt.Errorf("%w: a process of another pid namespace is in %s", engine.ErrRefused, group)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open pidfd of %d: %w", pid, err)
	}
	defer unix.Close(fd)
	pids, err := pidsBelow(group)
	if err != nil {
		return err
	}
	for _, p := range pids {
		if p != pid {
			continue
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill %d: %w", pid, err)
		}
	}
	return nil
}

// Freeze stops every process of the group and of the groups below it; it
// returns once the kernel says that all of them are stopped. Idempotent.
func (g *Group) Freeze(ctx context.Context) error {
	return g.setFrozen(ctx, "freeze cgroup", "1", true)
}

// Thaw undoes Freeze. Idempotent.
func (g *Group) Thaw(ctx context.Context) error { return g.setFrozen(ctx, "thaw cgroup", "0", false) }

func (g *Group) setFrozen(ctx context.Context, op, value string, want bool) error {
	if err := write(filepath.Join(g.path, "cgroup.freeze"), value); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	for wait := 50 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
		have, err := event(g.path, "frozen")
		if err != nil {
			return &engine.Error{Op: op, Err: err}
		}
		if have == want {
			return nil
		}
		select {
		case <-ctx.Done():
			return &engine.Error{Op: op, Err: fmt.Errorf("%w: %s: frozen is %t: %w", engine.ErrDeadline, g.path, have, ctx.Err())}
		case <-time.After(wait):
		}
	}
}

// Remove takes the group away once it is empty and proves its absence; EBUSY
// is tried again until ctx ends. Idempotent. The group cannot be used afterwards.
func (g *Group) Remove(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.units != nil {
		err := g.removeScope(ctx)
		if err == nil {
			g.owner.forget(g)
		}
		return err
	}
	if err := g.node.remove(ctx); err != nil {
		return err
	}
	if err := g.dir.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return &engine.Error{Op: "close cgroup", Err: err}
	}
	g.killed = false // nobody makes it anew
	g.owner.forget(g)
	return nil
}

// event reads one key of cgroup.events.
func event(dir, key string) (bool, error) {
	text, err := read(dir, "cgroup.events")
	if err != nil {
		if errors.Is(err, syscall.ENODEV) { // removed while it was open
			return false, fs.ErrNotExist
		}
		return false, err
	}
	for _, line := range strings.Split(text, "\n") {
		if k, v, _ := strings.Cut(line, " "); k == key {
			return v == "1", nil
		}
	}
	return false, fmt.Errorf("%w: %s/cgroup.events has no %q", engine.ErrUnknown, dir, key)
}

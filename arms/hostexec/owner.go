package hostexec

import (
	"context"
	"sync"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/engine"
)

// owner lends the run's ownership cgroup. Each acquire has its release.
type owner interface {
	acquire() (*cgroup.Owner, error)
	release(ctx context.Context) error
}

// lent is an arm's; the arm takes it away.
type lent struct {
	has Owners
	ws  *engine.Workspace
}

func (l lent) acquire() (*cgroup.Owner, error) { return l.has.Owner(l.ws) }
func (lent) release(context.Context) error     { return nil }

// counted is the runner's own: there as long as somebody has it.
type counted struct {
	ws *engine.Workspace

	mu    sync.Mutex
	users int
	owner *cgroup.Owner
}

func (c *counted) acquire() (*cgroup.Owner, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owner == nil {
		o, err := cgroup.OpenOwner(c.ws)
		if err != nil {
			return nil, err
		}
		c.owner = o
	}
	c.users++
	return c.owner, nil
}

func (c *counted) release(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users > 1 {
		c.users--
		return nil
	}
	if err := c.owner.Remove(ctx); err != nil {
		return err // the user stays counted and can try again
	}
	c.users, c.owner = 0, nil
	return nil
}

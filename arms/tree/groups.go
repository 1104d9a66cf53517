package tree

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// toolsGroup is the name of the group of tools.
const toolsGroup = "tools"

// Groups are a run's ownership cgroup and the group of tools in it, both nil
// before Open or Adopt. Made once for an arm.
type Groups struct {
	mu    sync.Mutex
	Run   *cgroup.Owner
	Tools *cgroup.Group
}

// Open makes both, once, and returns the group of tools.
func (g *Groups) Open(ws *engine.Workspace) (*cgroup.Group, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.Tools != nil {
		return g.Tools, nil
	}
	if g.Run == nil {
		owner, err := cgroup.OpenOwner(ws)
		if err != nil {
			return nil, err
		}
		g.Run = owner
	}
	tools, err := g.Run.Group(toolsGroup)
	if err != nil {
		return nil, err
	}
	g.Tools = tools
	return tools, nil
}

// Owner is the run's ownership cgroup, made if there is none yet.
func (g *Groups) Owner(ws *engine.Workspace) (*cgroup.Owner, error) {
	if _, err := g.Open(ws); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.Run, nil
}

// Adopt takes over those of places' handles, which are of one run.
func (g *Groups) Adopt(ws *engine.Workspace, things Owned, places ...bench.PlaceHandle) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.Run != nil {
		return errors.New("adopt place: the arm has begun a run of its own")
	}
	h, made := places[0], map[string]int{}
	for _, p := range places {
		if p.Ownership != h.Ownership || p.Tools != h.Tools || p.Image != h.Image {
			return Refused("%s and %s do not stand on the same image and groups", h.Name, p.Name)
		}
		made[string(p.Name)] = int(p.Tenancies)
	}
	owner, err := things.Group(h.Ownership)
	if err != nil {
		return err
	}
	tools, err := things.Group(h.Tools)
	if err != nil {
		return err
	}
	if g.Run, err = cgroup.AdoptOwner(ws, owner, made); err != nil {
		return err
	}
	g.Tools, err = g.Run.AdoptGroup(toolsGroup, tools)
	return err
}

// Release takes the ownership cgroup away, after every slot, and ends whatever
// is left in the group of tools.
func (g *Groups) Release(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	if g.Tools != nil {
		errs = append(errs, g.Tools.Kill(ctx), g.Tools.Remove(ctx))
		g.Tools = nil
	}
	if g.Run != nil {
		errs = append(errs, g.Run.Remove(ctx))
		g.Run = nil
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("release ownership cgroup: %w", err)
	}
	return nil
}

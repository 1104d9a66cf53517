package qemu

import (
	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/engine"
)

// Owner is the run's ownership cgroup, made if there is none yet. The arm's
// Release takes it away; whoever makes a group in it removes that before.
func (a *Arm) Owner(ws *engine.Workspace) (*cgroup.Owner, error) {
	if _, err := a.groups(ws); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.owner, nil
}

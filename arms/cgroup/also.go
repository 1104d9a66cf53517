package cgroup

import (
	"path/filepath"

	"github.com/drumsbench/drumsbench/engine"
)

// Also makes a group of the limits' name on another v1 hierarchy, for a runtime
// that insists on one there (runc's devices). It enforces none of the limits'
// bounds, is owned, and is removed with them. Where limits live on v2, or the
// controller is not mounted, there is nothing to make.
func (l *Limits) Also(owner *Owner, controller string) error {
	h, mounted := owner.at.v1[controller]
	if owner.at.unified || !mounted || len(l.nodes) == 0 {
		return nil
	}
	dir := filepath.Join(h.dir(), filepath.Base(l.nodes[0].path))
	if controller == controllerDevices {
		l.devices = dir
	}
	for _, n := range l.nodes {
		if n.path == dir { // co-mounted with one of the limits' own
			return nil
		}
	}
	n, err := makeNode(owner.ws.Ledger, owner.mkdir, dir, "runtime's group on "+controller)
	if err != nil {
		return &engine.Error{Op: "make " + controller + " group", Err: err}
	}
	l.nodes = append(l.nodes, n)
	return nil
}

// Name is the last component of the limits' groups, the same on every hierarchy.
func (l *Limits) Name() string {
	if len(l.nodes) == 0 {
		return ""
	}
	return filepath.Base(l.nodes[0].path)
}

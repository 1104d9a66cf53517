package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Units is the systemd that keeps scopes.
type Units interface {
	// Stop ends a unit, and returns once there is none of that name.
	Stop(ctx context.Context, unit string) error
}

// scopeSuffix ends the name of a transient scope, and of its group's directory.
const scopeSuffix = ".scope"

// IsScope says whether a path is that of a scope's group.
func IsScope(path string) bool { return strings.HasSuffix(path, scopeSuffix) }

// defaultSlice is where systemd puts a scope of whoever is in no slice.
const defaultSlice = "system.slice"

// slice is the innermost slice of the system's systemd that a group lies in, as
// systemd names it, and its path in the hierarchy.
func slice(group string) (unit, path string) {
	unit, path = defaultSlice, "/"+defaultSlice
	at := "/"
	for part := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
		if !strings.HasSuffix(part, ".slice") {
			break // what is below is a unit's own, or of a systemd of a user's
		}
		at = filepath.Join(at, part)
		unit, path = part, at
	}
	return unit, path
}

// NewScope owns the limits of a slot that runc is about to have systemd make: a
// transient scope in the slice that we are in ourselves, with the run's claim in
// its name. Nothing is made here; Made takes it over once it is there, and Remove
// takes it away, also where it was never made. ErrRefused where limits do not live
// on v2, or the slice cannot be seen.
//
// Each call names another scope: what is in it bears its identity, and a group
// that was killed takes no process any more (Group.Kill).
func NewScope(ws *engine.Workspace, owner *Owner, slot string, r bench.Resources) (*Limits, error) {
	const op = "name scope"
	want, err := wanted(r)
	if err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	if !groupName.MatchString(slot) {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: slot name %q", engine.ErrUsage, slot)}
	}
	h := owner.at.v2
	if !owner.at.unified || h == nil {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: systemd makes a scope in one hierarchy only where the host has no other", engine.ErrRefused),
			Hint: "boot with the unified hierarchy: systemd.unified_cgroup_hierarchy=1"}
	}
	_, above := slice(h.path)
	rel, err := below(h.root(), above)
	if err != nil {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", engine.ErrRefused, err)}
	}
	owner.mu.Lock()
	defer owner.mu.Unlock()
	owner.limits[slot]++
	unit := fmt.Sprintf("drums-%s-%s-%d%s", ws.ID, slot, owner.limits[slot], scopeSuffix)
	n := &node{path: filepath.Join(h.mount, rel, unit), ledger: ws.Ledger, mkdir: owner.mkdir}
	if n.id, err = ws.Ledger.Intend("scope", bench.Claim{Path: n.path, Note: "limits of " + slot}); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	return owner.scoped(n, filepath.Join(above, unit), want), nil
}

// scoped are limits that stand on a scope's group. The owner is locked.
func (o *Owner) scoped(n *node, path string, want bounds) *Limits {
	g := &Group{owner: o, name: filepath.Base(n.path), path: n.path, node: n, units: o.units}
	o.groups = append(o.groups, g)
	return &Limits{
		kernel: v2{}, nodes: []*node{n}, scope: g, want: want,
		places: map[string]place{"": {dir: n.path, mount: o.at.v2.mount, path: path}},
	}
}

// Scope is the group of limits that systemd made, in which the slot's processes
// are listed, frozen and killed; nil for limits that we made.
func (l *Limits) Scope() *Group { return l.scope }

// Made takes over a scope's group: it is bound by device and inode, and has to
// enforce what was asked for, as its own files and those of the groups above say.
func (l *Limits) Made() error {
	const op = "take over scope"
	found, err := l.scope.find()
	if err == nil && !found {
		err = fmt.Errorf("%w: %s is not there", engine.ErrUnknown, l.scope.path)
	}
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	if _, err := os.Lstat(filepath.Join(l.scope.path, v2SwapLimit)); err != nil {
		l.noSwap = v2NoSwap
	}
	return l.verify(l.want)
}

// CgroupsPath is how a container's configuration names the scope to a runc that
// uses systemd: SLICE:PREFIX:NAME, of which runc makes PREFIX-NAME.scope.
func (l *Limits) CgroupsPath() string {
	unit, _ := slice(filepath.Dir(l.places[""].path))
	name := strings.TrimSuffix(l.scope.name, scopeSuffix)
	prefix, id, _ := strings.Cut(name, "-")
	return unit + ":" + prefix + ":" + id
}

// find binds the group of a scope that is there. What has its name bears the
// run's claim. found is false where it was not made, or is gone.
func (g *Group) find() (found bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.findLocked()
}

func (g *Group) findLocked() (found bool, err error) {
	n := g.node
	if n.ino != 0 {
		return n.present()
	}
	dev, ino, err := identify(n.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := g.owner.at.isV2(n.path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	n.dev, n.ino = dev, ino
	return true, n.ledger.Bind(n.id, bench.Identity{
		Dev: bench.Int64(strconv.FormatUint(dev, 10)), Ino: bench.Int64(strconv.FormatUint(ino, 10)),
	})
}

// isV2 requires that a directory is a control group of the kernel's.
func (l layout) isV2(dir string) error {
	if l.pretended {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if int64(st.Type) != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("%w: %s is no control group", engine.ErrUnknown, dir)
	}
	return nil
}

// killScope ends what is in a scope. systemd takes an empty one away, which may
// happen at any time from then on. The scope is not renewed: the next life of the
// slot has one of its own.
func (g *Group) killScope(ctx context.Context) error {
	found, err := g.findLocked()
	if err == nil && found {
		if _, err = kill(ctx, g.node); err != nil {
			err = g.node.vanished(ctx, err) // it went with its last process
		}
	}
	if err != nil {
		return &engine.Error{Op: "kill scope", Err: err}
	}
	return nil
}

// vanished is nil for an error that a group met while systemd was taking it away: the
// kernel removes a group's files before its folder, so that is waited for.
func (n *node) vanished(ctx context.Context, err error) error {
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		there, perr := n.present()
		switch {
		case perr == nil && !there:
			return nil
		case perr != nil || !errors.Is(err, fs.ErrNotExist):
			return errors.Join(err, perr)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// removeScope has systemd take an empty scope away, and proves that it is gone.
func (g *Group) removeScope(ctx context.Context) error {
	const op = "remove scope"
	found, err := g.findLocked()
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	if found {
		if pids, err := g.node.pids(); err != nil || len(pids) > 0 {
			return &engine.Error{Op: op, Err: errors.Join(err, fmt.Errorf("%w: %s holds pids %v", engine.ErrRefused, g.path, pids)), Hint: "kill them first"}
		}
	}
	// Also where there is no group: a scope that could not be started may be known as failed.
	if err := g.units.Stop(ctx, g.name); err != nil {
		return err
	}
	// What systemd has let go of and the kernel has not.
	return g.node.remove(ctx)
}

// pids of the group, none if it is gone or on its way, when it has no files any more.
func (n *node) pids() ([]int, error) {
	pids, err := pidsBelow(n.path)
	if err != nil {
		if _, ferr := os.Lstat(filepath.Join(n.path, "cgroup.procs")); errors.Is(ferr, fs.ErrNotExist) {
			return nil, nil
		}
		if there, perr := n.present(); perr == nil && !there {
			return nil, nil
		}
	}
	return pids, err
}

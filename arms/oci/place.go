package oci

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// place is where a slot is: its folder, its cgroups, its network namespace and,
// while it lives, its tree. Slot and Stopped are views of it; each reset makes a
// new tenancy.
type place struct {
	arm  *Arm
	ws   *engine.Workspace
	root *root
	name string
	// group is the slot's part of the ownership cgroup, helpers that of the runc
	// that dumps it; both outlive resets. Where systemd makes the slot's cgroup group
	// stays empty (holding).
	group, helpers *cgroup.Group
	// holder keeps the slot's network namespace over all resets, failed ones too;
	// nil where runc makes one.
	holder *netns.Holder

	mu   sync.Mutex
	now  *tenancy
	next int
}

// tenancy is one life of a slot, with the name of its container.
type tenancy struct {
	tree.Tenancy
	id string
}

// life is what tenancies of all arms share; nil of nil.
func (t *tenancy) life() *tree.Tenancy {
	if t == nil {
		return nil
	}
	return &t.Tenancy
}

func (p *place) containerID(life string) string { return "drums-" + p.ws.ID + "-" + life }

// container is the tenancy's container.
func (p *place) container(t *tenancy) Container {
	return Container{ID: t.id, Runc: p.arm.runcTool, CRIU: p.arm.tool, State: p.ws.State, Work: p.ws.Work, Run: p.ws.Run, Dir: t.Dir,
		Group: p.holding(t), Helpers: p.helpers, Limits: t.Limits}
}

// holding is the group that a tenancy's processes are in.
func (p *place) holding(t *tenancy) *cgroup.Group {
	if t != nil && t.Limits != nil && t.Limits.Scope() != nil {
		return t.Limits.Scope()
	}
	return p.group
}

// Name implements engine.Place.
func (p *place) Name() string { return p.name }

// as is the place behind any view of it.
func as(old engine.Place) (*place, error) {
	switch v := old.(type) {
	case *place:
		return v, nil
	case *slot:
		return v.place, nil
	case *stopped:
		return v.place, nil
	}
	return nil, fmt.Errorf("take place: place of another arm: %T", old)
}

// takePlace returns the place to build in: the vacated old one, or a new one.
// Whether the network namespace is still there is found out before the old tree is ended.
func (a *Arm) takePlace(ctx context.Context, ws *engine.Workspace, r engine.Root, old engine.Place, name string) (*place, error) {
	mounted, ok := r.(*root)
	if !ok {
		return nil, fmt.Errorf("take place: root of another arm: %T", r)
	}
	if old != nil {
		p, err := as(old)
		if err == nil && p.holder != nil {
			err = p.holder.Verify()
		}
		if err != nil {
			return nil, err
		}
		end := engine.StartSpan(ctx, "kill")
		err = p.Vacate(ctx)
		end()
		return p, err
	}
	owner, err := a.groups.Owner(ws)
	if err != nil {
		return nil, err
	}
	p := &place{arm: a, ws: ws, root: mounted, name: name}
	if p.group, err = owner.Group(name); err == nil {
		p.helpers, err = owner.Group(name + "-runc")
	}
	if err == nil && a.settings.Namespace == holderNamespace {
		end := engine.StartSpan(ctx, "holder")
		p.holder, err = netns.StartHolder(ctx, ws.Ledger, a.groups.Tools.FD(), a.groups.Tools.Path())
		end()
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), tree.UndoTime)
		defer cancel()
		return nil, errors.Join(err, p.Release(undo))
	}
	return p, nil
}

// move starts a new tenancy: folders and a fresh limits group, ledger first.
func (p *place) move(r bench.Resources) (*tenancy, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		return nil, errors.New("move into place: it is taken")
	}
	life := p.name + "." + strconv.Itoa(p.next)
	t := &tenancy{id: p.containerID(life), Tenancy: tree.Tenancy{Dir: filepath.Join(p.ws.Work, life)}}
	p.next++
	p.now = t // from here on vacate takes away whatever was made
	if err := t.Make(p.ws.Ledger, p.container(t).Folders()...); err != nil {
		return nil, err
	}
	var err error
	if p.arm.settings.Cgroups == systemdCgroups {
		t.Limits, err = cgroup.NewScope(p.ws, p.arm.groups.Run, p.name, r)
		return t, err
	}
	if t.Limits, err = cgroup.NewLimits(p.ws, p.arm.groups.Run, p.name, r); err != nil {
		return nil, err
	}
	return t, Bound(t.Limits, p.arm.groups.Run)
}

// settle records the tree's first process and opens its network namespace, which
// is the holder's where there is one.
func (p *place) settle(t *tenancy, pid int) error {
	if err := t.Settle(p.ws.Ledger, pid); err != nil {
		return err
	}
	if err := tree.Leads(pid); err != nil || p.holder == nil {
		return err
	}
	have, err := procfs.NamespaceOf(pid, "net")
	if err != nil {
		return err
	}
	if want := p.holder.Identity(); strconv.FormatUint(have.Ino, 10) != string(want.Ino) || strconv.FormatUint(have.Dev, 10) != string(want.Dev) {
		return fmt.Errorf("the slot is in network namespace %d, not in its holder's %s", have.Ino, want.Ino)
	}
	return nil
}

// tree is the slot's process tree for all that is shared with other arms.
func (p *place) tree(t *tenancy) tree.Tree {
	out := t.Tree(p.name, p.root.Root, p.arm.settings.Locks)
	out.Memory = func() engine.Reading[engine.Memory] { return p.memory(t) }
	out.Strays = func() ([]bench.Finding, error) { return p.strays(t) }
	if p.holder != nil {
		out.Holders = []int{p.holder.Pid()}
	}
	return out
}

// Vacate implements engine.Place: it ends the tree and takes the tenancy away.
// The network namespace stays.
func (p *place) Vacate(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.now
	if t == nil {
		return nil
	}
	// The groups hold the whole tree and every runc and criu at work on it. runc comes
	// first: it may be about to make what the tree is in.
	holding := p.holding(t)
	if err := errors.Join(p.helpers.Kill(ctx), holding.Kill(ctx)); err != nil {
		return err
	}
	if err := t.End(ctx, p.ws.Ledger, holding, p.helpers); err != nil {
		return err
	}
	// runc lets go of what it knows. Whether all of it is gone is found out below,
	// where what is left is taken away.
	if err := p.container(t).Delete(ctx); err != nil {
		p.ws.Log.Warn("runc does not delete a container", "slot", p.name, "error", err)
	}
	if err := t.Clear(ctx, p.ws.Ledger); err != nil {
		return &engine.Error{Op: "vacate " + p.name, Err: err}
	}
	p.now = nil
	return nil
}

// Release implements engine.Place.
func (p *place) Release(ctx context.Context) error {
	if err := p.Vacate(ctx); err != nil {
		return err
	}
	var errs []error
	if p.holder != nil {
		errs = append(errs, p.holder.Release(ctx))
	}
	for _, g := range []*cgroup.Group{p.helpers, p.group} {
		if g != nil {
			errs = append(errs, g.Remove(ctx))
		}
	}
	return errors.Join(errs...)
}

// slot is a running tree.
type slot struct{ *place }

// stopped is a restored tree that has not run yet.
type stopped struct{ *place }

// Facts implements engine.Telling: what criu says of the restore.
func (s *slot) Facts() []bench.Fact { return s.now.life().RestoreFacts() }

// Alive implements engine.Mortal. It does not reap: Vacate does.
func (s *slot) Alive() error { return s.now.life().Alive(s.name) }

// Dial implements engine.Slot: the socket is made inside the slot's network namespace.
func (s *slot) Dial(ctx context.Context, port int) (net.Conn, error) {
	return s.now.life().Dial(ctx, s.name, port)
}

// SetHostname implements engine.Renamer.
func (s *slot) SetHostname(_ context.Context, name string) error {
	return s.now.life().SetHostname(s.name, name)
}

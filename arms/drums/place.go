package drums

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/confine"
	"github.com/drumsbench/drumsbench/arms/drums/pages"
	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// place is where a slot is: its folder, its cgroups and, while it lives, its
// tree. Slot and Stopped are views of it; each reset makes a new tenancy.
type place struct {
	arm  *Arm
	ws   *engine.Workspace
	root *root
	name string
	// group is the slot's part of the ownership cgroup; it outlives resets.
	group *cgroup.Group

	mu   sync.Mutex
	now  *tenancy
	next int
	// clearing is the folder of the tenancy before; nil where none goes away.
	clearing *tree.Clearing
}

// tenancy is one life of a slot.
type tenancy struct {
	tree.Tenancy
	// tracer is the criu that holds the tree stopped, during a dump.
	tracer int
	// loopback says who brought the network back, of a restored tenancy.
	loopback bench.Fact
	// pages fills its memory while it runs; nil where criu did, or nothing is missing any more. filled says how it went.
	pages  *pages.Slot
	filled *pages.Stats
}

// life is what tenancies of all arms share; nil of nil.
func (t *tenancy) life() *tree.Tenancy {
	if t == nil {
		return nil
	}
	return &t.Tenancy
}

// birth is the cgroup that the slot's processes are born in, as a descriptor: the
// limits group where it lies on v2, else the slot's part of the ownership cgroup
// (the v1 limits are joined). Asked for anew each time: a kill renews the group.
func (p *place) birth(t *tenancy) int {
	if fd := t.Limits.FD(); fd >= 0 {
		return fd
	}
	return p.group.FD()
}

// helperBirth is the cgroup that a criu is born in that dumps the slot: its work counts
// against the slot's limits as at a restore. Where limits are joined on v1 it stays, on
// v2, outside the slot's part of the ownership cgroup, whose processes are the slot's.
func (p *place) helperBirth(t *tenancy) int {
	if fd := t.Limits.FD(); fd >= 0 {
		return fd
	}
	return p.arm.groups.Tools.FD()
}

// Name implements engine.Place.
func (p *place) Name() string { return p.name }

// takePlace returns the place to build in: the vacated old one, or a new one.
func (a *Arm) takePlace(ctx context.Context, ws *engine.Workspace, r engine.Root, old engine.Place, name string) (*place, error) {
	mounted, ok := r.(*root)
	if !ok {
		return nil, fmt.Errorf("take place: root of another arm: %T", r)
	}
	if old != nil {
		var p *place
		switch v := old.(type) {
		case *place:
			p = v
		case *slot:
			p = v.place
		case *stopped:
			p = v.place
		default:
			return nil, fmt.Errorf("take place: place of another arm: %T", old)
		}
		end := engine.StartSpan(ctx, "kill")
		err := p.vacate(ctx, true)
		end()
		return p, err
	}
	owner, err := a.groups.Owner(ws)
	if err != nil {
		return nil, err
	}
	group, err := owner.Group(name)
	if err != nil {
		return nil, err
	}
	return &place{arm: a, ws: ws, root: mounted, name: name, group: group}, nil
}

// move starts a new tenancy: folders and a fresh limits group, ledger first.
func (p *place) move(r bench.Resources) (*tenancy, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		return nil, errors.New("move into place: it is taken")
	}
	t := &tenancy{Tenancy: tree.Tenancy{Dir: filepath.Join(p.ws.Work, p.name+"."+strconv.Itoa(p.next)), Volatile: p.arm.settings.Writes == "volatile"}}
	p.next++
	p.now = t // from here on vacate takes away whatever was made
	if err := t.Make(p.ws.Ledger); err != nil {
		return nil, err
	}
	var err error
	if t.Limits, err = cgroup.NewLimits(p.ws, p.arm.groups.Run, p.name, r); err != nil {
		return nil, err
	}
	return t, t.Limits.Guard(p.arm.groups.Run, confine.DeviceRules())
}

// Vacate implements engine.Place: it ends the tree and takes the tenancy away.
func (p *place) Vacate(ctx context.Context) error { return p.vacate(ctx, false) }

// vacate is Vacate; beside, the folder may go while the next tenancy is made, and cleared waits for that.
func (p *place) vacate(ctx context.Context, beside bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.wait(); err != nil {
		return &engine.Error{Op: "vacate " + p.name, Err: err}
	}
	t := p.now
	if t == nil {
		return nil
	}
	// The group holds the whole tree, whatever it did to its sessions and parents.
	if err := p.group.Kill(ctx); err != nil {
		return err
	}
	if err := t.End(ctx, p.ws.Ledger, p.group); err != nil {
		return err
	}
	if err := t.endPages(ctx); err != nil {
		return err
	}
	var err error
	if beside {
		p.clearing, err = t.ClearBeside(ctx, p.ws.Ledger)
	} else {
		err = t.Clear(ctx, p.ws.Ledger)
	}
	if err != nil {
		return &engine.Error{Op: "vacate " + p.name, Err: err}
	}
	p.now = nil
	return nil
}

// cleared waits until nothing of the tenancy before is there any more.
func (p *place) cleared() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.wait(); err != nil {
		return &engine.Error{Op: "vacate " + p.name, Err: err}
	}
	return nil
}

func (p *place) wait() error {
	err := p.clearing.Wait()
	if err == nil {
		p.clearing = nil
	}
	return err
}

// Release implements engine.Place.
func (p *place) Release(ctx context.Context) error {
	if err := p.Vacate(ctx); err != nil {
		return err
	}
	return p.group.Remove(ctx)
}

// slot is a running tree.
type slot struct{ *place }

// stopped is a restored tree that has not run yet.
type stopped struct{ *place }

// Facts implements engine.Telling: what criu says of the restore, and who brought the network back.
func (s *slot) Facts() []bench.Fact {
	facts := s.now.life().RestoreFacts()
	if s.now != nil && s.now.loopback.Name != "" {
		facts = append(facts, s.now.loopback)
	}
	return facts
}

// Alive implements engine.Mortal. It does not reap: Vacate does.
func (s *slot) Alive() error {
	t := s.now
	if lost := t.lost(); lost != nil {
		return &engine.Error{Op: "watch " + s.name, Err: lost}
	}
	err := t.life().Alive(s.name)
	var e *engine.Error
	if t == nil || !errors.As(err, &e) || !errors.Is(err, engine.ErrDead) {
		return err
	}
	if said, err := overlay.Tail(t.Upper(), initLog, 300); err == nil && len(said) > 0 {
		e.Err = fmt.Errorf("%w: %q", e.Err, said)
	}
	return e
}

// Dial implements engine.Slot: the socket is made inside the slot's network namespace.
func (s *slot) Dial(ctx context.Context, port int) (net.Conn, error) {
	return s.now.life().Dial(ctx, s.name, port)
}

// SetHostname implements engine.Renamer.
func (s *slot) SetHostname(_ context.Context, name string) error {
	return s.now.life().SetHostname(s.name, name)
}

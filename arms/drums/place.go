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
	// leaving is the tenancy before, while its tree ends; nil where none does.
	leaving *tenancy
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

// takePlace returns the place to build in: the old one, or a new one.
func (a *Arm) takePlace(ws *engine.Workspace, r engine.Root, old engine.Place, name string) (*place, error) {
	mounted, ok := r.(*root)
	if !ok {
		return nil, fmt.Errorf("take place: root of another arm: %T", r)
	}
	switch v := old.(type) {
	case nil:
	case *place:
		return v, nil
	case *slot:
		return v.place, nil
	case *stopped:
		return v.place, nil
	default:
		return nil, fmt.Errorf("take place: place of another arm: %T", old)
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

// move starts a new tenancy: its folders, ledger first. It has no limits yet (limit).
func (p *place) move() (*tenancy, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		return nil, errors.New("move into place: it is taken")
	}
	t := &tenancy{Tenancy: tree.Tenancy{Dir: filepath.Join(p.ws.Work, p.name+"."+strconv.Itoa(p.next)), Volatile: p.arm.settings.Writes == "volatile"}}
	p.next++
	p.now = t // from here on Vacate takes away whatever was made
	return t, t.Make(p.ws.Ledger)
}

// limit makes a tenancy's limits group (span "place"), once the tree before has left: a kill takes every group below
// the place's own away.
func (p *place) limit(ctx context.Context, t *tenancy, r bench.Resources, left func() error) (err error) {
	if err := left(); err != nil {
		return err
	}
	p.clearing.Begin() // beside what makes no files of ours
	defer engine.StartSpan(ctx, "place")()
	if t.Limits, err = cgroup.NewLimits(p.ws, p.arm.groups.Run, p.name, r); err != nil {
		return err
	}
	return t.Limits.Guard(p.arm.groups.Run, confine.DeviceRules())
}

// Vacate implements engine.Place: it ends the tree and takes the tenancy away.
func (p *place) Vacate(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.wait()
	for _, t := range []*tenancy{p.leaving, p.now} {
		if t != nil && err == nil {
			if err = p.end(ctx, t); err == nil {
				err = t.Clear(ctx, p.ws.Ledger)
			}
		}
	}
	if err != nil {
		return &engine.Error{Op: "vacate " + p.name, Err: err}
	}
	p.leaving, p.now = nil, nil
	return nil
}

// end kills a tenancy's tree, and waits for it.
func (p *place) end(ctx context.Context, t *tenancy) error {
	// The group holds the whole tree, whatever it did to its sessions and parents.
	if err := p.group.Kill(ctx); err != nil {
		return err
	}
	if err := t.End(ctx, p.ws.Ledger, p.group); err != nil {
		return err
	}
	return t.endPages(ctx)
}

// leave has the tree of the tenancy that is here end (span "kill"), while the kernel can be asked for the layer of the
// next one. Nothing may be born in the place's group before left, which waits for that and may be called again, has
// returned nil. The old folder goes later (clearing).
func (p *place) leave(ctx context.Context) (left func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.wait(); err != nil {
		return func() error { return &engine.Error{Op: "vacate " + p.name, Err: err} }
	}
	if p.now == nil {
		return func() error { return nil }
	}
	p.leaving, p.now = p.now, nil
	return beside(func() error {
		defer engine.StartSpan(ctx, "kill")()
		err := p.end(ctx, p.leaving)
		if err == nil {
			p.clearing, err = p.leaving.ClearBeside(ctx, p.ws.Ledger)
		}
		if err != nil {
			return &engine.Error{Op: "vacate " + p.name, Err: err}
		}
		p.leaving = nil
		return nil
	})
}

// beside runs fn on a goroutine; what it returns waits for that, as often as it is called.
func beside(fn func() error) (wait func() error) {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	return sync.OnceValue(func() error { return <-done })
}

// settled ends a provision or restore that came to err: nothing of the tenancy before is there any more.
func (p *place) settled(err error, left func() error) error {
	if lerr := left(); err == nil {
		err = lerr
	}
	if err != nil {
		return err
	}
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

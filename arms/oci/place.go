package oci

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/hashicorp/go-multierror"
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
	// that dumps it; both outlive resets.
	group, helpers *cgroup.Group
	// holder keeps the slot's network namespace over all resets, failed ones too;
	// nil where runc makes one.
	holder *netns.Holder

	mu   sync.Mutex
	now  *tenancy
	next int
}

// tenancy is one life of a slot: what a provision or a restore makes and a reset takes away.
type tenancy struct {
	id     string
	dir    string
	dirID  int64
	limits *cgroup.Limits
	// layers are the sealed layers over the image, lowest first, as absolute paths.
	layers []string
	policy bench.CheckpointPolicy
	// exclude are the paths that the state manifest leaves out.
	exclude []string
	// pid is the host's pid of the slot's first process, a child of ours; 0 before there is one.
	pid    int
	procID int64
	net    *netns.Handle
	// from is the checkpoint that this tenancy was restored from; nil after a provision.
	from *engine.Checkpoint
	// stopped are inner pids that the guest had stopped at the dump and stay so.
	stopped map[int]bool
	// held: restored, and not let run.
	held bool
	// adopted holds on to a first process that another process of ours started;
	// died says how one had ended before it was taken over.
	adopted *procfs.Handle
	died    string
}

func (t *tenancy) upper() string    { return filepath.Join(t.dir, "upper") }
func (t *tenancy) work() string     { return filepath.Join(t.dir, "work") }
func (t *tenancy) merged() string   { return filepath.Join(t.dir, "merged") }
func (t *tenancy) bundle() string   { return filepath.Join(t.dir, "bundle") }
func (t *tenancy) home() string     { return filepath.Join(t.dir, "home") }
func (t *tenancy) runcRoot() string { return filepath.Join(t.dir, "runc") }
func (t *tenancy) runcLog() string  { return filepath.Join(t.dir, "runc.log") }
func (t *tenancy) pidFile() string  { return filepath.Join(t.dir, "pid") }
func (t *tenancy) criuConf() string { return filepath.Join(t.dir, "criu.conf") }

// birth is the cgroup that a runc which makes a slot is born in, with whatever it
// starts: the slot's part of the ownership cgroup. Where limits live on v2, a
// group with processes cannot bound others below it, and runc moves what it makes
// into the limits itself. Asked for anew each time: a kill renews the group.
func (p *place) birth(t *tenancy) int {
	if t.limits.FD() >= 0 {
		return p.helpers.FD()
	}
	return p.group.FD()
}

// cgroupsPath is the container's path, relative as runc takes it: on v1 to runc's
// own group, which is ours, on v2 to the group that runc's own lies in.
func (p *place) cgroupsPath(t *tenancy) string {
	if t.limits.FD() >= 0 {
		return p.name + "/" + t.limits.Name()
	}
	return t.limits.Name()
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
	tools, err := a.groups(ws)
	if err != nil {
		return nil, err
	}
	p := &place{arm: a, ws: ws, root: mounted, name: name}
	if p.group, err = a.owner.Group(name); err == nil {
		p.helpers, err = a.owner.Group(name + "-runc")
	}
	if err == nil && a.settings.Namespace == holderNamespace {
		end := engine.StartSpan(ctx, "holder")
		p.holder, err = netns.StartHolder(ctx, ws.Ledger, tools.FD(), tools.Path())
		end()
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
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
	t := &tenancy{id: "drums-" + p.ws.ID + "-" + life, dir: filepath.Join(p.ws.Work, life)}
	p.next++
	p.now = t // from here on vacate takes away whatever was made
	var err error
	t.dirID, err = engine.Own(p.ws.Ledger, "directory", bench.Claim{Path: t.dir}, func() (bench.Identity, error) {
		for _, d := range []string{t.dir, t.upper(), t.work(), t.merged(), t.home(), t.runcRoot()} {
			// 0755 on upper: it is the slot's root directory.
			if err := os.Mkdir(d, 0o755); err != nil {
				return bench.Identity{}, err
			}
		}
		return tree.FileIdentity(t.dir)
	})
	if err != nil {
		return nil, err
	}
	if t.limits, err = cgroup.NewLimits(p.ws, p.arm.owner, p.name, r); err != nil {
		return nil, err
	}
	return t, t.limits.Also(p.arm.owner, "devices")
}

// settle records the tree's first process and opens its network namespace, which
// is the holder's where there is one. pid is what runc wrote down; that it is the
// slot's first process is found out by the group that it was born in and by its
// number in its own namespace.
func (p *place) settle(t *tenancy, pid int) error {
	inside, err := p.group.Pids()
	if err != nil {
		return err
	}
	found := false
	for _, i := range inside {
		found = found || i == pid
	}
	if !found {
		return fmt.Errorf("pid %d, which runc names, is not in the slot's control group %s", pid, p.group.Path())
	}
	t.pid = pid
	id, err := procfs.Identity(pid)
	if err != nil {
		return err
	}
	if err := p.ws.Ledger.Bind(t.procID, id); err != nil {
		return err
	}
	if err := tree.Leads(pid); err != nil {
		return err
	}
	if t.net, err = netns.Open(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil || p.holder == nil {
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
	out := tree.Tree{
		Name: p.name, Pid: t.pid, Limits: t.limits, Policy: t.policy, Locks: p.arm.settings.Locks,
		Image: p.root.Dir(), Layers: t.layers, Upper: t.upper(), Work: t.work(), Exclude: t.exclude, Hashes: &p.root.hashes,
		Ended: t.ended, Memory: func() engine.Reading[engine.Memory] { return p.memory(t) },
		Strays: func() ([]bench.Finding, error) { return p.strays(t) },
	}
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
	// The groups hold the whole tree and every runc and criu at work on it.
	if err := errors.Join(p.helpers.Kill(ctx), p.group.Kill(ctx)); err != nil {
		return err
	}
	if t.pid != 0 {
		if err := t.reap(ctx); err != nil {
			return err
		}
	} else if t.procID != 0 {
		for _, name := range []string{p.group.Name(), p.helpers.Name()} {
			if err := tree.ReapStrays(ctx, "/drums-"+p.ws.ID+"/"+name); err != nil {
				return err
			}
		}
	}
	if t.procID != 0 {
		if err := p.ws.Ledger.Gone(t.procID); err != nil {
			return err
		}
		t.procID = 0
	}
	var errs *multierror.Error
	if t.net != nil {
		errs = multierror.Append(errs, t.net.Close())
		t.net = nil
	}
	// runc lets go of what it knows. Whether all of it is gone is found out below,
	// where what is left is taken away.
	if err := p.forget(ctx, t); err != nil {
		p.ws.Log.Warn("runc does not delete a container", "slot", p.name, "error", err)
	}
	if t.limits != nil {
		errs = multierror.Append(errs, t.limits.Remove(ctx))
	}
	if err := os.RemoveAll(t.dir); err != nil {
		errs = multierror.Append(errs, err)
	} else if t.dirID != 0 || errs.ErrorOrNil() == nil {
		errs = multierror.Append(errs, p.ws.Ledger.Gone(t.dirID))
	}
	if err := errs.ErrorOrNil(); err != nil {
		return &engine.Error{Op: "vacate " + p.name, Err: err}
	}
	p.now = nil
	return nil
}

// forget has runc delete a container whose tree has ended.
func (p *place) forget(ctx context.Context, t *tenancy) error {
	if _, err := os.Lstat(filepath.Join(t.runcRoot(), t.id)); err != nil {
		return nil // runc knows of none
	}
	defer engine.StartSpan(ctx, "delete")()
	return tree.Apart(0, func() error {
		if err := hideCgroups(); err != nil {
			return err
		}
		ctx, done := call{groupFD: p.helpers.FD(), env: p.arm.env(t.home())}.with(ctx)
		defer done()
		return p.arm.runc(t).Delete(ctx, t.id, nil)
	})
}

// reap waits for the first process, which was killed. One that we adopted is its
// parent's to reap; it has let go of everything by then.
func (t *tenancy) reap(ctx context.Context) error {
	if t.adopted != nil {
		if err := t.adopted.Wait(ctx); err != nil {
			return err
		}
		t.adopted.Close()
		t.adopted = nil
	}
	if err := tree.Reap(ctx, t.pid); err != nil {
		return err
	}
	t.pid = 0
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

// Alive implements engine.Mortal. It does not reap: Vacate does.
func (s *slot) Alive() error {
	t := s.now
	if t == nil || t.pid == 0 && t.died == "" {
		return &engine.Error{Op: "watch " + s.name, Err: engine.ErrDead}
	}
	ended, err := t.ended()
	if err != nil {
		return &engine.Error{Op: "watch " + s.name, Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
	}
	if !ended {
		return nil
	}
	return &engine.Error{Op: "watch " + s.name, Err: fmt.Errorf("%w: its first process has ended%s", engine.ErrDead, t.died)}
}

// ended says whether the first process has ended, as a zombie too.
func (t *tenancy) ended() (bool, error) {
	switch {
	case t.pid == 0:
		return true, nil
	case t.adopted != nil:
		return t.adopted.Exited()
	}
	return tree.Ended(t.pid)
}

// Dial implements engine.Slot: the socket is made inside the slot's network namespace.
func (s *slot) Dial(ctx context.Context, port int) (net.Conn, error) {
	t := s.now
	if t == nil || t.net == nil {
		return nil, &engine.Error{Op: "dial " + s.name, Err: engine.ErrDead}
	}
	return t.net.Dial(ctx, "127.0.0.1", port)
}

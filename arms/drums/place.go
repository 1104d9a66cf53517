package drums

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-multierror"
	prom "github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/arms/procfs"
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
}

// tenancy is one life of a slot: what a provision or a restore makes and a reset takes away.
type tenancy struct {
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
	// tracer is the criu that holds the tree stopped, during a dump.
	tracer int
	// from is the checkpoint that this tenancy was restored from; nil after a provision.
	from *engine.Checkpoint
	// stopped are inner pids that were stopped at the dump and stay so.
	stopped map[int]bool
	// held: restored, and not let run.
	held bool
	// adopted holds on to a first process that another process of ours started;
	// died says how one had ended before it was taken over.
	adopted *procfs.Handle
	died    string
}

func (t *tenancy) upper() string  { return filepath.Join(t.dir, "upper") }
func (t *tenancy) work() string   { return filepath.Join(t.dir, "work") }
func (t *tenancy) merged() string { return filepath.Join(t.dir, "merged") }

// birth is the cgroup that the slot's processes are born in, as a descriptor: the
// limits group where it lies on v2, else the slot's part of the ownership cgroup
// (the v1 limits are joined). Asked for anew each time: a kill renews the group.
func (p *place) birth(t *tenancy) int {
	if fd := t.limits.FD(); fd >= 0 {
		return fd
	}
	return p.group.FD()
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
		err := p.Vacate(ctx)
		end()
		return p, err
	}
	if _, err := a.groups(ws); err != nil {
		return nil, err
	}
	group, err := a.owner.Group(name)
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
	t := &tenancy{dir: filepath.Join(p.ws.Work, p.name+"."+strconv.Itoa(p.next))}
	p.next++
	p.now = t // from here on vacate takes away whatever was made
	var err error
	t.dirID, err = engine.Own(p.ws.Ledger, "directory", bench.Claim{Path: t.dir}, func() (bench.Identity, error) {
		for _, d := range []string{t.dir, t.upper(), t.work(), t.merged()} {
			// 0755 on upper: it is the slot's root directory.
			if err := os.Mkdir(d, 0o755); err != nil {
				return bench.Identity{}, err
			}
		}
		return fileIdentity(t.dir)
	})
	if err != nil {
		return nil, err
	}
	t.limits, err = cgroup.NewLimits(p.ws, p.arm.owner, p.name, r)
	return t, err
}

func fileIdentity(path string) (bench.Identity, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return bench.Identity{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return bench.Identity{Dev: bench.Int64(strconv.FormatUint(uint64(st.Dev), 10)), Ino: bench.Int64(strconv.FormatUint(st.Ino, 10))}, nil
}

// settle records the tree's first process and opens its network namespace.
func (p *place) settle(t *tenancy, pid int) error {
	t.pid = pid
	id, err := procfs.Identity(pid)
	if err != nil {
		return err
	}
	if err := p.ws.Ledger.Bind(t.procID, id); err != nil {
		return err
	}
	t.net, err = netns.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	return err
}

// Vacate implements engine.Place: it ends the tree and takes the tenancy away.
func (p *place) Vacate(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.now
	if t == nil {
		return nil
	}
	// The group holds the whole tree, whatever it did to its sessions and parents.
	if err := p.group.Kill(ctx); err != nil {
		return err
	}
	if t.pid != 0 {
		if err := t.reap(ctx); err != nil {
			return err
		}
	} else if t.procID != 0 {
		if err := p.reapStrays(ctx); err != nil {
			return err
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

// reapStrays waits for the dead children of ours that were in the slot's group:
// a restore that was cut short may have made the first process, a child of ours,
// before anybody learnt its pid.
func (p *place) reapStrays(ctx context.Context) error {
	fs, err := prom.NewDefaultFS()
	if err != nil {
		return err
	}
	all, err := fs.AllProcs()
	if err != nil {
		return err
	}
	group := "/drums-" + p.ws.ID + "/" + p.name
	for _, proc := range all {
		stat, err := proc.Stat()
		if err != nil || stat.PPID != os.Getpid() || stat.State != "Z" {
			continue
		}
		// A zombie keeps its v2 group until it is reaped; the line then ends in "(deleted)".
		groups, err := proc.Cgroups()
		if err != nil {
			continue
		}
		for _, g := range groups {
			if g.HierarchyID == 0 && strings.Contains(g.Path+"/", group+"/") || strings.Contains(g.Path, group+" ") {
				if err := reap(ctx, proc.PID); err != nil {
					return err
				}
				break
			}
		}
	}
	return nil
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
	if err := reap(ctx, t.pid); err != nil {
		return err
	}
	t.pid = 0
	return nil
}

// reap waits for a dead child. It was killed and its group is empty, so the
// wait is for the kernel only; WNOHANG keeps the deadline in our hands.
func reap(ctx context.Context, pid int) error {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.ECHILD):
			return nil
		case err != nil:
			return fmt.Errorf("wait for pid %d: %w", pid, err)
		case got == pid && (status.Exited() || status.Signaled()):
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for pid %d: %w", pid, context.Cause(ctx))
		case <-time.After(200 * time.Microsecond):
		}
	}
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
	e := &engine.Error{Op: "watch " + s.name, Err: fmt.Errorf("%w: its first process has ended%s", engine.ErrDead, t.died)}
	if said, err := os.ReadFile(filepath.Join(t.upper(), initLog)); err == nil && len(said) > 0 {
		e.Err = fmt.Errorf("%w: %q", e.Err, said[max(0, len(said)-300):])
	}
	return e
}

// ended says whether the first process has ended, as a zombie too.
func (t *tenancy) ended() (bool, error) {
	switch {
	case t.pid == 0:
		return true, nil
	case t.adopted != nil:
		return t.adopted.Exited()
	}
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, t.pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return info.Signo != 0, err
}

// Dial implements engine.Slot: the socket is made inside the slot's network namespace.
func (s *slot) Dial(ctx context.Context, port int) (net.Conn, error) {
	t := s.now
	if t == nil || t.net == nil {
		return nil, &engine.Error{Op: "dial " + s.name, Err: engine.ErrDead}
	}
	return t.net.Dial(ctx, "127.0.0.1", port)
}

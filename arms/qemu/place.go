package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-multierror"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// undoTime bounds what is done after a failure or a cancellation.
const undoTime = 30 * time.Second

// place is where a slot is: its folder, its cgroups and, while it lives, its
// machine. Slot and Stopped are views of it; each reset makes a new tenancy, but
// for one in place.
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

// tenancy is one life of a slot: a QEMU process with what it stands on.
type tenancy struct {
	dir string
	// dirID and procID are numbers of the ledger; -1 before they were intended.
	dirID  int64
	limits *cgroup.Limits
	// absent are groups of the limits that were gone when a dumped tenancy was taken over.
	absent []cgroup.Known
	shape  shape
	policy bench.CheckpointPolicy
	// exclude are the paths that the state manifest leaves out.
	exclude []string
	// pid of QEMU, a child of ours; 0 before there is one.
	pid    int
	procID int64
	net    *netns.Handle
	mon    monitor
	// tool is the QEMU that runs; form is the capability that its migration was last set to.
	tool Tool
	form string
	// watch is the arm's; nil for none.
	watch func(string) func()
	// asking is held by whoever observes: a question to the guest is a connection
	// too, and must not look like somebody else's.
	asking sync.Mutex
	// from is the checkpoint that this tenancy was restored from; nil after a provision.
	from *engine.Checkpoint
	// saved is the folder of the checkpoint whose snapshot lies in this process's own disk.
	saved string
	// parked: dumped in place; the process waits for a reset and is no slot.
	parked bool
	// held: restored, its tree frozen.
	held bool
	// self: the image boots itself.
	self bool
	// said is what the guest said of its frozen tree; asking is held.
	said *guest.Observation
	// facts of how the slot came to run; told are those of how it was saved last.
	facts, told []bench.Fact
	// adopted holds on to a QEMU that another process of ours started;
	// died says how one had ended before it was taken over.
	adopted *procfs.Handle
	died    string
}

func (t *tenancy) file(name string) string { return filepath.Join(t.dir, name) }

// Files of a tenancy.
const (
	diskFile    = "disk.qcow2"
	memoryFile  = "memory"
	consoleFile = "console"
	logFile     = "qemu.log"
	socketFile  = "qmp"
	initrdFile  = "initrd"
	shapeFile   = "machine.json"
)

// birth is the cgroup that QEMU is born in, as a descriptor: the limits group
// where it lies on v2, else the slot's part of the ownership cgroup (the v1 limits
// are joined). Asked for anew each time: a kill renews the group.
func (p *place) birth(t *tenancy) int {
	if fd := t.limits.FD(); fd >= 0 {
		return fd
	}
	return p.group.FD()
}

// Name implements engine.Place.
func (p *place) Name() string { return p.name }

// placeOf is the place behind any of its views; nil for none.
func placeOf(old engine.Place) (*place, error) {
	switch v := old.(type) {
	case nil:
		return nil, nil
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
func (a *Arm) takePlace(ctx context.Context, ws *engine.Workspace, r engine.Root, old engine.Place, name string) (*place, error) {
	mounted, ok := r.(*root)
	if !ok {
		return nil, fmt.Errorf("take place: root of another arm: %T", r)
	}
	p, err := placeOf(old)
	if err != nil {
		return nil, err
	}
	if p != nil {
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

// move starts a new tenancy: its folder and a fresh limits group, ledger first.
func (p *place) move(s shape) (*tenancy, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		return nil, errors.New("move into place: it is taken")
	}
	t := &tenancy{dir: filepath.Join(p.ws.Work, p.name+"."+strconv.Itoa(p.next)), dirID: -1, procID: -1, shape: s, self: p.root.boot.self(), tool: p.arm.tool, watch: p.arm.watch}
	p.next++
	p.now = t // from here on vacate takes away whatever was made
	intended := false
	id, err := engine.Own(p.ws.Ledger, "directory", bench.Claim{Path: t.dir}, func() (bench.Identity, error) {
		intended = true
		// 0700: the socket in it is for root alone.
		if err := os.Mkdir(t.dir, 0o700); err != nil {
			return bench.Identity{}, err
		}
		return fileIdentity(t.dir)
	})
	if intended {
		t.dirID = id
	}
	if err != nil {
		return nil, err
	}
	bounds, err := s.host(p.arm.settings.Headroom)
	if err != nil {
		return nil, err
	}
	t.limits, err = cgroup.NewLimits(p.ws, p.arm.owner, p.name, bounds)
	return t, err
}

func fileIdentity(path string) (bench.Identity, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return bench.Identity{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return bench.Identity{Dev: bench.Int64(strconv.FormatUint(uint64(st.Dev), 10)), Ino: bench.Int64(strconv.FormatUint(st.Ino, 10))}, nil
}

// Vacate implements engine.Place: it ends the machine and takes the tenancy away.
func (p *place) Vacate(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.now
	if t == nil {
		return nil
	}
	var errs *multierror.Error
	if err := p.group.Kill(ctx); err != nil {
		return err
	}
	if err := t.reap(ctx); err != nil {
		return err
	}
	if t.procID >= 0 {
		if err := p.ws.Ledger.Gone(t.procID); err != nil {
			return err
		}
		t.procID = -1
	}
	if t.net != nil {
		errs = multierror.Append(errs, t.net.Close())
		t.net = nil
	}
	if t.limits != nil {
		errs = multierror.Append(errs, t.limits.Remove(ctx))
	}
	for _, k := range t.absent {
		if _, err := os.Lstat(k.Path); !errors.Is(err, fs.ErrNotExist) {
			errs = multierror.Append(errs, fmt.Errorf("%w: %s was gone when its slot was taken over, and is there again (%v)", engine.ErrUnknown, k.Path, err))
			continue
		}
		errs = multierror.Append(errs, p.ws.Ledger.Gone(k.ID))
	}
	if err := os.RemoveAll(t.dir); err != nil {
		errs = multierror.Append(errs, err)
	} else if t.dirID >= 0 {
		errs = multierror.Append(errs, p.ws.Ledger.Gone(t.dirID))
	}
	if err := errs.ErrorOrNil(); err != nil {
		return &engine.Error{Op: "vacate " + p.name, Err: err}
	}
	p.now = nil
	return nil
}

// reap waits for QEMU, which was killed. One that we adopted is its parent's to
// reap; it has let go of everything by then.
func (t *tenancy) reap(ctx context.Context) error {
	if t.pid == 0 {
		return nil
	}
	if t.adopted != nil {
		if err := t.adopted.Wait(ctx); err != nil {
			return err
		}
		t.adopted.Close()
		t.adopted = nil
	}
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(t.pid, &status, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil && !errors.Is(err, syscall.ECHILD):
			return fmt.Errorf("wait for pid %d: %w", t.pid, err)
		case err != nil, got == t.pid && (status.Exited() || status.Signaled()):
			t.pid = 0
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for pid %d: %w", t.pid, context.Cause(ctx))
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

// abandon takes away what a failed provision or restore made; a new place goes
// altogether, an old one stays vacant so that it can be tried again. What the
// machine and QEMU said is kept as evidence.
func (p *place) abandon(ctx context.Context, op string, err error, whole bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	var e *engine.Error
	if !errors.As(err, &e) {
		e = &engine.Error{Op: op, Err: err}
		err = e
	}
	err = p.keepLogs(e, err)
	undo := p.Vacate
	if whole {
		undo = p.Release
	}
	if uerr := undo(ctx); uerr != nil {
		err = fmt.Errorf("%w; and then: %w", err, uerr)
	}
	return err
}

// keepLogs keeps QEMU's log and the guest's console before the tenancy's folder goes, and names one in the error.
func (p *place) keepLogs(e *engine.Error, err error) error {
	t := p.now
	if t == nil {
		return err
	}
	for _, name := range []string{consoleFile, logFile} {
		b, rerr := os.ReadFile(t.file(name))
		if rerr != nil || len(b) == 0 {
			continue
		}
		ev, perr := p.ws.Evidence.Put("qemu-"+name, b[max(0, len(b)-1<<20):])
		if perr != nil {
			return fmt.Errorf("%w; and its log is lost: %w", err, perr)
		}
		e.Log = p.ws.Evidence.Path(ev)
	}
	return err
}

// slot is a running machine.
type slot struct{ *place }

// stopped is a restored machine whose tree is frozen.
type stopped struct{ *place }

// Facts implements engine.Telling.
func (s *slot) Facts() []bench.Fact {
	if t := s.now; t != nil {
		return t.facts
	}
	return nil
}

// Alive implements engine.Mortal. It does not reap: Vacate does.
func (s *slot) Alive() error {
	op := "watch " + s.name
	t := s.now
	if t == nil || t.parked || t.pid == 0 && t.died == "" {
		return &engine.Error{Op: op, Err: engine.ErrDead}
	}
	ended, err := t.ended()
	switch {
	case err != nil:
		return &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
	case ended:
		return &engine.Error{Op: op, Err: t.death()}
	}
	return nil
}

// death says that the machine has ended, and what was said last.
func (t *tenancy) death() error {
	err := fmt.Errorf("%w: the machine has ended%s", engine.ErrDead, t.died)
	for _, name := range []string{logFile, consoleFile} {
		if said, rerr := os.ReadFile(t.file(name)); rerr == nil && len(said) > 0 {
			err = fmt.Errorf("%w; %s: %q", err, name, said[max(0, len(said)-300):])
		}
	}
	return err
}

// ended says whether QEMU has ended, as a zombie too.
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

// Dial implements engine.Slot: the socket is made inside the machine's network namespace.
func (s *slot) Dial(ctx context.Context, port int) (net.Conn, error) {
	s.mu.Lock()
	t := s.now
	s.mu.Unlock()
	op := "dial " + s.name
	switch {
	case t == nil || t.net == nil || t.parked:
		return nil, &engine.Error{Op: op, Err: engine.ErrDead}
	case t.held:
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: the slot is stopped", engine.ErrRefused)}
	}
	return t.dial(ctx, port)
}

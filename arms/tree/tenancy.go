package tree

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-multierror"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/display"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/pathtext"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// UndoTime bounds what is done after a failure or a cancellation.
const UndoTime = 30 * time.Second

// Tenancy is one life of a slot: what a provision or a restore makes and a reset takes away.
type Tenancy struct {
	Dir string
	// DirID is the ledger's number of the folder; -1 before it was intended. 0 is a number.
	DirID  int64
	Limits *cgroup.Limits
	// Layers are the sealed layers over the image, lowest first, as absolute paths.
	Layers []string
	Policy bench.CheckpointPolicy
	// Volatile: nothing of the slot waits for a disk; see overlay.Options.
	Volatile bool
	// Exclude are the paths that the state manifest leaves out.
	Exclude []string
	// Driver is what is written into the slot's layer before it starts; nil for nothing.
	Driver *display.Staged
	// Pid is the host's pid of the slot's first process; 0 before there is one.
	Pid int
	// Process is the ledger's number of that process; -1 before it was intended.
	Process int64
	Net     *netns.Handle
	// From is the checkpoint that this tenancy was restored from; nil after a provision.
	From *engine.Checkpoint
	// Stopped are inner pids that the guest had stopped at the dump and stay so.
	Stopped map[int]bool
	// Held: restored, and not let run.
	Held bool
	// adopted holds on to a first process that another process of ours started, one
	// without is a child of ours; died says how one had ended before it was taken over.
	adopted *procfs.Handle
	died    string
	// absent are groups of its limits that were gone when a dumped tenancy was taken
	// over: whoever dumped the tree, runc, took them away. The ledger learns it from Clear.
	absent []cgroup.Known
}

// Upper, Work and Merged are the folders of the tenancy's overlay.
func (t *Tenancy) Upper() string  { return filepath.Join(t.Dir, "upper") }
func (t *Tenancy) Work() string   { return filepath.Join(t.Dir, "work") }
func (t *Tenancy) Merged() string { return filepath.Join(t.Dir, "merged") }

// Make makes the tenancy's folder, ledger first, with those of its overlay and more.
func (t *Tenancy) Make(l engine.Ledger, more ...string) error {
	t.DirID, t.Process = -1, -1
	intended := false
	id, err := engine.Own(l, "directory", bench.Claim{Path: t.Dir}, func() (bench.Identity, error) {
		intended = true
		for _, d := range append([]string{t.Dir, t.Upper(), t.Work(), t.Merged()}, more...) {
			// 0755 on upper: it is the slot's root directory.
			if err := os.Mkdir(d, 0o755); err != nil {
				return bench.Identity{}, err
			}
		}
		return FileIdentity(t.Dir)
	})
	if intended {
		t.DirID = id
	}
	return err
}

// Intend says in the ledger that the first process is about to be born. Where the
// ledger could not be written the tenancy has no process.
func (t *Tenancy) Intend(l engine.Ledger, c bench.Claim) error {
	id, err := l.Intend("process", c)
	if err != nil {
		return err
	}
	t.Process = id
	return nil
}

// Restored says what the tenancy is restored from.
func (t *Tenancy) Restored(cp engine.Checkpoint) {
	t.From, t.Held = &cp, true
	for _, l := range cp.Handle.Layers {
		t.Layers = append(t.Layers, filepath.Join(cp.Dir, l))
	}
}

// Stage takes the display driver that a manifest has written into the slot's layer out
// of its package, and sees that it fits the image; nil for none.
func (t *Tenancy) Stage(ctx context.Context, ws *engine.Workspace, image string, p *bench.StagedDriver) (err error) {
	if p == nil {
		return nil
	}
	t.Driver, err = display.Read(ctx, ws.Manifest, image, *p)
	return err
}

// Mount mounts the tenancy's overlay over an image in the calling thread's mount
// namespace. What must be copied up of a checkpoint is.
func (t *Tenancy) Mount(image string) error {
	lower := slices.Clone(t.Layers)
	slices.Reverse(lower) // overlay wants the topmost first
	err := overlay.Mount(overlay.Options{Lower: append(lower, image), Upper: t.Upper(), Work: t.Work(), Target: t.Merged(), NFSExport: true, Volatile: t.Volatile})
	if err != nil {
		return err
	}
	if t.From == nil {
		if t.Driver == nil {
			return nil
		}
		return t.Driver.Put(t.Merged())
	}
	paths := make([]string, len(t.From.Handle.CopyUp))
	for i, text := range t.From.Handle.CopyUp {
		if paths[i], err = pathtext.Unquote(text); err != nil {
			return &engine.Error{Op: "copy files up", Err: fmt.Errorf("%w: %w", engine.ErrRefused, err)}
		}
	}
	return overlay.CopyUp(t.Merged(), t.Upper(), paths)
}

// Settle records the tree's first process and opens its network namespace.
func (t *Tenancy) Settle(l engine.Ledger, pid int) error {
	t.Pid = pid
	id, err := procfs.Identity(pid)
	if err != nil {
		return err
	}
	if err := l.Bind(t.Process, id); err != nil {
		return err
	}
	t.Net, err = netns.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	return err
}

// Ended says whether the first process has ended, as a zombie too.
func (t *Tenancy) Ended() (bool, error) {
	switch {
	case t.Pid == 0:
		return true, nil
	case t.adopted != nil:
		return t.adopted.Exited()
	}
	return Ended(t.Pid)
}

// Alive requires of the tenancy of a slot, which may be nil, that its first
// process lives: else engine.ErrDead. It does not reap.
func (t *Tenancy) Alive(slot string) error {
	if t == nil || t.Pid == 0 && t.died == "" {
		return &engine.Error{Op: "watch " + slot, Err: engine.ErrDead}
	}
	ended, err := t.Ended()
	if err != nil {
		return &engine.Error{Op: "watch " + slot, Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
	}
	if ended {
		return &engine.Error{Op: "watch " + slot, Err: fmt.Errorf("%w: its first process has ended%s", engine.ErrDead, t.died)}
	}
	return nil
}

// Dial connects to a port of the slot's, from inside its network namespace.
func (t *Tenancy) Dial(ctx context.Context, slot string, port int) (net.Conn, error) {
	if t == nil || t.Net == nil {
		return nil, &engine.Error{Op: "dial " + slot, Err: engine.ErrDead}
	}
	return t.Net.Dial(ctx, "127.0.0.1", port)
}

// SetHostname sets the host name in the namespace of the tree's first process,
// which must not be the host's.
func (t *Tenancy) SetHostname(slot, name string) error {
	err := engine.ErrDead
	if t != nil && t.Pid != 0 {
		err = t.rename(name)
	}
	if err != nil {
		return &engine.Error{Op: "set host name of " + slot, Err: err}
	}
	return nil
}

func (t *Tenancy) rename(name string) error {
	id, err := procfs.Identity(t.Pid)
	if err != nil {
		return err
	}
	ns, err := procfs.OpenNamespace(id, "uts")
	if err != nil {
		return err
	}
	defer ns.Close()
	if ended, err := t.Ended(); err != nil || ended { // else that pid is the tree's
		return errors.Join(engine.ErrDead, err)
	}
	host, err := procfs.NamespaceOf(os.Getpid(), "uts")
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &st); err != nil {
		return fmt.Errorf("look at uts namespace: %w", err)
	}
	if st.Dev == host.Dev && st.Ino == host.Ino {
		return fmt.Errorf("%w: the slot has no uts namespace of its own", engine.ErrRefused)
	}
	return thread.Run(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("enter uts namespace: %w", err)
		}
		return unix.Sethostname([]byte(name))
	})
}

// Resume lets a restored tree run: SIGCONT to every task that ran at the dump,
// then the state of each is read back.
func (t *Tenancy) Resume(ctx context.Context, slot string) error {
	if t == nil || t.Pid == 0 {
		return &engine.Error{Op: "resume " + slot, Err: engine.ErrDead}
	}
	if err := Continue(ctx, t.Pid, t.Stopped); err != nil {
		return &engine.Error{Op: "resume " + slot, Err: err}
	}
	t.Held = false
	return nil
}

// Tree is the tenancy's process tree, without what is the arm's own.
func (t *Tenancy) Tree(slot string, root *Root, locks string) Tree {
	return Tree{
		Name: slot, Pid: t.Pid, Limits: t.Limits, Policy: t.Policy, Locks: locks,
		Image: root.Dir(), Layers: t.Layers, Upper: t.Upper(), Work: t.Work(), Exclude: t.Exclude, Hashes: &root.Hashes, Ended: t.Ended,
	}
}

// Reap waits for the first process, which was killed. One that we adopted is its
// parent's to reap; it has let go of everything by then.
func (t *Tenancy) Reap(ctx context.Context) error {
	if t.adopted != nil {
		if err := t.adopted.Wait(ctx); err != nil {
			return err
		}
		t.adopted.Close()
		t.adopted = nil
	}
	if err := Reap(ctx, t.Pid); err != nil {
		return err
	}
	t.Pid = 0
	return nil
}

// End waits for what was killed: the first process or, where an operation was cut
// short before anybody learnt its pid, the children of ours in these groups. The ledger learns that it is gone.
func (t *Tenancy) End(ctx context.Context, l engine.Ledger, groups ...*cgroup.Group) error {
	if t.Pid != 0 {
		if err := t.Reap(ctx); err != nil {
			return err
		}
	} else if t.Process >= 0 {
		if err := ReapStrays(ctx, groups...); err != nil {
			return err
		}
	}
	if t.Process >= 0 {
		if err := l.Gone(t.Process); err != nil {
			return err
		}
		t.Process = -1
	}
	if t.Net == nil {
		return nil
	}
	err := t.Net.Close()
	t.Net = nil
	return err
}

// Clear takes limits and folder away, once the tree has ended (span "clear").
func (t *Tenancy) Clear(ctx context.Context, l engine.Ledger) error {
	defer engine.StartSpan(ctx, "clear")()
	return errors.Join(t.clearLimits(ctx, l), t.clearFolder(l))
}

// Clearing is the folder of a tenancy that has ended, which goes while the next one is made. Its methods take nil for
// one that is done.
type Clearing struct {
	tenancy *Tenancy
	ledger  engine.Ledger
	begin   sync.Once
	done    chan error
	failed  bool
}

// ClearBeside is Clear, which returns once the limits are gone: the folder goes while the next tenancy, which has one
// of its own, is made.
func (t *Tenancy) ClearBeside(ctx context.Context, l engine.Ledger) (*Clearing, error) {
	defer engine.StartSpan(ctx, "clear")()
	if err := t.clearLimits(ctx, l); err != nil {
		return nil, errors.Join(err, t.clearFolder(l))
	}
	return &Clearing{tenancy: t, ledger: l, done: make(chan error, 1)}, nil
}

// Begin has the folder go. It is a tree of files like that of the next tenancy, and the file system makes and removes
// one after the other: best once the next one's is there.
func (c *Clearing) Begin() {
	if c == nil {
		return
	}
	c.begin.Do(func() {
		go func() {
			c.done <- c.tenancy.clearFolder(c.ledger)
			close(c.done)
		}()
	})
}

// Wait returns once the folder is gone. It tries again where it is called after it failed.
func (c *Clearing) Wait() error {
	if c == nil {
		return nil
	}
	if c.failed {
		return c.tenancy.clearFolder(c.ledger)
	}
	c.Begin()
	err := <-c.done
	c.failed = err != nil
	return err
}

func (t *Tenancy) clearLimits(ctx context.Context, l engine.Ledger) error {
	var errs *multierror.Error
	if t.Limits != nil {
		errs = multierror.Append(errs, t.Limits.Remove(ctx))
	}
	for _, k := range t.absent {
		if _, err := os.Lstat(k.Path); !errors.Is(err, os.ErrNotExist) {
			errs = multierror.Append(errs, fmt.Errorf("%w: %s was gone when its slot was taken over, and is there again (%v)", engine.ErrUnknown, k.Path, err))
			continue
		}
		errs = multierror.Append(errs, l.Gone(k.ID))
	}
	return errs.ErrorOrNil()
}

func (t *Tenancy) clearFolder(l engine.Ledger) error {
	if err := os.RemoveAll(t.Dir); err != nil || t.DirID < 0 {
		return err
	}
	return l.Gone(t.DirID)
}

// Wrapped is an error with what was being done, unless it says that already.
func Wrapped(op string, err error) error {
	var e *engine.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	return &engine.Error{Op: op, Err: err}
}

// Abandon takes away what a failed operation made, with a time of its own, and
// returns its error.
func Abandon(ctx context.Context, op string, err error, undo func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), UndoTime)
	defer cancel()
	if uerr := undo(ctx); uerr != nil {
		err = fmt.Errorf("%w; and then: %w", err, uerr)
	}
	return Wrapped(op, err)
}

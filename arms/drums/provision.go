package drums

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Provision implements engine.Arm.
func (a *Arm) Provision(ctx context.Context, ws *engine.Workspace, r engine.Root, old engine.Place, p bench.ProvisionParams) (engine.Slot, error) {
	if p.Network != "none" {
		return nil, &engine.Error{Op: "provision " + string(p.Slot), Err: fmt.Errorf("%w: the drums arm has no network %q", engine.ErrRefused, p.Network), Hint: `set network to "none"`}
	}
	if err := ctx.Err(); err != nil { // nothing below waits, so nothing else would notice
		return nil, &engine.Error{Op: "provision " + string(p.Slot), Err: err}
	}
	pl, err := a.takePlace(ctx, ws, r, old, string(p.Slot))
	if err != nil {
		return nil, err
	}
	s, err := pl.provision(ctx, p)
	if err != nil {
		return nil, pl.abandon(ctx, "provision "+pl.name, err, old == nil)
	}
	return s, nil
}

// abandon takes away what a failed provision or restore made; a new place goes
// altogether, an old one stays vacant so that it can be tried again.
func (p *place) abandon(ctx context.Context, op string, err error, whole bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	undo := p.Vacate
	if whole {
		undo = p.Release
	}
	if uerr := undo(ctx); uerr != nil {
		err = fmt.Errorf("%w; and then: %w", err, uerr)
	}
	var e *engine.Error
	if asError(err, &e) {
		return err
	}
	return &engine.Error{Op: op, Err: err}
}

func (p *place) provision(ctx context.Context, params bench.ProvisionParams) (*slot, error) {
	end := engine.StartSpan(ctx, "layer")
	t, err := p.move(params.Resources)
	end()
	if err != nil {
		return nil, err
	}
	t.policy, t.exclude = params.Policy, nonNil(params.Exclude)
	env, err := guestEnv(params.Guest)
	if err != nil {
		return nil, err
	}
	t.procID, err = p.ws.Ledger.Intend("process", bench.Claim{Cgroup: p.group.Path(), Note: "first process of " + p.name})
	if err != nil {
		return nil, err
	}
	defer engine.StartSpan(ctx, "start")()
	init := params.Guest.Server.Exec
	cmd := &exec.Cmd{Path: init[0], Args: init, Env: env, SysProcAttr: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID, Setsid: true,
		UseCgroupFD: true, CgroupFD: p.birth(t),
	}}
	err = apart(unix.CLONE_NEWNET|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS, func() error {
		leave, err := t.limits.JoinThread()
		if err != nil {
			return err
		}
		err = prepare(overlay.Options{Lower: []string{p.root.Dir()}, Upper: t.upper(), Work: t.work(), Target: t.merged(), NFSExport: true}, p.name)
		if err == nil {
			err = startInside(cmd)
		}
		return errors.Join(err, leave())
	})
	if err != nil {
		return nil, err
	}
	pid := cmd.Process.Pid
	cmd.Process.Release() // we wait for it ourselves: a restored first process is no exec.Cmd either
	if err := p.settle(t, pid); err != nil {
		return nil, err
	}
	return &slot{p}, p.limited(t)
}

// limited requires that the kernel already holds the slot's first process to its
// bounds, and that it leads a session of its own namespace: CRIU cannot dump a
// session whose leader is outside.
func (p *place) limited(t *tenancy) error {
	tasks, err := procfs.Tasks(t.pid)
	if err != nil {
		return err
	}
	for _, task := range tasks {
		if task.Pid == t.pid && (task.Inner != 1 || task.Session != 1 || task.Group != 1) {
			return &engine.Error{Op: "start " + p.name, Err: fmt.Errorf("pid %d, session %d, group %d inside, want 1, 1 and 1", task.Inner, task.Session, task.Group)}
		}
	}
	r := t.limits.Read([]int{t.pid})
	got, ok := r.Get()
	if !ok {
		return &engine.Error{Op: "read back limits of " + p.name, Err: fmt.Errorf("%w: %s", engine.ErrUnknown, r.Reason())}
	}
	if len(got.Outside) > 0 {
		return &engine.Error{Op: "read back limits of " + p.name, Err: fmt.Errorf("pid %d is not in the limits group", t.pid)}
	}
	return nil
}

// guestEnv is all of the environment that the first process gets.
func guestEnv(g bench.Guest) ([]string, error) {
	b, err := json.Marshal(g)
	if err != nil {
		return nil, err
	}
	return []string{guest.ConfigVariable + "=" + string(b), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + string(g.Home), "LANG=C.UTF-8"}, nil
}

// apart runs fn on an OS thread with a mount namespace of its own, and whatever
// else flags say, which ends with it. What fn starts inherits the thread's
// namespaces, root and v1 cgroups: it is prepared before it exists, and no copy
// of this program has to run in its place.
func apart(flags int, fn func() error) error {
	return thread.Apart(flags, func() error {
		// Descriptors that we inherited ourselves must not reach a slot or criu; Go's own never do.
		if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
			return fmt.Errorf("close inherited descriptors: %w", err)
		}
		return fn()
	})
}

// prepare makes the calling thread's namespaces the slot's, all but proc, which
// only a process of the slot's pid namespace can mount: guestd does.
func prepare(o overlay.Options, hostname string) error {
	if err := overlay.Mount(o); err != nil {
		return err
	}
	if err := mountSystem(o.Target); err != nil {
		return err
	}
	if err := pivot(o.Target); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	return nil
}

// initLog is where the first process's standard error goes, in the slot.
const initLog = guest.LogDir + "/init.log"

// startInside starts the slot's first process with 0, 1 and 2 opened inside the
// slot: a descriptor of the host's would tie the tree to it.
func startInside(cmd *exec.Cmd) error {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	if err := os.MkdirAll(guest.LogDir, 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(initLog, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = null, null, log
	return cmd.Start()
}

// mountSystem gives the slot its own sysfs, dev and devpts: never a bind
// of the host's, which CRIU cannot carry and which would show the host.
func mountSystem(root string) error {
	const hardened = unix.MS_NOSUID | unix.MS_NOEXEC
	for _, m := range []struct {
		at, fstype string
		flags      uintptr
		data       string
	}{
		{"sys", "sysfs", hardened | unix.MS_NODEV | unix.MS_RDONLY, ""},
		{"dev", "tmpfs", hardened, "mode=755,size=1m"},
		{"dev/pts", "devpts", hardened, "newinstance,ptmxmode=0666,mode=620,gid=5"},
		{"dev/shm", "tmpfs", hardened | unix.MS_NODEV, "mode=1777,size=64m"},
	} {
		at := filepath.Join(root, m.at)
		if m.at == "dev/pts" || m.at == "dev/shm" {
			if err := os.Mkdir(at, 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount(m.fstype, at, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on /%s: %w", m.fstype, m.at, err)
		}
	}
	old := unix.Umask(0)
	defer unix.Umask(old)
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9} {
		if err := unix.Mknod(filepath.Join(root, "dev", name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))); err != nil {
			return fmt.Errorf("make /dev/%s: %w", name, err)
		}
	}
	if err := unix.Mknod(filepath.Join(root, "dev/tty"), unix.S_IFCHR|0o666, int(unix.Mkdev(5, 0))); err != nil {
		return fmt.Errorf("make /dev/tty: %w", err)
	}
	for name, target := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, filepath.Join(root, "dev", name)); err != nil {
			return err
		}
	}
	return nil
}

// pivot makes root the namespace's root and lets the old one go: CRIU requires
// that the tree's root is the root of its mount namespace.
func pivot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return fmt.Errorf("enter new root: %w", err)
	}
	// Both arguments "." stacks the old root over the new one (pivot_root(2), NOTES).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("enter /: %w", err)
	}
	return nil
}

func loopbackUp() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := h.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return nil
}

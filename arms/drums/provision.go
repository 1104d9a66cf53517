package drums

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/confine"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/arms/tree"
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
	pl, err := a.takePlace(ws, r, old, string(p.Slot))
	if err != nil {
		return nil, err
	}
	left := pl.leave(ctx)
	s, err := pl.provision(ctx, p, left)
	if err = pl.settled(err, left); err != nil {
		return nil, pl.abandon(ctx, "provision "+pl.name, err, old == nil)
	}
	return s, nil
}

// abandon takes away what a failed provision or restore made; a new place goes
// altogether, an old one stays vacant so that it can be tried again.
func (p *place) abandon(ctx context.Context, op string, err error, whole bool) error {
	if whole {
		return tree.Abandon(ctx, op, err, p.Release)
	}
	return tree.Abandon(ctx, op, err, p.Vacate)
}

func (p *place) provision(ctx context.Context, params bench.ProvisionParams, left func() error) (*slot, error) {
	end := engine.StartSpan(ctx, "layer")
	t, err := p.move()
	end()
	if err != nil {
		return nil, err
	}
	t.Policy, t.Exclude = params.Policy, tree.NonNil(params.Exclude)
	if err := t.Stage(ctx, p.ws, p.root.Dir(), params.Driver); err != nil {
		return nil, err
	}
	env, err := tree.GuestEnv(params.Guest)
	if err != nil {
		return nil, err
	}
	if err := t.Intend(p.ws.Ledger, bench.Claim{Cgroup: p.group.Path(), Note: "first process of " + p.name}); err != nil {
		return nil, err
	}
	defer engine.StartSpan(ctx, "start")()
	init := params.Guest.Server.Exec
	cmd := &exec.Cmd{Path: init[0], Args: init, Env: env, SysProcAttr: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID, Setsid: true, UseCgroupFD: true,
	}}
	err = tree.Apart(unix.CLONE_NEWNET|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS, func() error {
		hostProc, err := os.Open("/proc") // out of sight once the slot's root is ours
		if err != nil {
			return err
		}
		defer hostProc.Close()
		if err := t.Mount(p.root.Dir()); err != nil {
			return err
		}
		if err := p.limit(ctx, t, params.Resources, left); err != nil {
			return err
		}
		leave, err := t.Limits.JoinThread()
		if err != nil {
			return err
		}
		cmd.SysProcAttr.CgroupFD = p.birth(t)
		if err = prepare(t.Merged(), p.name); err == nil {
			err = startInside(cmd, hostProc)
		}
		return errors.Join(err, leave())
	})
	if err != nil {
		return nil, err
	}
	pid := cmd.Process.Pid
	cmd.Process.Release() // we wait for it ourselves: a restored first process is no exec.Cmd either
	if err := t.Settle(p.ws.Ledger, pid); err != nil {
		return nil, err
	}
	if err := tree.Leads(pid); err != nil {
		return nil, &engine.Error{Op: "start " + p.name, Err: err}
	}
	return &slot{p}, p.tree(t).Limited()
}

// prepare makes the calling thread's namespaces those of the slot on root, all but
// proc, which only a process of the slot's pid namespace can mount (confine.Start).
func prepare(root, hostname string) error {
	// Mounts come after: a symbolic link of the image's leads nowhere else then.
	if err := pivot(root); err != nil {
		return err
	}
	if err := mountSystem(); err != nil {
		return err
	}
	if err := netns.LoopbackUp(); err != nil {
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
func startInside(cmd *exec.Cmd, hostProc *os.File) error {
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
	return confine.Start(cmd, hostProc)
}

// mountSystem gives the slot its own sysfs, dev and devpts: never a bind
// of the host's, which CRIU cannot carry and which would show the host.
func mountSystem() error {
	const hardened = unix.MS_NOSUID | unix.MS_NOEXEC
	for _, m := range []struct {
		at, fstype string
		flags      uintptr
		data       string
	}{
		{"/sys", "sysfs", hardened | unix.MS_NODEV | unix.MS_RDONLY, ""},
		{"/dev", "tmpfs", hardened, "mode=755,size=1m"},
		{"/dev/pts", "devpts", hardened, "newinstance,ptmxmode=0666,mode=620,gid=5"},
		{"/dev/shm", "tmpfs", hardened | unix.MS_NODEV, "mode=1777,size=64m"},
	} {
		if m.at == "/dev/pts" || m.at == "/dev/shm" {
			if err := os.Mkdir(m.at, 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount(m.fstype, m.at, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.fstype, m.at, err)
		}
	}
	old := unix.Umask(0)
	defer unix.Umask(old)
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9} {
		if err := unix.Mknod("/dev/"+name, unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))); err != nil {
			return fmt.Errorf("make /dev/%s: %w", name, err)
		}
	}
	if err := unix.Mknod("/dev/tty", unix.S_IFCHR|0o666, int(unix.Mkdev(5, 0))); err != nil {
		return fmt.Errorf("make /dev/tty: %w", err)
	}
	for name, target := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, "/dev/"+name); err != nil {
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

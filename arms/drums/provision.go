package drums

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/arms/stage"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func init() {
	stage.Register("drums-init", runInit)
}

// slotNamespaces are the namespaces of a slot. User and cgroup namespaces are
// the host's: CRIU restores neither without more than this arm asks of a host.
const slotNamespaces = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// initConfig tells the slot's first process how to prepare itself.
type initConfig struct {
	// Join are files that a process joins its v1 limits groups through.
	Join     []string
	Overlay  overlay.Options
	Hostname string
	Exec     []string
	Env      []string
}

// Provision implements engine.Arm.
func (a *Arm) Provision(ctx context.Context, ws *engine.Workspace, r engine.Root, old engine.Place, p bench.ProvisionParams) (engine.Slot, error) {
	if p.Network != "none" {
		return nil, &engine.Error{Op: "provision " + string(p.Slot), Err: fmt.Errorf("%w: the drums arm has no network %q", engine.ErrRefused, p.Network), Hint: `set network to "none"`}
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
	cmd, err := stage.Command("drums-init", initConfig{
		Join:     t.limits.Dirs(),
		Overlay:  overlay.Options{Lower: []string{p.root.Dir()}, Upper: t.upper(), Work: t.work(), Target: t.merged(), NFSExport: true},
		Hostname: p.name,
		Exec:     params.Guest.Server.Exec,
		Env:      env,
	})
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: slotNamespaces, Setsid: true,
		UseCgroupFD: true, CgroupFD: p.birth(t),
	}
	status, err := stage.AddStatus(cmd)
	if err != nil {
		return nil, err
	}
	t.procID, err = p.ws.Ledger.Intend("process", bench.Claim{Cgroup: p.group.Path(), Note: "first process of " + p.name})
	if err != nil {
		return nil, err
	}
	defer engine.StartSpan(ctx, "start")()
	if err := cmd.Start(); err != nil {
		status.Wait(ctx)
		return nil, err
	}
	pid := cmd.Process.Pid
	cmd.Process.Release() // we wait for it ourselves: a restored first process is no exec.Cmd either
	if err := p.settle(t, pid); err != nil {
		return nil, err
	}
	if err := status.Wait(ctx); err != nil {
		return nil, err
	}
	return &slot{p}, p.limited(t)
}

// limited requires that the kernel already holds the slot's first process to its bounds.
func (p *place) limited(t *tenancy) error {
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

// runInit is pid 1 of the slot until it becomes the image's program.
func runInit(c initConfig) error {
	if err := join(c.Join); err != nil {
		return err
	}
	if os.Getpid() != 1 {
		return fmt.Errorf("pid %d, want 1", os.Getpid())
	}
	if sid, err := unix.Getsid(0); err != nil || sid != 1 || unix.Getpgrp() != 1 {
		return fmt.Errorf("session %d, group %d, want 1 and 1: %v", sid, unix.Getpgrp(), err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := overlay.Mount(c.Overlay); err != nil {
		return err
	}
	if err := mountSystem(c.Overlay.Target); err != nil {
		return err
	}
	if err := pivot(c.Overlay.Target); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(c.Hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := nullStdio(); err != nil {
		return err
	}
	if err := stage.CloseOnExec(3); err != nil {
		return err
	}
	if err := unix.Exec(c.Exec[0], c.Exec, c.Env); err != nil {
		return fmt.Errorf("exec %s: %w", c.Exec[0], err)
	}
	return nil
}

func join(files []string) error {
	for _, f := range files {
		// "0" is the writer, whatever pid namespace it is in (cgroup-v1/cgroups.rst).
		if err := os.WriteFile(f, []byte("0"), 0); err != nil {
			return fmt.Errorf("join limits group: %w", err)
		}
	}
	return nil
}

// mountSystem gives the slot its own proc, sysfs, dev and devpts: never a bind
// of the host's, which CRIU cannot carry and which would show the host.
func mountSystem(root string) error {
	const hardened = unix.MS_NOSUID | unix.MS_NOEXEC
	for _, m := range []struct {
		at, fstype string
		flags      uintptr
		data       string
	}{
		{"proc", "proc", hardened | unix.MS_NODEV, ""},
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

// nullStdio opens 0, 1 and 2 inside the slot: a descriptor of the host's would tie the tree to it.
func nullStdio() error {
	fd, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	for i := range 3 {
		if fd == i {
			continue
		}
		if err := unix.Dup3(fd, i, 0); err != nil {
			return fmt.Errorf("set descriptor %d: %w", i, err)
		}
	}
	return nil
}

// Package drums is the arm that calls the mechanism directly: a slot is a
// process tree in its own pid, mount, network, ipc and uts namespaces on an
// overlay of the mounted image, and CRIU dumps and restores it.
//
// Always holds: a slot's mounts live in its own mount namespace, the host's
// table never changes; every process of ours starts inside the run's ownership
// cgroup; a restored tree does not run an instruction before it was judged and,
// where asked, its locks were put back; nothing counts as done before the
// kernel's own view was read back.
package drums

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/image"
	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Kind is the arm's name in manifests and records.
const Kind = "drums"

// Arm implements engine.Arm. One Arm serves one run.
type Arm struct {
	settings bench.DrumsSettings
	tool     criu.Tool
	host     []bench.Fact

	mu    sync.Mutex
	owner *cgroup.Owner
	tools *cgroup.Group
}

// New returns the arm with the manifest's settings. host are the facts of this
// host; tool is the CRIU to use.
func New(settings bench.DrumsSettings, tool criu.Tool, host []bench.Fact) *Arm {
	return &Arm{settings: settings, tool: tool, host: host}
}

// Describe implements engine.Arm.
func (a *Arm) Describe() engine.Description {
	d := engine.Description{
		Kind:     Kind,
		Settings: map[string]string{"locks": a.settings.Locks, "attach": a.settings.Attach},
		Differences: []bench.Difference{
			{Name: "kernel", Text: "the slot shares the host's kernel; the image's own kernel does not run"},
			{Name: "init", Text: "guestd is the slot's first process; the image's own init does not run"},
			{Name: "criu-in-limits", Text: "criu's own work at a restore counts against the slot's limits; at a dump it does not"},
			{Name: "stop-and-continue", Text: "a restored tree is stopped with SIGSTOP while it is judged and continued with SIGCONT: a parent gets SIGCHLD for the stop and the continuation of a child, and an interrupted system call may return EINTR once"},
			{Name: "network-lock", Text: "no firewall rule holds back packets during a dump: the slot's network is its loopback interface"},
			{Name: "counters", Text: "cgroup counters (cpu time, peak memory) start again with each restore"},
		},
	}
	switch a.settings.Locks {
	case "repair":
		d.Differences = append(d.Differences, bench.Difference{Name: "lock-repair",
			Text: "POSIX locks that CRIU loses on mapped files are put back by ptrace before the tree runs; the time is the span \"repair\""})
	case "criu":
		d.Differences = append(d.Differences, bench.Difference{Name: "locks-lost",
			Text: "POSIX locks on files that their owner maps are lost by CRIU's restore"})
	}
	return d
}

// Facts implements engine.Arm.
func (a *Arm) Facts(context.Context) []bench.Fact {
	return append(append(a.tool.Facts(), a.host...), engine.NativeAccelerator())
}

// root is the mounted image.
type root struct {
	*image.Mounted
	sha256 bench.SHA256
	// hashes spares a reset the hashing of the image and of layers.
	hashes overlay.HashCache
}

// Mount implements engine.Arm.
func (a *Arm) Mount(ctx context.Context, ws *engine.Workspace, p bench.MountParams) (engine.Root, error) {
	tools, err := a.groups(ws)
	if err != nil {
		return nil, err
	}
	// Outside of any measurement window: what criu learns of the kernel once, it need not learn at each reset.
	kdat, err := a.tool.Kdat(kdatDir(ws.State))
	if err != nil {
		return nil, err
	}
	if err := kdat.Ensure(ctx); err != nil {
		return nil, err
	}
	m, err := image.Attach(ctx, ws, image.AttachOptions{
		Path: imagePath(ws, p.Image), Image: p.Image, Method: a.settings.Attach, CacheDir: image.CacheDir(ws.State),
		Prepare: func(cmd *exec.Cmd) {
			if cmd.SysProcAttr == nil {
				cmd.SysProcAttr = &syscall.SysProcAttr{}
			}
			cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, tools.FD()
		},
	})
	if err != nil {
		return nil, err
	}
	return &root{Mounted: m, sha256: p.Image.Sha256}, nil
}

// kdatDir keeps what criu learnt of the kernel.
func kdatDir(state string) string { return filepath.Join(state, "cache", "criu") }

// groups makes the run's ownership cgroup, once, and the group of tools in it.
func (a *Arm) groups(ws *engine.Workspace) (*cgroup.Group, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tools != nil {
		return a.tools, nil
	}
	if a.owner == nil {
		owner, err := cgroup.OpenOwner(ws)
		if err != nil {
			return nil, err
		}
		a.owner = owner
	}
	tools, err := a.owner.Group("tools")
	if err != nil {
		return nil, err
	}
	a.tools = tools
	return tools, nil
}

// Release takes the ownership cgroup away, after every slot. It implements
// engine.Closer and ends whatever is left in it.
func (a *Arm) Release(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	if a.tools != nil {
		errs = append(errs, a.tools.Kill(ctx), a.tools.Remove(ctx))
		a.tools = nil
	}
	if a.owner != nil {
		errs = append(errs, a.owner.Remove(ctx))
		a.owner = nil
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("release ownership cgroup: %w", err)
	}
	return nil
}

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

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/tree"
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

	groups tree.Groups
	filler filler
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
		Settings: map[string]string{"locks": a.settings.Locks, "attach": a.settings.Attach, "log": a.settings.Log, "loopback": a.settings.Loopback, "writes": a.settings.Writes, "sharing": a.settings.Sharing, "pages": a.settings.Pages},
		Differences: []bench.Difference{
			{Name: "kernel", Text: "the slot shares the host's kernel; the image's own kernel does not run"},
			{Name: "init", Text: "guestd is the slot's first process; the image's own init does not run"},
			tree.Confined(),
			{Name: "criu-in-limits", Text: "criu works inside the slot's limits group, at a dump as at a restore, and its work counts against them"},
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
	d.Differences = append(d.Differences, tree.SharingDifference(a.settings.Sharing)...)
	if a.settings.Pages == workingSet {
		d.Settings["recordFor"] = string(a.settings.RecordFor)
		d.Differences = append(d.Differences, bench.Difference{Name: "pages",
			Text: "private anonymous memory of a restored slot comes back while it runs: at first the pages that the checkpoint's first restore touched until " + string(a.settings.RecordFor) + " after it was ready, each other one when it is touched. That time is part of the run, not of the reset: the facts pages.* of the steps measure and act count it"})
	}
	if a.settings.Zeros == zerosLeft {
		d.Settings["zeros"] = a.settings.Zeros
		d.Differences = append(d.Differences, bench.Difference{Name: "zeros",
			Text: "pages of private anonymous memory that hold nothing but zeros are taken out of CRIU's images before a checkpoint is sealed; the kernel gives zeros when one is read"})
	}
	if a.settings.Writes == "volatile" {
		d.Differences = append(d.Differences, bench.Difference{Name: "volatile",
			Text: "sync calls in a slot write nothing back (overlayfs's option volatile); a checkpoint is written back when it is sealed"})
	}
	if a.settings.Loopback != "criu" {
		d.Differences = append(d.Differences, bench.Difference{Name: "loopback",
			Text: "a slot whose network was the plain loopback interface gets it back over netlink from the engine, compared with the checkpoint's before any socket is made; criu's programs for it do not run"})
	}
	return d
}

// Facts implements engine.Arm.
func (a *Arm) Facts(context.Context) []bench.Fact {
	return append(append(a.tool.Facts(), a.host...), engine.NativeAccelerator())
}

// root is the mounted image.
type root struct{ *tree.Root }

// Mount implements engine.Arm.
func (a *Arm) Mount(ctx context.Context, ws *engine.Workspace, p bench.MountParams) (engine.Root, error) {
	tools, err := a.groups.Open(ws)
	if err != nil {
		return nil, err
	}
	r, err := tree.Mount(ctx, ws, a.tool, tools, p.Image, a.settings.Attach)
	if err != nil {
		return nil, err
	}
	return &root{r}, nil
}

// Owner is the run's ownership cgroup, made if there is none yet. Release takes
// it away; whoever makes a group in it removes that before.
func (a *Arm) Owner(ws *engine.Workspace) (*cgroup.Owner, error) { return a.groups.Owner(ws) }

// Release takes the ownership cgroup away, after every slot. It implements
// engine.Releaser and ends whatever is left in it.
func (a *Arm) Release(ctx context.Context) error {
	if err := a.endPageServer(ctx); err != nil {
		return err
	}
	return a.groups.Release(ctx)
}

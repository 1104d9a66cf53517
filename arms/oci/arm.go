// Package oci is the arm that has runc do the work: a slot is an OCI container
// whose config.json we write, on an overlay of the mounted image, and runc has
// CRIU dump and restore it. It answers whether a failure is ours or the method's.
//
// Always holds: a slot's mounts live in namespaces of runc's and its own, the
// host's table never changes; every process of ours starts inside the run's
// ownership cgroup; the slot's network namespace is kept by a process of ours
// that is verified by identity before each use; runc's and CRIU's settings are
// files that we write for each operation, never the host's; a restored tree does
// not run an instruction before it was judged; a return code proves nothing, the
// kernel's own view is read back.
package oci

import (
	"context"
	"errors"
	"fmt"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/systemd"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Kind is the arm's name in manifests and records.
const Kind = "oci"

// Values of settings.
const (
	holderNamespace = "holder"
	systemdCgroups  = "systemd"
)

// Arm implements engine.Arm. One Arm serves one run.
type Arm struct {
	settings bench.OCISettings
	tool     criu.Tool
	runcTool Tool
	host     []bench.Fact

	groups tree.Groups
}

// New returns the arm with the manifest's settings. host are the facts of this
// host; tool is the CRIU that runc is to use, runc the runc. ErrRefused if the
// manifest pins another runc or CRIU, or asks for what this host does not have.
func New(settings bench.OCISettings, runc Tool, tool criu.Tool, host []bench.Fact) (*Arm, error) {
	if err := errors.Join(runc.Pinned(settings.Runc), tool.Pinned(settings.Criu)); err != nil {
		return nil, err
	}
	if settings.Cgroups == systemdCgroups {
		if err := scopes(systemd.Here(), cgroup.Mode()); err != nil {
			return nil, &engine.Error{Op: "make oci arm", Err: fmt.Errorf("%w: the cgroup driver systemd %w", engine.ErrRefused, err), Hint: `set cgroups to "cgroupfs"`}
		}
	}
	return &Arm{settings: settings, tool: tool, runcTool: runc, host: host}, nil
}

// scopes says why a host's systemd cannot make a slot's group; nil where it can.
func scopes(here bool, mode string) error {
	switch {
	case !here:
		return errors.New("needs a host that systemd runs")
	case mode != "unified":
		return fmt.Errorf("needs a host whose only cgroup hierarchy is v2, and this one is %s", mode)
	}
	return nil
}

// Describe implements engine.Arm.
func (a *Arm) Describe() engine.Description {
	policy := bench.CheckpointPolicy{EstablishedTCP: "refuse", GhostLimit: "64MiB"}
	dump, _ := dumpSettings(policy)
	d := engine.Description{
		Kind: Kind,
		Settings: map[string]string{
			"locks": a.settings.Locks, "attach": a.settings.Attach, "sharing": a.settings.Sharing, "namespace": a.settings.Namespace, "cgroups": a.settings.Cgroups,
			"runc": string(a.settings.Runc), "seccomp": "no protection keys", criuConfig + " at a dump": dump, criuConfig + " at a restore": restoreSettings(policy),
		},
		Differences: []bench.Difference{
			{Name: "kernel", Text: "the slot shares the host's kernel; the image's own kernel does not run"},
			{Name: "init", Text: "guestd is the slot's first process; the image's own init does not run, and what guestd itself prints is lost: runc's stdio is /dev/null"},
			tree.Confined(),
			{Name: "criu-in-limits", Text: "criu works inside the slot's limits group, and its work counts against them: runc puts it there at a restore, and at a dump runc itself is started there. On a host with cgroup v2 only, where runc has criu freeze that group, the tree is in a group of its own below it while it is dumped, which is frozen instead, and criu is in another"},
			{Name: "stop-and-continue", Text: "the tree is stopped with SIGSTOP before it is dumped and while it is judged after a restore, and continued with SIGCONT: a parent gets SIGCHLD for the stop and the continuation of a child, and an interrupted system call may return EINTR once"},
			{Name: "network-lock", Text: "no firewall rule holds back packets during a dump: the slot's network is its loopback interface"},
			{Name: "counters", Text: "cgroup counters (cpu time, peak memory) start again with each restore"},
			{Name: "cgroup-hierarchies", Text: "on a host with cgroup v1 runc sees the hierarchies of cpu, cpuacct, memory, pids and devices; a freezer it does not see, so criu stops the tree by ptrace alone"},
			{Name: "runtime-mounts", Text: "runc binds nothing of the host's: masked paths are not asked for, read-only ones are binds of the slot's own /proc, and /dev holds nodes of its own"},
			{Name: "runc-helpers", Text: "each operation starts runc, which asks criu for its version and features before it has it work; each reset ends with runc delete"},
		},
	}
	d.Differences = append(d.Differences, tree.SharingDifference(a.settings.Sharing)...)
	if a.settings.Seccomp != nil {
		d.Settings["seccomp"] = a.settings.Seccomp.File + " " + string(a.settings.Seccomp.Sha256)
	}
	if a.settings.Cgroups == systemdCgroups {
		d.Differences = append(d.Differences, bench.Difference{Name: "systemd-scope",
			Text: "systemd makes the slot's control group, a transient scope in the slice that the engine runs in, anew for each provision and restore, and moves the slot's first process into it: bounds of that slice hold too, and systemd's answer is part of each reset"})
	}
	if a.settings.Namespace == holderNamespace {
		d.Differences = append(d.Differences, bench.Difference{Name: "network-holder",
			Text: "a process of the engine's keeps the slot's network namespace over all restores; what the guest changes in it stays, and the network gate compares it. The holder's memory is counted as the harness's, and its CPU time since it was made stands beside it"})
	} else {
		d.Differences = append(d.Differences, bench.Difference{Name: "network-lost",
			Text: "runc makes the network namespace and tells criu that it is empty: a restored slot has lo down and no address"})
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
func (a *Arm) Facts(ctx context.Context) []bench.Fact {
	facts := append(append(append(a.runcTool.Facts(), a.tool.Facts()...), a.host...), engine.NativeAccelerator())
	if a.settings.Cgroups == systemdCgroups {
		f := bench.Fact{Name: "systemd.version", View: engine.ViewHost}
		v, err := systemd.Manager{}.Version(ctx)
		if f.Known = err == nil; f.Known {
			f.Value, f.Source = v, "org.freedesktop.systemd1.Manager"
		} else {
			f.Reason = err.Error()
		}
		facts = append(facts, f)
	}
	return facts
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
func (a *Arm) Release(ctx context.Context) error { return a.groups.Release(ctx) }

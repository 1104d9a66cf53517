package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/image"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Kind is the arm's name in manifests and records.
const Kind = "qemu"

// Methods of a snapshot, as bench.QEMUSettings names them.
const (
	MethodFile    = "file"
	MethodInPlace = "inplace"
	MethodLoadVM  = "loadvm"
)

// Arm implements engine.Arm. One Arm serves one run.
type Arm struct {
	settings bench.QEMUSettings
	tool     Tool
	host     []bench.Fact
	accel    engine.Reading[string]
	watch    func(string) func()

	mu    sync.Mutex
	owner *cgroup.Owner
	tools *cgroup.Group
}

// New returns the arm with the manifest's settings. host are the facts of this
// host; tool is the QEMU to use; accel is what tool.Accelerator read of it.
func New(settings bench.QEMUSettings, tool Tool, accel engine.Reading[string], host []bench.Fact) *Arm {
	return &Arm{settings: settings, tool: tool, accel: accel, host: host}
}

// Watch has f be called when a machine begins to save or load its state, with the
// QMP command that does it; what f returns is called once that has ended.
func (a *Arm) Watch(f func(command string) (ended func())) { a.watch = f }

// Describe implements engine.Arm.
func (a *Arm) Describe() engine.Description {
	d := engine.Description{
		Kind:     Kind,
		Settings: map[string]string{"accel": a.settings.Accel, "snapshot": a.settings.Snapshot, "headroom": string(a.settings.Headroom)},
		Differences: []bench.Difference{
			{Name: "kernel", Text: "the slot runs the image's own kernel in a virtual machine"},
			{Name: "init", Text: "guestd is the slot's first process; the image's own init does not run, but where the image has partitions: it boots itself then, and keeps its init and its server"},
			{Name: engine.GuestViewDifference, Text: "the host does not see into the guest's kernel: mounts, processes, locks, state and network are what the guest itself says, read while its tree is frozen"},
			{Name: "freeze", Text: "the guest's own freezer holds all processes but its server from before the dump until a restored slot is resumed; the server and the kernel run while the stopped slot is judged, so the number of the server's threads is not compared"},
			{Name: "network-card", Text: "beside lo the guest has eth0, 10.0.2.15/24, on a link to a network namespace of its own that leads nowhere; the engine reaches the guest server over it"},
			{Name: "root", Text: "the slot's root is a writable ext4 disk over the image, not an overlay file system"},
			{Name: "disk-cache", Text: "the disk is cached by the host and its flushes are not waited for (cache=unsafe): it does not outlive the slot"},
			{Name: "clock", Text: "a restored guest's clock is set from the host's before its tree runs; CLOCK_MONOTONIC goes on from the dump"},
			{Name: "limits", Text: "memory and vcpus are the machine's own; the number of tasks is bounded by the guest's kernel; QEMU itself is bounded by memory plus headroom and by as many cpus as the guest has"},
			{Name: "provision-boots", Text: "provision returns with the guest server's first answer: the machine has booted by then"},
		},
		NotApplicable: map[string]string{
			// Names are those of package steps/gate.
			"mount-contract": "a virtual machine's mounts are its own kernel's: none of the host's can be in it",
		},
	}
	switch a.settings.Snapshot {
	case MethodFile:
		d.Differences = append(d.Differences, bench.Difference{Name: "memory-file",
			Text: "a provisioned machine's memory is shared memory of the host's; the dump copies it to a file, which restored machines map copy-on-write and share. QEMU before 8.2 keeps that file open for writing beside its private mapping, through which alone the guest writes: the audit of siblings leaves such a descriptor out, and the checkpoint's files are read again, against their seal, after all have acted"})
	case MethodInPlace:
		d.Differences = append(d.Differences, bench.Difference{Name: "in-place",
			Text: "a reset loads the snapshot in the same QEMU process, whose counters go on; a slot in a new place (a sibling, or after a vacate) loads it in a new process"})
	}
	if a.settings.Accel == "tcg" {
		d.Differences = append(d.Differences, bench.Difference{Name: "emulated", Text: "QEMU emulates the guest's instructions: no number compares with another arm's"})
	}
	return d
}

// Facts implements engine.Arm.
func (a *Arm) Facts(context.Context) []bench.Fact {
	return append(append(a.tool.Facts(), a.accel.Fact(engine.Accelerator)), a.host...)
}

// root is a pinned image, open for as long as the run, with what boots it.
type root struct {
	path string
	pin  bench.SHA256
	file *os.File
	boot boot
	// cache keeps digests.
	cache string
	size  int64
	// adopted: another process mounted it.
	adopted bool
	facts   []bench.Fact
}

func (r *root) Facts() []bench.Fact { return r.facts }

// CachePaths implements engine.Cached: the image, and what boots it.
func (r *root) CachePaths() ([]string, error) {
	paths := []string{r.path}
	if !r.boot.self() {
		paths = append(paths, r.boot.kernel, r.boot.initramfs)
	}
	return paths, nil
}

func (r *root) Verify(ctx context.Context) error {
	v, err := image.Verify(ctx, r.path, r.pin, r.cache)
	if err != nil {
		return err
	}
	return r.same(v)
}

// same requires that the verified file is the one that is open.
func (r *root) same(v image.Verified) error {
	var st syscall.Stat_t
	if err := syscall.Fstat(int(r.file.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: r.path, Err: err}
	}
	if uint64(st.Dev) != v.Digest.Identity.Dev || st.Ino != v.Digest.Identity.Ino || st.Ctim.Nano() != v.Digest.Identity.Ctime { //nolint:unconvert // 32 bits on some machines
		return &engine.Error{Op: "verify image", Err: fmt.Errorf("%w: %s was replaced while it was looked at", engine.ErrRefused, r.path)}
	}
	return nil
}

// Release implements engine.Root. Idempotent.
func (r *root) Release(context.Context) error {
	if r.adopted {
		return &engine.Error{Op: "release image", Err: fmt.Errorf("%w: it was taken over", engine.ErrRefused), Hint: "sweep takes away what the ledger owns"}
	}
	if err := r.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// Mount implements engine.Arm: it opens the pinned image and takes kernel and
// initial ramdisk out of it, once for each image; one that boots itself keeps them.
func (a *Arm) Mount(ctx context.Context, ws *engine.Workspace, p bench.MountParams) (engine.Root, error) {
	if err := a.Usable(); err != nil {
		return nil, err
	}
	tools, err := a.groups(ws)
	if err != nil {
		return nil, err
	}
	r, err := openRoot(ctx, ws, p.Image)
	if err != nil {
		return nil, err
	}
	if r.boot, err = a.takeBoot(ctx, ws, r, p.Image, tools); err != nil {
		return nil, errors.Join(err, r.Release(ctx))
	}
	r.facts = append(r.facts, r.boot.facts()...)
	return r, nil
}

// openRoot opens an image that is what was pinned.
func openRoot(ctx context.Context, ws *engine.Workspace, i bench.Image) (*root, error) {
	r := &root{path: imagePath(ws, i), pin: i.Sha256, cache: image.CacheDir(ws.State)}
	v, err := image.Verify(ctx, r.path, r.pin, r.cache)
	if err != nil {
		return nil, err
	}
	if r.path, err = filepath.Abs(r.path); err != nil {
		return nil, err
	}
	if r.file, err = os.Open(r.path); err != nil {
		return nil, &engine.Error{Op: "mount image", Err: err}
	}
	if err := r.same(v); err != nil {
		return nil, errors.Join(err, r.Release(ctx))
	}
	r.size, r.facts = v.VirtualSize, v.Facts()
	return r, nil
}

// inGroup has a program be born in a group.
func inGroup(g *cgroup.Group) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, g.FD()
	}
}

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
// engine.Releaser and ends whatever is left in it.
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

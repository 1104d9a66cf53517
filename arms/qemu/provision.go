package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/initrd"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Provision implements engine.Arm. It returns with the guest server's first
// answer: only the guest can say how many tasks its kernel allows. Of a machine
// that boots itself nobody says so; it returns once that runs.
func (a *Arm) Provision(ctx context.Context, ws *engine.Workspace, r engine.Root, old engine.Place, p bench.ProvisionParams) (engine.Slot, error) {
	op := "provision " + string(p.Slot)
	if p.Network != "none" {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: the qemu arm has no network %q", engine.ErrRefused, p.Network), Hint: `set network to "none"`}
	}
	if p.Driver != nil {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: a machine's disk is its own: nothing is staged in it", engine.ErrRefused), Hint: "leave image.driver out, a virtual machine has a card; or name another arm"}
	}
	s, err := shapeOf(p.Resources, p.Guest.Server.Port)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	pl, err := a.takePlace(ctx, ws, r, old, string(p.Slot))
	if err != nil {
		return nil, err
	}
	if err := pl.provision(ctx, s, p); err != nil {
		return nil, pl.abandon(ctx, op, err, old == nil)
	}
	return &slot{pl}, nil
}

func (p *place) provision(ctx context.Context, s shape, params bench.ProvisionParams) error {
	end := engine.StartSpan(ctx, "layer")
	t, err := p.move(s)
	if err == nil {
		t.policy, t.exclude = params.Policy, nonNil(params.Exclude)
		err = p.arm.newDisk(ctx, t.file(diskFile), p.root.path, p.root.size)
	}
	end()
	if err != nil {
		return err
	}
	if !t.self {
		if err := p.writeRamdisk(t, params); err != nil {
			return err
		}
	}
	l := launch{initrd: initrdFile, shared: true}
	if p.arm.settings.Snapshot == MethodFile {
		if l.memory, err = newMemory(s.Memory); err != nil {
			return err
		}
		defer l.memory.Close()
	}
	end = engine.StartSpan(ctx, "qemu")
	err = p.start(ctx, t, l)
	end()
	if err != nil {
		return err
	}
	defer t.detach()
	can, err := saving(ctx, t.mon.qmp, p.arm.settings.Snapshot)
	if err != nil {
		return err
	}
	t.facts = append(t.facts, can.facts()...)
	defer engine.StartSpan(ctx, "boot")()
	if err := t.cont(ctx); err != nil {
		return err
	}
	if t.self {
		return t.bounded()
	}
	return p.answers(ctx, t)
}

// writeRamdisk makes the machine's ramdisk: that of the image, and what this machine is told.
func (p *place) writeRamdisk(t *tenancy, params bench.ProvisionParams) error {
	base, err := os.ReadFile(p.root.boot.initramfs)
	if err != nil {
		return err
	}
	ramdisk, err := initrd.Append(base, initrd.Config{
		Guest: params.Guest, Hostname: p.name, Addresses: []string{initrd.Address}, Forward: []int{t.shape.Port}, Pids: t.shape.Pids,
	})
	if err != nil {
		return err
	}
	return os.WriteFile(t.file(initrdFile), ramdisk, 0o600)
}

// answers waits for the guest server's first answer, and requires that the
// machine is under its bounds.
func (p *place) answers(ctx context.Context, t *tenancy) error {
	var last error
	for {
		o := p.observe(ctx, t, engine.ViewHost, []engine.Aspect{engine.AspectLimits})
		have, known := o.Limits.Get()
		if known {
			if len(have.Outside) > 0 {
				return &engine.Error{Op: "read back limits of " + p.name, Err: fmt.Errorf("processes %v are not in the limits group", have.Outside)}
			}
			return nil
		}
		if ctx.Err() == nil {
			last = errors.New(o.Limits.Reason())
		}
		if err := (&slot{p}).Alive(); err != nil {
			return &engine.Error{Op: "boot " + p.name, Err: err, Hint: "the guest's last words are on its console"}
		}
		select {
		case <-ctx.Done():
			return &engine.Error{Op: "boot " + p.name, Err: fmt.Errorf("%w; last: %v", context.Cause(ctx), last)}
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// client talks to the guest server, also of a slot that is held.
func (t *tenancy) client() *guest.Client { return guest.New(t.dial, t.shape.Port, guest.Limits{}) }

// newDisk makes an empty overlay over a file, which is only named, not opened.
func (a *Arm) newDisk(ctx context.Context, path, backing string, size int64) error {
	_, err := a.qemuImg(ctx, nil, "create", "-q", "-f", "qcow2", "-u", "-F", "qcow2", "-b", backing, path, strconv.FormatInt(size, 10))
	return err
}

// newMemory makes memory that can be found again by whoever has QEMU's pid: a
// file in the state directory would be written to disk while the machine runs.
func newMemory(size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("drums", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "memory")
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func nonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

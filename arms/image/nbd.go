package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// attachNBD shows the image through qemu-nbd and the kernel's nbd driver. The
// machines that the project is tested on have no nbd; scripts/test host-vm has.
func (m *Mounted) attachNBD(ctx context.Context, image *os.File, _ string) (device, error) {
	const op = "attach nbd device"
	path, err := freeNBD("/dev", "/sys/block")
	if err != nil {
		return device{}, err
	}
	sys := filepath.Join("/sys/block", filepath.Base(path))
	// Without --verbose it goes on in a grandchild, in a session of its own, and the process that was started ends.
	cmd, err := command(context.WithoutCancel(ctx), "qemu-nbd", "--verbose", "--read-only", "--format=qcow2", "--persistent", "--connect="+path, passed(0))
	if err != nil {
		return device{}, err
	}
	cmd.ExtraFiles = []*os.File{image}
	d := &daemon{cmd: cmd, gone: make(chan struct{})}
	err = m.own("export", bench.Claim{Path: path, Backing: m.verified.Path}, func() (bench.Identity, error) {
		identity, err := d.start(m.options.Prepare)
		if err != nil {
			return bench.Identity{}, err
		}
		return identity, poll(ctx, op, func() (bool, error) {
			if err := d.died(); err != nil {
				return false, err
			}
			size, err := sysNumber(sys, "size")
			if err != nil || size == 0 {
				return false, err
			}
			if size*512 != m.verified.VirtualSize {
				return false, &engine.Error{Op: op, Err: fmt.Errorf("%s shows %d bytes of a disk of %d", path, size*512, m.verified.VirtualSize)}
			}
			return true, nil
		})
	}, func(ctx context.Context) error {
		if err := d.stop(ctx); err != nil {
			return err
		}
		return poll(ctx, "detach nbd device", func() (bool, error) {
			size, err := sysNumber(sys, "size")
			return size == 0, err
		})
	})
	if err != nil {
		return device{}, err
	}
	if m.options.Image.Partition == 0 {
		return device{path: path}, nil
	}
	// The kernel's own view of the partitions depends on max_part; a loop device over the disk does not.
	return m.attachOver(ctx, path)
}

// attachOver shows a partition of a block device through a loop device.
func (m *Mounted) attachOver(ctx context.Context, path string) (device, error) {
	disk, err := os.Open(path)
	if err != nil {
		return device{}, &engine.Error{Op: "open disk", Err: err}
	}
	defer disk.Close()
	offset, size, err := partitionAt(disk, m.options.Image.Partition)
	if err != nil {
		return device{}, err
	}
	return m.attachLoop(ctx, disk, offset, size)
}

// freeNBD returns the node of an nbd device that nobody uses. ErrRefused with a
// remedy where there is no nbd, or no free device.
func freeNBD(dev, sys string) (string, error) {
	const op = "attach nbd device"
	const hint = `load the module (modprobe nbd nbds_max=16), or use attach: "raw" or "fuse"`
	if _, err := os.Stat(filepath.Join(dev, "nbd0")); err != nil {
		return "", refuse(op, hint, "no nbd here: %v", err)
	}
	names, err := filepath.Glob(filepath.Join(sys, "nbd*"))
	if err != nil {
		return "", &engine.Error{Op: op, Err: err}
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(name, "pid")); !isMissing(err) {
			continue
		}
		if size, err := sysNumber(name, "size"); err != nil || size != 0 {
			continue
		}
		node := filepath.Join(dev, filepath.Base(name))
		if unix.Access(node, unix.R_OK) == nil {
			return node, nil
		}
	}
	return "", refuse(op, hint, "all %d nbd devices are in use", len(names))
}

func sysNumber(dir, name string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err == nil {
		var number int64
		if number, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			return number, nil
		}
	}
	return 0, &engine.Error{Op: "read " + name + " of " + filepath.Base(dir), Err: err}
}

package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// attachFuse shows the image through qemu-storage-daemon's FUSE export and a loop device.
func (m *Mounted) attachFuse(ctx context.Context, image *os.File, place string) (device, error) {
	const op = "export image"
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return device{}, refuse(op, `load the fuse module, or use attach: "raw"`, "no FUSE here: %v", err)
	}
	export := filepath.Join(place, "disk.raw")
	if err := m.own("file", bench.Claim{Path: export}, func() (bench.Identity, error) {
		f, err := os.OpenFile(export, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o400)
		if err != nil {
			return bench.Identity{}, &engine.Error{Op: op, Err: err}
		}
		f.Close()
		return pathIdentity(export)
	}, func(context.Context) error { return removed(export) }); err != nil {
		return device{}, err
	}
	if err := m.startExport(ctx, image, export); err != nil {
		return device{}, err
	}
	raw, err := os.Open(export)
	if err != nil {
		return device{}, &engine.Error{Op: op, Err: err}
	}
	defer raw.Close()
	offset, size, err := partitionAt(raw, m.options.Image.Partition)
	if err != nil {
		return device{}, err
	}
	return m.attachLoop(ctx, raw, offset, size)
}

// startExport starts the daemon and waits until the file at export shows the disk.
func (m *Mounted) startExport(ctx context.Context, image *os.File, export string) error {
	const op = "export image"
	nodes := []map[string]any{
		{"driver": "file", "node-name": "file", "filename": passed(0), "read-only": true},
		// backing: null, so that no other file is opened whatever the header says.
		{"driver": "qcow2", "node-name": "disk", "file": "file", "read-only": true, "backing": nil},
	}
	var args []string
	for _, node := range nodes {
		text, err := json.Marshal(node)
		if err != nil {
			return &engine.Error{Op: op, Err: err}
		}
		args = append(args, "--blockdev", string(text))
	}
	text, err := json.Marshal(map[string]any{"type": "fuse", "id": "export", "node-name": "disk", "mountpoint": export, "writable": false})
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	// The daemon outlives this step: ctx ends the waiting here, Release ends the daemon.
	cmd, err := command(context.WithoutCancel(ctx), "qemu-storage-daemon", append(args, "--export", string(text))...)
	if err != nil {
		return err
	}
	cmd.ExtraFiles = []*os.File{image}
	d := &daemon{cmd: cmd, gone: make(chan struct{})}
	return m.own("export", bench.Claim{Path: export, Backing: m.verified.Path}, func() (bench.Identity, error) {
		identity, err := d.start(m.options.Prepare)
		if err != nil {
			return bench.Identity{}, err
		}
		return identity, poll(ctx, op, func() (bool, error) {
			if err := d.died(); err != nil {
				return false, err
			}
			var fs unix.Statfs_t
			var stat unix.Stat_t
			if unix.Statfs(export, &fs) != nil || fs.Type != unix.FUSE_SUPER_MAGIC || unix.Stat(export, &stat) != nil {
				return false, nil
			}
			if stat.Size != m.verified.VirtualSize {
				return false, &engine.Error{Op: op, Err: fmt.Errorf("the export shows %d bytes of a disk of %d", stat.Size, m.verified.VirtualSize)}
			}
			return true, nil
		})
	}, func(ctx context.Context) error {
		if err := d.stop(ctx); err != nil {
			return err
		}
		return unmounted(ctx, export) // a daemon that was killed leaves its mount
	})
}

// daemon is a child that serves a block device until it is stopped.
type daemon struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	gone   chan struct{}
	err    error
}

// start starts the child and returns its identity. Its signals go by pidfd (os.Process has one).
func (d *daemon) start(prepare func(*exec.Cmd)) (bench.Identity, error) {
	const op = "start storage daemon"
	d.cmd.Stderr = &d.stderr
	if prepare != nil {
		prepare(d.cmd)
	}
	if err := d.cmd.Start(); err != nil {
		return bench.Identity{}, &engine.Error{Op: op, Err: err}
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.gone)
	}()
	proc, err := procfs.NewProc(d.cmd.Process.Pid)
	if err != nil {
		return bench.Identity{}, &engine.Error{Op: op, Err: err}
	}
	stat, err := proc.Stat()
	if err != nil {
		return bench.Identity{}, &engine.Error{Op: op, Err: err}
	}
	return bench.Identity{Pid: int64(d.cmd.Process.Pid), StartTicks: bench.Int64(fmt.Sprint(stat.Starttime))}, nil
}

// died returns an error with the child's last words once it has ended.
func (d *daemon) died() error {
	select {
	case <-d.gone:
		return &engine.Error{Op: "run storage daemon", Err: fmt.Errorf("%s ended: %v: %s", filepath.Base(d.cmd.Path), d.err, lastLines(d.stderr.String(), 3))}
	default:
		return nil
	}
}

// stop asks the child to end, then makes it, and returns once it was waited for.
func (d *daemon) stop(ctx context.Context) error {
	if d.cmd.Process == nil {
		return nil
	}
	for _, try := range []struct {
		signal os.Signal
		wait   time.Duration
	}{{unix.SIGTERM, 5 * time.Second}, {unix.SIGKILL, 5 * time.Second}} {
		if err := d.cmd.Process.Signal(try.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return &engine.Error{Op: "stop storage daemon", Err: err}
		}
		select {
		case <-d.gone:
			return nil
		case <-time.After(try.wait):
		case <-ctx.Done():
		}
	}
	select {
	case <-d.gone:
		return nil
	default:
		return &engine.Error{Op: "stop storage daemon", Err: fmt.Errorf("pid %d does not end after SIGKILL", d.cmd.Process.Pid)}
	}
}

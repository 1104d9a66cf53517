package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/docker/go-units"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/initrd"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// shape is what a machine is: what must be the same when its state is loaded.
type shape struct {
	VCPUs  int64 `json:"vcpus"`
	Memory int64 `json:"memory"`
	Pids   int64 `json:"pids"`
	// Port of the guest server.
	Port int `json:"port"`
}

// shapeOf refuses resources that no machine of this arm has.
func shapeOf(r bench.Resources, port int64) (shape, error) {
	memory, err := units.RAMInBytes(string(r.Memory))
	if err != nil {
		return shape{}, err
	}
	if r.Swap != "0" {
		return shape{}, &engine.Error{Op: "shape machine", Err: fmt.Errorf("%w: swap of %s", engine.ErrRefused, r.Swap),
			Hint: `the qemu arm's guests have no swap device: set resources.swap to "0"`}
	}
	return shape{VCPUs: r.Vcpus, Memory: memory, Pids: r.Pids, Port: int(port)}, nil
}

// processTasks is how many threads QEMU itself may have beside the vcpus: its pool for the disk has up to 64.
const processTasks = 128

// host are the bounds of the QEMU process.
func (s shape) host(headroom string) (bench.Resources, error) {
	extra, err := units.RAMInBytes(headroom)
	if err != nil {
		return bench.Resources{}, err
	}
	return bench.Resources{Vcpus: s.VCPUs, Memory: bench.Bytes(strconv.FormatInt((s.Memory+extra)>>10, 10) + "KiB"), Swap: "0", Pids: s.VCPUs + processTasks}, nil
}

// launch is how a QEMU process is started.
type launch struct {
	// layers under the slot's disk, over the image: absolute paths, lowest first.
	layers []string
	// initrd of the machine.
	initrd string
	// memory is the file that is the machine's memory; nil for none.
	memory *os.File
	// shared: what the machine writes to its memory is in the file; else that is mapped copy-on-write.
	shared bool
	// incoming is the saved state that is loaded; nil for none.
	incoming *os.File
}

// Descriptors in the child.
const (
	fdImage = 3 + iota
	fdTap
	fdSocket
	fdMemory
	fdIncoming
)

// inherited is the path of a descriptor as QEMU has it.
func inherited(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func object(v map[string]any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of texts, numbers and booleans
	}
	return string(b)
}

// arguments of QEMU. Files of the slot are named relative to its folder, which is the working directory.
func (a *Arm) arguments(r *root, s shape, l launch) []string {
	backend := map[string]any{"qom-type": "memory-backend-ram", "id": "ram", "size": s.Memory}
	if l.memory != nil {
		backend = map[string]any{"qom-type": "memory-backend-file", "id": "ram", "size": s.Memory, "mem-path": inherited(fdMemory), "share": l.shared}
		if !l.shared && a.tool.since(8, 2) { // an older one opens it for writing, which its mapping does not need
			backend["readonly"], backend["rom"] = true, "off"
		}
	}
	args := []string{
		"-name", "drums", "-nodefaults", "-no-user-config", "-no-reboot", "-S", "-display", "none",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-machine", "q35,accel=" + a.settings.Accel + ",memory-backend=ram", "-cpu", processor(a.settings.Accel),
		"-smp", fmt.Sprintf("%d,sockets=1,cores=%d,threads=1", s.VCPUs, s.VCPUs), "-m", fmt.Sprintf("%dB", s.Memory),
		"-object", object(backend), "-rtc", "base=utc,clock=host",
		"-chardev", "socket,id=qmp,server=on,wait=off,fd=" + strconv.Itoa(fdSocket), "-mon", "chardev=qmp,mode=control",
		"-chardev", "file,id=console,append=on,path=" + consoleFile, "-device", "isa-serial,chardev=console",
		"-device", "VGA", // a display that snapshots allow
		"-netdev", netdev(r.boot, s), "-device", "virtio-net-pci,netdev=net,romfile=,mac=" + cardMAC,
		"-device", "virtio-blk-pci,drive=disk",
	}
	if !r.boot.self() {
		args = append(args, "-kernel", r.boot.kernel, "-initrd", l.initrd, "-append", initrd.CommandLine)
	}
	node := func(name, file string, backing any, readOnly bool) {
		below := map[string]any{"driver": "file", "node-name": name + "-file", "filename": file, "read-only": readOnly, "cache": map[string]any{"no-flush": !readOnly}}
		if readOnly { // pinned or sealed, and compared with that: siblings have no lock of QEMU's in common
			below["locking"] = "off"
		}
		args = append(args,
			"-blockdev", object(below),
			"-blockdev", object(map[string]any{"driver": "qcow2", "node-name": name, "file": name + "-file", "backing": backing, "read-only": readOnly, "cache": map[string]any{"no-flush": !readOnly}}))
	}
	// Each backing is named here: no header is asked, and the image is the very file that was compared with its pin.
	node("image", inherited(fdImage), nil, true)
	below := "image"
	for i, layer := range l.layers {
		name := "layer-" + strconv.Itoa(i)
		node(name, layer, below, true)
		below = name
	}
	node("disk", diskFile, below, false)
	if l.incoming != nil {
		args = append(args, "-incoming", "defer")
	}
	return args
}

// start starts QEMU, stopped, and attaches to it: where it succeeds, the caller
// detaches. The accelerator, vcpus and memory were read back.
func (p *place) start(ctx context.Context, t *tenancy, l launch) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	at, folder, err := t.socket()
	if err != nil {
		return err
	}
	defer folder.Close()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		return err
	}
	listener.SetUnlinkOnClose(false)
	socket, err := listener.File()
	if err = errors.Join(err, listener.Close()); err != nil {
		return err
	}
	defer socket.Close()
	log, err := os.OpenFile(t.file(logFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	id, err := p.ws.Ledger.Intend("process", bench.Claim{Cgroup: p.group.Path(), Note: "machine of " + p.name})
	if err != nil {
		return err
	}
	t.procID = id
	cmd := &exec.Cmd{
		Path: p.arm.tool.Path, Args: append([]string{program}, p.arm.arguments(p.root, t.shape, l)...), Env: environment, Dir: t.dir,
		Stdout: log, Stderr: log,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: p.birth(t)},
	}
	err = thread.Run(func() error {
		// Descriptors that we inherited ourselves must not reach a machine; Go's own never do.
		if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
			return fmt.Errorf("close inherited descriptors: %w", err)
		}
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare network: %w", err)
		}
		var tap *os.File // none where QEMU itself is the network: the descriptor stays closed
		var err error
		if p.root.boot.self() {
			err = loopbackUp()
		} else {
			tap, err = openTap()
		}
		if err != nil {
			return err
		}
		defer tap.Close()
		cmd.ExtraFiles = []*os.File{p.root.file, tap, socket}
		for _, f := range []*os.File{l.memory, l.incoming} {
			if f != nil {
				cmd.ExtraFiles = append(cmd.ExtraFiles, f)
			}
		}
		leave, err := t.limits.JoinThread()
		if err != nil {
			return err
		}
		return errors.Join(cmd.Start(), leave())
	})
	if cmd.Process != nil {
		t.pid = cmd.Process.Pid
		cmd.Process.Release() // we wait for it ourselves, as for one that we adopt
	}
	if err != nil {
		return err
	}
	identity, err := procfs.Identity(t.pid)
	if err != nil {
		return err
	}
	if err := p.ws.Ledger.Bind(t.procID, identity); err != nil {
		return err
	}
	if t.net, err = netns.Open(fmt.Sprintf("/proc/%d/ns/net", t.pid)); err != nil {
		return err
	}
	socket.Close() // with the last listener gone a dead QEMU refuses us, instead of never greeting
	if err := t.attach(ctx); err != nil {
		return p.explain(ctx, t, err)
	}
	defer func() {
		if err != nil {
			t.detach()
		}
	}()
	have, err := accelerator(ctx, t.mon.qmp)
	if err != nil {
		return p.explain(ctx, t, err)
	}
	if have != p.arm.settings.Accel {
		return &engine.Error{Op: "start machine", Err: fmt.Errorf("%w: accelerator %s was asked for, and QEMU runs with %s", engine.ErrRefused, p.arm.settings.Accel, have),
			Hint: `use a host whose /dev/kvm works, or accel: "tcg"`}
	}
	t.facts = append(t.facts, bench.Fact{Name: engine.Accelerator, Known: true, Value: have, Source: "query-kvm", View: engine.ViewHost})
	vcpus, memory, err := t.hardware(ctx)
	if err != nil {
		return p.explain(ctx, t, err)
	}
	if vcpus != t.shape.VCPUs || memory != t.shape.Memory {
		return &engine.Error{Op: "start machine", Err: fmt.Errorf("%w: QEMU has %d vcpus and %d bytes of memory, asked were %d and %d", engine.ErrRefused, vcpus, memory, t.shape.VCPUs, t.shape.Memory)}
	}
	text, err := json.Marshal(t.shape)
	if err != nil {
		return err
	}
	return os.WriteFile(t.file(shapeFile), append(text, '\n'), 0o600)
}

// explain adds what QEMU said before it ended.
func (p *place) explain(ctx context.Context, t *tenancy, err error) error {
	for range 100 {
		ended, eerr := t.ended()
		if ended {
			return &engine.Error{Op: "start machine", Err: fmt.Errorf("%w: %w", err, t.death()), Hint: "QEMU's own words are in its log"}
		}
		if eerr != nil || ctx.Err() != nil || !errors.Is(err, engine.ErrDead) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return err
}

// hardware reads vcpus and memory back.
func (t *tenancy) hardware(ctx context.Context) (vcpus, memory int64, err error) {
	var cpus []struct {
		Thread int `json:"thread-id"`
	}
	if err := t.execute(ctx, "query-cpus-fast", nil, &cpus); err != nil {
		return 0, 0, err
	}
	var size struct {
		Base    int64 `json:"base-memory"`
		Plugged int64 `json:"plugged-memory"`
	}
	if err := t.execute(ctx, "query-memory-size-summary", nil, &size); err != nil {
		return 0, 0, err
	}
	return int64(len(cpus)), size.Base + size.Plugged, nil
}

// status of the machine as QEMU has it (RunState in qapi/run-state.json).
func (t *tenancy) status(ctx context.Context) (string, error) {
	var s struct {
		Status  string
		Running bool
	}
	if err := t.execute(ctx, "query-status", nil, &s); err != nil {
		return "", err
	}
	if s.Running != (s.Status == "running") {
		return "", fmt.Errorf("%w: status %s, running %v", engine.ErrUnknown, s.Status, s.Running)
	}
	return s.Status, nil
}

// cont lets the machine run and reads that back.
func (t *tenancy) cont(ctx context.Context) error { return t.turn(ctx, "cont", "running") }

// stop stops it. What its disk has in QEMU's memory is written out (do_vm_stop).
func (t *tenancy) stop(ctx context.Context) error { return t.turn(ctx, "stop", "paused") }

func (t *tenancy) turn(ctx context.Context, command, want string) error {
	if err := t.execute(ctx, command, nil, nil); err != nil {
		return err
	}
	have, err := t.status(ctx)
	if err == nil && have != want {
		err = &engine.Error{Op: command + " machine", Err: fmt.Errorf("its status is %s, not %s", have, want)}
	}
	return err
}

// poll calls done until it says true, an error comes or ctx ends.
func poll(ctx context.Context, op string, done func() (bool, error)) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 5*time.Millisecond) {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return &engine.Error{Op: op, Err: context.Cause(ctx)}
		case <-time.After(wait):
		}
	}
}

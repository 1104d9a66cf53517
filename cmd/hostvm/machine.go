package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const (
	// emulator of the machine.
	emulator = "qemu-system-x86_64"
	// cmdline of the kernel; the image names no service of its own to start.
	cmdline = "root=/dev/vda rw console=ttyS0 net.ifnames=0 panic=-1 systemd.wants=hostvm.service systemd.show_status=false"
	// accelVariable is "kvm" on a host whose /dev/kvm works. One that is there and
	// opens may still run nothing, so that its presence decides nothing.
	accelVariable = "DRUMSBENCH_HOSTVM_ACCEL"
	// Labels of the disks, as the image's fstab and the installation have them.
	labelIn, labelState = "hostvm-in", "hostvm-state"
	agentPort           = 7000
	// bootLimit is for a machine that is emulated on a busy host.
	bootLimit = 20 * time.Minute
	prepared  = "run scripts/prepare desk host"
)

// Options say which machine to boot.
type Options struct {
	// State is the outer state directory: images, programs, CRIU, manifests with
	// pins. The machine's own lies at the same path, which is baked into CRIU.
	State string
	// Page is docs/operating.md, whose blocks install the programs.
	Page string
	// Files go into the machine's first disk beside the programs, by their path there: tests, pages.
	Files map[string]string
	// Stay leaves the machine running when this process has ended.
	Stay bool
	// Log receives a line for each thing done.
	Log io.Writer
}

// Machine is a host of an operator's.
type Machine struct {
	options Options
	// Dir holds the disks and the console of each boot.
	Dir  string
	boot bootFiles
	// process is QEMU; the zero value where none runs.
	process bench.Identity
	port    int
	boots   int
}

type bootFiles struct{ kernel, ramdisk, image string }

// Up boots a machine and installs the programs in it.
func Up(ctx context.Context, o Options) (_ *Machine, err error) {
	m, err := New(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil { // what it said stays, as the error names it
			err = errors.Join(err, m.Cut(), m.removeDisks())
		}
	}()
	if err := m.Start(ctx, ""); err != nil {
		return nil, err
	}
	return m, m.Install(ctx)
}

// New makes the disks of a machine and starts nothing.
func New(ctx context.Context, o Options) (_ *Machine, err error) {
	const op = "make machine"
	dir := filepath.Join(o.State, "hostvm")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	m := &Machine{options: o}
	if m.boot, err = bootOf(ctx, filepath.Join(o.State, "images", "host.qcow2"), dir); err != nil {
		return nil, err
	}
	if m.Dir, err = os.MkdirTemp(dir, "machine-"); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	defer func() {
		if err != nil {
			os.RemoveAll(m.Dir)
		}
	}()
	if err := m.makeDisks(ctx); err != nil {
		return nil, err
	}
	m.say("disks are made")
	return m, nil
}

func (m *Machine) say(format string, args ...any) {
	if m.options.Log != nil {
		fmt.Fprintf(m.options.Log, "hostvm: "+format+"\n", args...)
	}
}

// tool runs a program of the host and returns what it said.
func tool(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if path, err := exec.LookPath("/usr/sbin/" + name); err == nil {
		cmd.Path, cmd.Err = path, nil
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return "", &engine.Error{Op: "run " + name, Err: fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String())), Hint: "scripts/setup installs the tools"}
	}
	return said.String(), nil
}

// bootOf takes the kernel and its ramdisk out of the image, once for each image.
func bootOf(ctx context.Context, image, dir string) (bootFiles, error) {
	const op = "find kernel of the host image"
	text, err := os.ReadFile(strings.TrimSuffix(image, ".qcow2") + ".packages.json")
	var built struct {
		SHA256 string `json:"sha256"`
	}
	if err == nil {
		err = json.Unmarshal(text, &built)
	}
	if err == nil && len(built.SHA256) != 64 {
		err = fmt.Errorf("the list of packages of %s names no digest", image)
	}
	if err != nil {
		return bootFiles{}, &engine.Error{Op: op, Err: err, Hint: prepared}
	}
	place := filepath.Join(dir, "boot-"+built.SHA256[:16])
	b := bootFiles{kernel: filepath.Join(place, "vmlinuz"), ramdisk: filepath.Join(place, "initrd.img"), image: image}
	if _, err := os.Stat(place); err == nil {
		return b, nil
	}
	fresh, err := os.MkdirTemp(dir, "boot-")
	if err != nil {
		return bootFiles{}, &engine.Error{Op: op, Err: err}
	}
	defer os.RemoveAll(fresh)
	raw := filepath.Join(fresh, "raw")
	if _, err := tool(ctx, "qemu-img", "convert", "-O", "raw", image, raw); err != nil {
		return bootFiles{}, err
	}
	listing, err := tool(ctx, "debugfs", "-R", "ls -p /boot", raw)
	if err != nil {
		return bootFiles{}, err
	}
	for line := range strings.Lines(listing) { // /inode/mode/uid/gid/name/size/
		field := strings.Split(line, "/")
		if len(field) < 7 {
			continue
		}
		for _, name := range []string{"vmlinuz", "initrd.img"} {
			if strings.HasPrefix(field[5], name+"-") {
				if _, err := tool(ctx, "debugfs", "-R", "dump /boot/"+field[5]+" "+filepath.Join(fresh, name), raw); err != nil {
					return bootFiles{}, err
				}
			}
		}
	}
	for _, name := range []string{"vmlinuz", "initrd.img"} {
		if info, err := os.Stat(filepath.Join(fresh, name)); err != nil || info.Size() == 0 {
			return bootFiles{}, &engine.Error{Op: op, Err: fmt.Errorf("the image has no /boot/%s-*: %w", name, err), Hint: prepared}
		}
	}
	if err := os.Remove(raw); err != nil {
		return bootFiles{}, &engine.Error{Op: op, Err: err}
	}
	if err := os.Rename(fresh, place); err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOTEMPTY) {
		return bootFiles{}, &engine.Error{Op: op, Err: err}
	}
	return b, nil
}

// makeDisks makes the root from the image, the inputs, and an empty state disk with a journal.
func (m *Machine) makeDisks(ctx context.Context) error {
	const op = "make disks"
	// Raw: what QEMU holds of a qcow2 file's tables would be lost with it when the power is cut.
	if _, err := tool(ctx, "qemu-img", "convert", "-O", "raw", m.boot.image, m.disk("root.raw")); err != nil {
		return err
	}
	bundle, content := m.disk("in"), m.disk("bundle")
	state := m.options.State
	// The bundle is as the page makes it.
	for _, f := range [][2]string{
		{"bin/drumsbench", "bin/drumsbench"}, {"criu", "criu"}, {"images/tiny.qcow2", "images/tiny.qcow2"},
		{"images/desk.qcow2", "images/desk.qcow2"}, {"manifests", "manifests"},
	} {
		if err := copyInto(ctx, filepath.Join(state, f[0]), filepath.Join(content, f[1])); err != nil {
			return err
		}
	}
	if err := copyInto(ctx, filepath.Join(state, "bin", "hostvm"), filepath.Join(bundle, "bin", "hostvm")); err != nil {
		return err
	}
	for to, from := range m.options.Files {
		to, of := strings.CutPrefix(to, "state/")
		place := bundle
		if of {
			place = content
		}
		if err := copyInto(ctx, from, filepath.Join(place, to)); err != nil {
			return err
		}
	}
	if _, err := tool(ctx, "tar", "-C", content, "-cf", filepath.Join(bundle, "drumsbench.tar"), "."); err != nil {
		return err
	}
	if err := os.RemoveAll(content); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	for _, d := range []struct{ file, label, size, from string }{
		{"in.raw", labelIn, "1500M", bundle},
		{"state.raw", labelState, "6G", ""},
	} {
		args := []string{"-q", "-F", "-t", "ext4", "-L", d.label, "-m", "0", "-E", "lazy_itable_init=1,nodiscard"}
		if d.from != "" {
			args = append(args, "-d", d.from)
		}
		if _, err := tool(ctx, "mke2fs", append(args, m.disk(d.file), d.size)...); err != nil {
			return err
		}
	}
	return os.RemoveAll(bundle)
}

// copyInto copies a file or folder to a path whose folder is made.
func copyInto(ctx context.Context, from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return &engine.Error{Op: "make disks", Err: err}
	}
	_, err := tool(ctx, "cp", "-a", "--reflink=auto", from, to)
	return err
}

func (m *Machine) disk(name string) string { return filepath.Join(m.Dir, name) }

// Console is the file with what the last boot said.
func (m *Machine) Console() string { return m.disk(fmt.Sprintf("console-%d", m.boots)) }

// Start starts the machine, whose disks are as they were left, and waits until
// its agent answers. more goes to the kernel's command line. An error names the console.
func (m *Machine) Start(ctx context.Context, more string) error {
	const op = "boot machine"
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	m.port = l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	m.boots++
	accel := []string{"-accel", "tcg,thread=multi"}
	if os.Getenv(accelVariable) == "kvm" {
		accel = []string{"-accel", "kvm"}
	}
	args := append(accel, "-M", "q35", "-cpu", "max", "-smp", "2", "-m", "3072", "-display", "none", "-nodefaults", "-no-user-config",
		"-kernel", m.boot.kernel, "-initrd", m.boot.ramdisk, "-append", strings.TrimSpace(cmdline+" "+more), "-serial", "file:"+m.Console(),
		"-drive", "file="+m.disk("root.raw")+",format=raw,if=virtio,cache=unsafe,discard=unmap",
		"-drive", "file="+m.disk("in.raw")+",format=raw,if=virtio,readonly=on",
		"-drive", "file="+m.disk("state.raw")+",format=raw,if=virtio,cache=unsafe,discard=unmap",
		"-device", "virtio-rng-pci",
		"-netdev", fmt.Sprintf("user,id=n0,restrict=on,hostfwd=tcp:127.0.0.1:%d-10.0.2.15:%d", m.port, agentPort), "-device", "virtio-net-pci,netdev=n0,romfile=")
	path, err := exec.LookPath(emulator)
	if err != nil {
		return &engine.Error{Op: op, Err: err, Hint: "run scripts/setup"}
	}
	said, err := os.Create(m.disk("qemu.log"))
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	defer said.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = said, said
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true} // no signal of the terminal's reaches it
	if !m.options.Stay {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL // a killed test leaves no machine
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	m.process, err = procfs.Identity(cmd.Process.Pid)
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its words are in qemu.log
		close(ended)
	}()
	if err != nil {
		return &engine.Error{Op: op, Err: errors.Join(err, cmd.Process.Kill()), Log: said.Name()}
	}
	limit, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	for {
		boot, err := m.alive(limit)
		if err == nil {
			m.say("boot %d is up after %.0f s, boot id %s", m.boots, time.Since(begin).Seconds(), boot)
			return nil
		}
		select {
		case <-ended:
			return &engine.Error{Op: op, Err: errors.New("qemu has ended"), Log: said.Name()}
		case <-limit.Done():
			return &engine.Error{Op: op, Err: errors.Join(context.Cause(limit), err), Log: m.Console()}
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// Cut ends the machine as a power cut does. Idempotent.
func (m *Machine) Cut() error {
	if m.process.Pid == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := procfs.Kill(ctx, m.process); err != nil {
		return err
	}
	m.process = bench.Identity{}
	return nil
}

func (m *Machine) removeDisks() error {
	for _, name := range []string{"root.raw", "in.raw", "state.raw"} {
		if err := os.Remove(m.disk(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return &engine.Error{Op: "remove disks", Err: err}
		}
	}
	return nil
}

// Close ends the machine and removes its folder.
func (m *Machine) Close() error {
	if err := m.Cut(); err != nil {
		return err
	}
	_ = os.Remove(keptFile(m.options.State)) // there only where it was kept
	return os.RemoveAll(m.Dir)
}

// Environment is what each script begins with.
func (m *Machine) Environment() string {
	return "export DRUMSBENCH_STATE=" + m.options.State + "\n"
}

// Install does what docs/operating.md tells an operator to do, in its own words: the
// blocks that are marked as sh of systemd, after the state disk was mounted.
func (m *Machine) Install(ctx context.Context) error {
	const op = "install in machine"
	page := m.page("systemd")
	if page == "" {
		return &engine.Error{Op: op, Err: fmt.Errorf("%s has no block to run", m.options.Page)}
	}
	var said bytes.Buffer
	begin := time.Now()
	code, err := m.Run(ctx, m.Environment()+stateDisk+"export BUNDLE=/media/in/drumsbench.tar\n"+page, &said)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d: %s", code, said.String())
	}
	if err != nil {
		return &engine.Error{Op: op, Err: err, Log: m.Console()}
	}
	m.say("installed after %.0f s", time.Since(begin).Seconds())
	return nil
}

// page is what the page's blocks of that mark hold, in order; empty where there is none.
func (m *Machine) page(mark string) string {
	text, err := os.ReadFile(m.options.Page)
	if err != nil {
		return ""
	}
	var script strings.Builder
	inside := false
	for line := range strings.Lines(string(text)) {
		switch strings.TrimSpace(line) {
		case "```sh " + mark:
			inside = true
		case "```":
			inside = false
		default:
			if inside {
				script.WriteString(line)
			}
		}
	}
	return script.String()
}

// stateDisk is mounted where the state directory is to be, at each boot.
const stateDisk = `set -euo pipefail
mkdir -p "$DRUMSBENCH_STATE"
echo "LABEL=` + labelState + ` $DRUMSBENCH_STATE ext4 noatime 0 2" >>/etc/fstab
mount "$DRUMSBENCH_STATE"
`

// keptFile remembers a machine that was left running.
func keptFile(state string) string { return filepath.Join(state, "hostvm", "up.json") }

type remembered struct {
	Dir     string         `json:"dir"`
	Process bench.Identity `json:"process"`
	Port    int            `json:"port"`
	Boots   int            `json:"boots"`
}

func (m *Machine) keep() error {
	text, err := json.Marshal(remembered{m.Dir, m.process, m.port, m.boots})
	if err == nil {
		err = os.WriteFile(keptFile(m.options.State), text, 0o600)
	}
	return err
}

// kept is the machine that was left running; nil where there is none any more.
func kept(state string) (*Machine, error) {
	text, err := os.ReadFile(keptFile(state))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var r remembered
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	var alive bool
	if err == nil {
		alive, err = procfs.Alive(r.Process)
	}
	if err != nil {
		return nil, &engine.Error{Op: "find machine", Err: err}
	}
	m := &Machine{options: Options{State: state}, Dir: r.Dir, process: r.Process, port: r.Port, boots: r.Boots}
	if !alive {
		return nil, m.Close() // what it left goes too
	}
	return m, nil
}

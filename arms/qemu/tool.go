package qemu

import (
	"context"
	_ "embed" // the probe
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/qmp"
	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Names of facts.
const (
	factVersion = "qemu.version"
	factSHA256  = "qemu.sha256"
	factOrigin  = "qemu.origin"
	factOthers  = "qemu.others"
)

// Variable names an operator's own QEMU, by an absolute path. It is used in place
// of those in PATH.
const Variable = "DRUMSBENCH_QEMU"

// program is the only emulator that images of ours boot on.
const program = "qemu-system-x86_64"

const setupHint = "install the package qemu-system-x86; scripts/setup does"

// oldest is the first version that the arm knows how to use.
var oldest = []int{7, 2}

// Tool is the QEMU in use, as it was read.
type Tool struct {
	// Path is absolute and free of symbolic links.
	Path    string
	Version string
	SHA256  string
	// Origin is Variable or "PATH".
	Origin string
	// Others are those that were found in PATH too, each with its version and why it is not used.
	Others []string
}

var versionLine = regexp.MustCompile(`^QEMU emulator version ([0-9]+\.[0-9]+\.[0-9]+[^\n]*)`)

// Locate finds the QEMU to use. An operator's own is used or refused, never
// replaced; else it is the newest in PATH that the arm knows, and of equals the
// first. With a pin it is one of that digest. engine.ErrRefused where there is none.
func Locate(ctx context.Context, pin bench.SHA256) (Tool, error) {
	const op = "find qemu"
	refuse := func(hint string, err error) (Tool, error) {
		return Tool{}, &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", engine.ErrRefused, err), Hint: hint}
	}
	if runtime.GOARCH != "amd64" {
		return refuse(setupHint, fmt.Errorf("the arm runs x86-64 machines on x86-64 hosts, this is %s", runtime.GOARCH))
	}
	paths, origin, err := choices(os.Getenv(Variable), os.Getenv("PATH"))
	if err != nil {
		return refuse(setupHint, err)
	}
	hint := setupHint
	var chosen Tool
	var passed []string
	for _, path := range paths {
		t, err := ask(ctx, path, origin)
		if ctx.Err() != nil {
			return Tool{}, &engine.Error{Op: op, Err: context.Cause(ctx)}
		}
		why := ""
		switch {
		case err != nil:
			why = err.Error()
		case !t.since(oldest...):
			why = "it is older than 7.2"
		case pin != "" && t.SHA256 != string(pin):
			why = "its sha256 is " + t.SHA256 + ", and " + string(pin) + " is pinned"
			hint = "install the QEMU that the manifest pins (arms.qemu.qemu), name it in " + Variable + ", or pin this one"
		case chosen.Path != "" && slices.Compare(t.numbers(), chosen.numbers()) <= 0:
			why = "there is a newer one"
			if slices.Equal(t.numbers(), chosen.numbers()) {
				why = "it comes later in PATH"
			}
		}
		said := strings.TrimSpace(path + " " + t.Version)
		if why != "" {
			passed = append(passed, said+": "+why)
			continue
		}
		if chosen.Path != "" {
			passed = append(passed, chosen.Path+" "+chosen.Version+": there is a newer one")
		}
		chosen = t
	}
	if chosen.Path == "" {
		return refuse(hint, errors.New(strings.Join(passed, "; ")))
	}
	chosen.Others = passed
	return chosen, nil
}

// choices are the QEMUs to choose from, in the order of preference among equals.
// own is the operator's; empty for none.
func choices(own, path string) (list []string, origin string, err error) {
	add := func(path string) error {
		path, err := filepath.EvalSymlinks(path)
		if err == nil && !slices.Contains(list, path) {
			list = append(list, path)
		}
		return err
	}
	if own != "" {
		if !filepath.IsAbs(own) {
			return nil, "", fmt.Errorf("%s=%s is no absolute path", Variable, own)
		}
		if _, err = exec.LookPath(own); err == nil {
			err = add(own)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", Variable, err)
		}
		return list, Variable, err
	}
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if found, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			if err := add(found); err != nil {
				return nil, "", err
			}
		}
	}
	if len(list) == 0 {
		return nil, "", fmt.Errorf("there is no %s in PATH", program)
	}
	return list, "PATH", nil
}

// ask reads what a program is.
func ask(ctx context.Context, path, origin string) (Tool, error) {
	t := Tool{Path: path, Origin: origin}
	sum, err := digest(path)
	if err != nil {
		return t, err
	}
	t.SHA256 = string(sum)
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = environment
	out, err := cmd.Output()
	if err != nil {
		return t, err
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return t, fmt.Errorf("%s says %.100q", path, out)
	}
	t.Version = strings.TrimSpace(string(m[1]))
	return t, nil
}

// since says whether the tool is of a version or newer.
func (t Tool) since(version ...int) bool { return slices.Compare(t.numbers(), version) >= 0 }

// numbers of the version; none where it is no version.
func (t Tool) numbers() (list []int) {
	for _, part := range strings.Split(versionNumber.FindString(t.Version), ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil
		}
		list = append(list, n)
	}
	return list
}

var versionNumber = regexp.MustCompile(`^[0-9]{1,6}(\.[0-9]{1,6})*`)

// runs requires that a process runs the tool's very program: engine.ErrRefused where
// it runs another, as after QEMU was replaced on the host.
func (t Tool) runs(pid int) error {
	exe := fmt.Sprintf("/proc/%d/exe", pid)
	have, err := digest(exe)
	if err != nil {
		return fmt.Errorf("%w: the program of pid %d: %w", engine.ErrUnknown, pid, err)
	}
	if string(have) != t.SHA256 {
		path, _ := os.Readlink(exe) // names it only
		return &engine.Error{Op: "look at machine", Err: refused("pid %d runs %s with sha256 %s, the tool is %s with %s", pid, path, have, t.Path, t.SHA256),
			Hint: "use the QEMU that the slot was made with, by " + Variable + ", or release the slot"}
	}
	return nil
}

// environment of every QEMU: nothing of the caller's reaches it.
var environment = []string{"LC_ALL=C"}

// Facts of the tool.
func (t Tool) Facts() []bench.Fact {
	others := "none"
	if len(t.Others) > 0 {
		others = strings.Join(t.Others, "; ")
	}
	return []bench.Fact{
		{Name: factOthers, Known: true, Value: others, Source: t.Origin, View: engine.ViewHost},
		{Name: factVersion, Known: true, Value: t.Version, Source: t.Path + " --version", View: engine.ViewHost},
		{Name: factSHA256, Known: true, Value: t.SHA256, Source: t.Path, View: engine.ViewHost},
		{Name: factOrigin, Known: true, Value: t.Origin, Source: t.Path, View: engine.ViewHost},
	}
}

// processor is the most that an accelerator gives.
func processor(accel string) string {
	if accel == "kvm" {
		return "host"
	}
	return "max"
}

// Accelerator starts a machine without a disk, as slots have it, with one accelerator, reads back which
// one runs it, "kvm" or "tcg", and has a small guest run in it to its end. Unknown, with what QEMU said,
// where it does not start or the guest does not get there.
func (t Tool) Accelerator(ctx context.Context, accel string) engine.Reading[string] {
	have, err := t.accelerator(ctx, accel)
	if err != nil {
		return engine.Unknown[string](err.Error(), engine.ViewHost)
	}
	return engine.Known(have, "query-kvm, and a guest that ran", engine.ViewHost)
}

// accelerator asks a machine that is in no ledger: it hangs on a thread that lives
// until it was waited for, and dies with us.
func (t Tool) accelerator(ctx context.Context, accel string) (have string, err error) {
	err = thread.Run(func() error {
		have, err = t.tried(ctx, accel)
		return err
	})
	return have, err
}

// probe is the guest that an accelerator is tried with, the firmware of one page:
// testdata/probe/probe.s. QEMU exits with probeExit once it has run (isa-debug-exit).
//
//go:embed probe.bin
var probe []byte

const (
	probeExit = 42<<1 | 1
	// firmware is the smallest that QEMU takes.
	firmware = 64 << 10
	// probeTime is how long the guest may take; it has a few thousand instructions.
	probeTime = 30 * time.Second
)

// newFirmware is a file with the probe where a processor begins.
func newFirmware() (*os.File, error) {
	f, err := newMemory(firmware)
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(probe, firmware-int64(len(probe))); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// tried has the guest run: that QEMU starts and says that it has an accelerator is
// true too where guests hang under it.
func (t Tool) tried(ctx context.Context, accel string) (have string, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "qmp"), os.NewFile(uintptr(pair[1]), "qmp")
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if ours.Close(); err != nil {
		return "", err
	}
	rom, err := newFirmware()
	if err != nil {
		conn.Close()
		return "", err
	}
	defer rom.Close()
	var said strings.Builder
	cmd := exec.CommandContext(ctx, t.Path, "-machine", "q35,accel="+accel, "-cpu", processor(accel), "-m", "32M",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-S", "-bios", inherited(4), "-device", "isa-debug-exit,iobase=0xf4,iosize=4",
		"-chardev", "socket,id=qmp,fd=3", "-mon", "chardev=qmp,mode=control")
	cmd.Env, cmd.Stderr, cmd.ExtraFiles = environment, &said, []*os.File{theirs, rom}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return "", err
	}
	theirs.Close()
	ended := false
	end := func() error { ended = true; return cmd.Wait() }
	defer func() {
		if !ended {
			cmd.Process.Kill()
			end()
		}
		if err != nil && said.Len() > 0 {
			err = fmt.Errorf("%w: %s", err, lastLine(said.String()))
		}
	}()
	m, err := qmp.Open(ctx, conn, qmp.Options{})
	if err != nil {
		return "", err
	}
	defer m.Disconnect()
	if have, err = accelerator(ctx, m); err != nil {
		return "", err
	}
	cerr := m.Execute(ctx, "cont", nil, nil) // QEMU may be gone before it answers
	err = end()
	switch code := cmd.ProcessState.ExitCode(); {
	case code == probeExit:
		return have, nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("%w: QEMU starts with %s, and a guest of a few instructions does not get to their end: %w", engine.ErrDeadline, have, context.Cause(ctx))
	default:
		return "", fmt.Errorf("QEMU starts with %s, and a guest of a few instructions ends it with %d, not %d: %w", have, code, probeExit, errors.Join(err, cerr))
	}
}

// accelerator reads which accelerator runs a machine. "present" says only that
// QEMU was built with KVM.
func accelerator(ctx context.Context, m *qmp.Monitor) (string, error) {
	var kvm struct{ Enabled, Present bool }
	if err := m.Execute(ctx, "query-kvm", nil, &kvm); err != nil {
		return "", err
	}
	if kvm.Enabled {
		return "kvm", nil
	}
	return "tcg", nil
}

// Usable requires that the accelerator that was asked for is the one that runs; ErrRefused otherwise, with what to do.
func (a *Arm) Usable() error {
	have, known := a.accel.Get()
	if known && have == a.settings.Accel {
		return nil
	}
	err := fmt.Errorf("%w: accelerator %s was asked for, and QEMU runs with %s", engine.ErrRefused, a.settings.Accel, have)
	if !known {
		err = fmt.Errorf("%w: accelerator %s does not work here: %s", engine.ErrRefused, a.settings.Accel, a.accel.Reason())
	}
	return &engine.Error{Op: "start machine", Err: err,
		Hint: `use a host whose /dev/kvm works, or accel: "tcg", which is emulated and compares with no other arm`}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// image finds qemu-img: the one beside QEMU, else that in PATH.
func (t Tool) image() (string, error) {
	const name = "qemu-img"
	if path, err := exec.LookPath(filepath.Join(filepath.Dir(t.Path), name)); err == nil {
		return path, nil
	}
	return exec.LookPath(name)
}

// qemuImg runs qemu-img with some files, which are descriptors 3 and up in it.
func (a *Arm) qemuImg(ctx context.Context, files []*os.File, args ...string) ([]byte, error) {
	path, err := a.tool.image()
	if err != nil {
		return nil, &engine.Error{Op: "find qemu-img", Err: fmt.Errorf("%w: %w", engine.ErrRefused, err), Hint: "install the package qemu-utils; scripts/setup does"}
	}
	var said strings.Builder
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Stderr, cmd.ExtraFiles = environment, &said, files
	inGroup(a.tools)(cmd)
	out, err := cmd.Output()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else if said.Len() > 0 {
			err = errors.New(lastLine(said.String()))
		}
		return nil, &engine.Error{Op: "run qemu-img " + args[0], Err: err}
	}
	return out, nil
}

package initrd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/initrd"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const serverPort = 5000

func stateDir() string {
	if s := os.Getenv("DRUMSBENCH_STATE"); s != "" {
		return s
	}
	return "/var/lib/drumsbench"
}

// bootable is the tiny image of scripts/prepare with its kernel and ramdisk taken out.
type bootable struct {
	image, kernel string
	ramdisk       []byte
}

func tool(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s\nscripts/setup installs the tools", name, err, out)
	}
}

func tiny(t *testing.T) bootable {
	t.Helper()
	dir := t.TempDir()
	b := bootable{image: filepath.Join(stateDir(), "images", "tiny.qcow2"), kernel: filepath.Join(dir, "vmlinuz")}
	raw := filepath.Join(dir, "disk.raw")
	tool(t, "qemu-img", "convert", "-O", "raw", b.image, raw)
	ramdisk := filepath.Join(dir, "initramfs")
	tool(t, "debugfs", "-R", "dump "+initrd.Kernel+" "+b.kernel, raw)
	tool(t, "debugfs", "-R", "dump "+initrd.Initramfs+" "+ramdisk, raw)
	var err error
	if b.ramdisk, err = os.ReadFile(ramdisk); err != nil || len(b.ramdisk) == 0 {
		t.Fatalf("the image has no %s (%v)\nscripts/prepare builds it; scripts/test calls it", initrd.Initramfs, err)
	}
	if err := os.Remove(raw); err != nil {
		t.Fatal(err)
	}
	return b
}

// vm is a machine that a test has started.
type vm struct {
	t       *testing.T
	client  *guest.Client
	console string
	ended   chan error
	port    int
}

type hardware struct {
	noCard bool
	// disk replaces the image.
	disk string
}

// boot starts a machine; it is ended with the test.
func (b bootable) boot(t *testing.T, ramdisk []byte, h hardware) *vm {
	t.Helper()
	dir := t.TempDir()
	v := &vm{t: t, console: filepath.Join(dir, "console"), ended: make(chan error, 1), port: freePort(t)}
	initial := filepath.Join(dir, "initrd")
	if err := os.WriteFile(initial, ramdisk, 0o600); err != nil {
		t.Fatal(err)
	}
	disk := h.disk
	if disk == "" {
		disk = filepath.Join(dir, "disk.qcow2")
		tool(t, "qemu-img", "create", "-q", "-f", "qcow2", "-b", b.image, "-F", "qcow2", disk)
	}
	args := []string{
		"-M", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "512", "-display", "none", "-nodefaults", "-no-user-config", "-no-reboot",
		"-kernel", b.kernel, "-initrd", initial, "-append", initrd.CommandLine, "-serial", "file:" + v.console,
		"-blockdev", "driver=file,node-name=f0,filename=" + disk, "-blockdev", "driver=qcow2,node-name=d0,file=f0", "-device", "virtio-blk-pci,drive=d0",
	}
	if !h.noCard {
		args = append(args, "-netdev", fmt.Sprintf("user,id=n0,restrict=on,hostfwd=tcp:127.0.0.1:%d-10.0.2.15:%d", v.port, serverPort), "-device", "virtio-net-pci,netdev=n0,romfile=")
	}
	cmd := exec.Command("qemu-system-x86_64", args...)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v\nscripts/setup installs it", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := cmd.Wait()
		if said.Len() > 0 {
			err = errors.Join(err, errors.New(said.String()))
		}
		v.ended <- err
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-done
		if t.Failed() {
			t.Logf("console:\n%s", v.said())
		}
	})
	v.client = guest.New(func(ctx context.Context, port int) (net.Conn, error) {
		if port != serverPort {
			return nil, fmt.Errorf("port %d is not forwarded", port)
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(v.port)))
	}, serverPort, guest.Limits{})
	return v
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (v *vm) said() string {
	text, err := os.ReadFile(v.console)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// wait waits until QEMU has ended.
func (v *vm) wait(limit time.Duration) error {
	v.t.Helper()
	select {
	case err := <-v.ended:
		return err
	case <-time.After(limit):
		v.t.Fatalf("the machine has not ended after %s", limit)
		return nil
	}
}

// ready waits until the services run.
func (v *vm) ready(limit time.Duration) guest.Probe {
	v.t.Helper()
	var err error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var p guest.Probe
		ctx, cancel := context.WithTimeout(v.t.Context(), 3*time.Second)
		p, err = v.client.Probe(ctx)
		cancel()
		if err == nil && p.Phase == guest.PhaseRunning {
			return p
		}
		select {
		case ended := <-v.ended:
			v.t.Fatalf("the machine has ended: %v", ended)
		default:
		}
	}
	v.t.Fatalf("not ready after %s: %v", limit, err)
	return guest.Probe{}
}

func (v *vm) sh(script string) guest.Result {
	v.t.Helper()
	r, err := v.client.Execute(v.t.Context(), []string{"/bin/sh", "-c", script}, time.Minute)
	if err != nil {
		v.t.Fatal(err)
	}
	return r
}

func (v *vm) observe(exclude []string, aspects ...string) guest.Observation {
	v.t.Helper()
	o, err := v.client.Observe(v.t.Context(), aspects, exclude)
	if err != nil {
		v.t.Fatal(err)
	}
	if len(o.Unknown) > 0 {
		v.t.Fatalf("unknown: %v", o.Unknown)
	}
	return o
}

// lockHolder holds one lock on a mapped file and a flock, and counts in a file while it runs.
const lockHolder = `
import fcntl, mmap, struct, time
a = open("/root/mapped", "w+b"); a.truncate(4096); m = mmap.mmap(a.fileno(), 4096)
fcntl.fcntl(a, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 128, 8, 0))
b = open("/root/flocked", "w"); fcntl.flock(b, fcntl.LOCK_SH)
open("/run/locks.ready", "w").close()
n = 0
while True:
    n += 1; time.sleep(0.01)
    with open("/dev/shm/n", "w") as f: f.write(str(n))
`

func config() initrd.Config {
	return initrd.Config{
		Guest: bench.Guest{
			User: "root", Home: "/root",
			Services: []bench.Service{{Name: "locks", Exec: []string{"/usr/bin/python3", "-c", lockHolder}, Ready: "/run/locks.ready"}},
			Server:   bench.Server{Port: serverPort, Exec: []string{"/usr/local/bin/guestd", "init"}},
		},
		Hostname: "drums-vm", Addresses: []string{initrd.Address}, Forward: []int{serverPort}, Pids: 40,
	}
}

// One machine, for real: what the guest sees is what a slot of the drums arm
// sees, its limits hold, and what the server offers a machine works.
func TestBoot(t *testing.T) {
	b := tiny(t)
	ramdisk, err := initrd.Append(b.ramdisk, config())
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	v := b.boot(t, ramdisk, hardware{})
	p := v.ready(90 * time.Second)
	t.Logf("services run after %.1f s", time.Since(begin).Seconds())
	if p.Hostname != "drums-vm" || p.Pid != 1 || len(p.Services) != 1 || !p.Services[0].Ready {
		t.Errorf("%+v", p)
	}

	t.Run("view", v.testView)
	t.Run("locks", v.testLocks)
	t.Run("limits", v.testLimits)
	t.Run("state", v.testState)
	t.Run("freeze", v.testFreeze)
	t.Run("clock", v.testClock)
	t.Run("relay", v.testRelay)

	if text := v.said(); strings.Contains(text, initrd.FailurePrefix) || strings.Contains(text, "panic") {
		t.Errorf("console:\n%s", text)
	}
	v.client.Execute(t.Context(), []string{"/bin/sh", "-c", "kill -TERM 1"}, time.Second)
	if err := v.wait(time.Minute); err != nil {
		t.Errorf("QEMU ended with %v", err)
	}
}

func (v *vm) testView(t *testing.T) {
	o := v.observe(nil, proto.AspectMounts, proto.AspectNetwork, proto.AspectProcesses)
	var mounts []string
	for _, m := range *o.Mounts {
		mounts = append(mounts, m.Point+" "+m.Fstype+" "+strings.Join(m.Options, ","))
	}
	// As arms/drums mounts them, but for the root.
	if diff := cmp.Diff([]string{
		"/ ext4 rw,relatime", "/dev tmpfs rw,nosuid,noexec,relatime", "/dev/pts devpts rw,nosuid,noexec,relatime",
		"/dev/shm tmpfs rw,nosuid,nodev,noexec,relatime", "/proc proc rw,nosuid,nodev,noexec,relatime", "/sys sysfs ro,nosuid,nodev,noexec,relatime",
	}, mounts); diff != "" {
		t.Error(diff)
	}
	var links []string
	for _, l := range o.Network.Links {
		links = append(links, fmt.Sprint(l.Name, " ", l.Up))
	}
	if diff := cmp.Diff([]string{"eth0 true", "lo true"}, links); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"eth0 10.0.2.15/24 brd 10.0.2.255 scope global", "lo 127.0.0.1/8 scope host", "lo ::1/128 scope host"}, o.Network.Addresses); diff != "" {
		t.Error(diff)
	}
	if slices.ContainsFunc(o.Network.Routes, func(r string) bool { return strings.Contains(r, "default") }) {
		t.Errorf("there is a default route: %q", o.Network.Routes)
	}
	var processes []string
	for _, p := range *o.Processes {
		processes = append(processes, p.Argv[0])
		if p.Session != p.Pid || p.Group != p.Pid || (p.Pid == 1) != (p.Parent == 0) {
			t.Errorf("%+v", p)
		}
	}
	if diff := cmp.Diff([]string{"/usr/local/bin/guestd", "/usr/bin/python3"}, processes); diff != "" {
		t.Error(diff)
	}
}

func (v *vm) testLocks(t *testing.T) {
	o := v.observe(nil, proto.AspectLocks, proto.AspectProcesses)
	pid := (*o.Processes)[1].Pid
	want := []bench.Lock{
		{Path: "/root/flocked", Pid: pid, Type: "FLOCK", Mode: "READ", Start: "0", End: "-1"},
		{Path: "/root/mapped", Pid: pid, Type: "POSIX", Mode: "WRITE", Start: "128", End: "135", Mapped: true},
	}
	if diff := cmp.Diff(want, *o.Locks); diff != "" {
		t.Error(diff)
	}
}

func (v *vm) testLimits(t *testing.T) {
	l := v.observe(nil, proto.AspectLimits).Limits
	memory, _ := strconv.ParseInt(string(l.Memory), 10, 64)
	if l.CPUs != 2 || l.Pids != 40 || l.Swap != "0" || memory < 400<<20 || memory > 512<<20 || l.Tasks < 2 || l.Tasks > 40 {
		t.Errorf("%+v", *l)
	}
	r := v.sh("i=0; while [ $i -lt 60 ]; do sleep 10 & i=$((i+1)); done; echo all started")
	if strings.Contains(string(r.Stdout), "all started") || r.Exit == 0 {
		t.Errorf("sixty processes were started: %d, %s%s", r.Exit, r.Stdout, r.Stderr)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		var left []int64
		for _, p := range *v.observe(nil, proto.AspectProcesses).Processes {
			if len(p.Argv) > 0 && p.Argv[0] == "sleep" {
				left = append(left, p.Pid)
			}
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("they do not end: %v", left)
		}
	}
}

func (v *vm) testState(t *testing.T) {
	exclude := []string{"/dev", "/run", "/root/mapped", "/root/flocked"}
	state := func() []string {
		var out []string
		for _, e := range v.observe(exclude, proto.AspectState).State.Entries {
			out = append(out, e.Type+" "+e.Path)
		}
		return out
	}
	if s := state(); len(s) > 0 {
		t.Errorf("nothing was done, and there is %q", s)
	}
	if err := v.client.WriteFile(t.Context(), "/root/canary", []byte("chirp"), 0); err != nil {
		t.Fatal(err)
	}
	r := v.sh("rm /etc/debian_version && mv /etc/group /etc/grouped && cp /etc/passwd /tmp/p && cat /tmp/p > /etc/passwd && rm /tmp/p && rm -r /usr/lib/os-release && chmod 700 /opt")
	if r.Exit != 0 {
		t.Fatalf("%+v", r)
	}
	want := []string{"whiteout /etc/debian_version", "whiteout /etc/group", "file /etc/grouped", "directory /opt", "file /root/canary", "whiteout /usr/lib/os-release"}
	if diff := cmp.Diff(want, state()); diff != "" {
		t.Error(diff)
	}
	v.sh("chmod 755 /opt && rm /root/canary /etc/grouped")
	if s := state(); len(s) != 3 {
		t.Errorf("some of it undone, and there is %q", s)
	}
}

func (v *vm) testFreeze(t *testing.T) {
	count := func() string {
		t.Helper()
		text, err := v.client.ReadFile(t.Context(), "/dev/shm/n", 100)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for range 2 { // freezing what is frozen is no error
		if err := v.client.Freeze(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}
	before := count()
	first := v.observe(nil, proto.AspectState, proto.AspectLocks, proto.AspectProcesses)
	second := v.observe(nil, proto.AspectState, proto.AspectLocks, proto.AspectProcesses)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("a frozen guest changed: %s", diff)
	}
	if after := count(); after != before {
		t.Errorf("a frozen guest counted from %s to %s", before, after)
	}
	if err := v.client.Thaw(t.Context()); err != nil { // the kernel takes entropy
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); count() == before; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the guest does not go on")
		}
	}
}

func (v *vm) testClock(t *testing.T) {
	past := time.Now().Add(-time.Hour)
	c, err := v.client.SetClock(t.Context(), past)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Set.Equal(past) || c.Skew > -59*time.Minute {
		t.Errorf("%+v", c)
	}
	if c, err = v.client.SetClock(t.Context(), time.Time{}); err != nil {
		t.Fatal(err)
	}
	if c.Skew < 59*time.Minute || c.Skew > 61*time.Minute {
		t.Errorf("%+v", c)
	}
	p, err := v.client.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	now, _ := strconv.ParseInt(string(p.Clock), 10, 64)
	if off := time.Since(time.Unix(0, now)); off.Abs() > 15*time.Second {
		t.Errorf("the guest's clock is off by %s", off)
	}
}

// Nothing is left of a connection in the guest once the client has seen its end.
func (v *vm) testRelay(t *testing.T) {
	for range 20 {
		if _, err := v.client.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// A client that goes away in the middle ends what it started.
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := v.client.Execute(ctx, []string{"/bin/sleep", "77"}, time.Minute); err == nil {
		t.Error("it ended early")
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		o := v.observe(nil, proto.AspectProcesses)
		if len(*o.Processes) == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the program lives on: %+v", *o.Processes)
		}
	}
	// In the table are this very connection, from the relay's two ends to the server's, and the listeners.
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		table := string(v.sh("tail -qn +2 /proc/net/tcp").Stdout)
		var left []string
		for line := range strings.Lines(table) {
			if f := strings.Fields(line); len(f) > 3 && f[3] != "0A" {
				left = append(left, strings.Join(f[1:4], " "))
			}
		}
		if len(left) <= 3 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("sockets: %q", left)
		}
	}
}

// A boot that cannot go on says why on the console, and ends QEMU.
func TestBootFails(t *testing.T) {
	b := tiny(t)
	empty := filepath.Join(t.TempDir(), "empty.qcow2")
	tool(t, "qemu-img", "create", "-q", "-f", "qcow2", empty, "64M")
	whole, err := initrd.Append(b.ramdisk, config())
	if err != nil {
		t.Fatal(err)
	}
	other := config()
	other.Guest.Server.Exec = []string{"/usr/local/bin/none"}
	none, err := initrd.Append(b.ramdisk, other)
	if err != nil {
		t.Fatal(err)
	}
	other.Guest = config().Guest
	other.Guest.User = "nobody-of-that-name"
	user, err := initrd.Append(b.ramdisk, other)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		ramdisk  []byte
		hardware hardware
		says     string
	}{
		{"no configuration", b.ramdisk, hardware{}, "was it appended to the initial ramdisk?"},
		{"another disk", whole, hardware{disk: empty}, "mount /dev/vda as ext4"},
		{"no card", whole, hardware{noCard: true}, "has the machine a network card?"},
		{"no server", none, hardware{}, "start /usr/local/bin/none of the image"},
		{"no user", user, hardware{}, "nobody-of-that-name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := b.boot(t, c.ramdisk, c.hardware)
			if err := v.wait(60 * time.Second); err != nil {
				t.Errorf("QEMU ended with %v", err)
			}
			if said := v.said(); !strings.Contains(said, initrd.FailurePrefix) || !strings.Contains(said, c.says) {
				t.Errorf("the console does not say %q", c.says)
			}
		})
	}
}

// Before the guest listens, QEMU takes a connection and lets it go: nobody answered.
func TestBootEarly(t *testing.T) {
	b := tiny(t)
	ramdisk, err := initrd.Append(b.ramdisk, config())
	if err != nil {
		t.Fatal(err)
	}
	v := b.boot(t, ramdisk, hardware{})
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := v.client.Probe(ctx)
		cancel()
		if errors.Is(err, engine.ErrDead) || errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err == nil || errors.Is(err, io.EOF) || time.Now().After(end) {
			t.Fatalf("probe said %v", err)
		}
	}
}

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// machine is the virtual machine that this guestd is the first process of. A
// nil machine is a slot on somebody else's kernel: whatever would change that
// kernel is refused.
type machine struct {
	config proto.Machine
	// limits is the control group with the limits, where guestd is; tree is the one
	// below it that everything else is born into. Both are folders of a hierarchy
	// that is mounted nowhere.
	limits, tree *os.File
}

// Names of the two control groups.
const (
	limitsGroup = "slot"
	treeGroup   = "tree"
)

// newMachine returns the machine that the ramdisk's guestd told of; nil for none.
func newMachine() (*machine, error) {
	text, ok := os.LookupEnv(proto.MachineVariable)
	if !ok {
		return nil, nil
	}
	if err := os.Unsetenv(proto.MachineVariable); err != nil {
		return nil, err
	}
	config, err := parseMachine([]byte(text))
	if err != nil {
		return nil, err
	}
	m := &machine{config: config}
	if err := m.makeGroups(); err != nil {
		return nil, fmt.Errorf("set the machine's limits: %w", err)
	}
	return m, nil
}

func (m *machine) makeGroups() error {
	root, err := mountApart("cgroup2")
	if err != nil {
		return err
	}
	defer root.Close()
	if err := writeIn(root, "cgroup.subtree_control", "+pids"); err != nil {
		return err
	}
	if m.limits, err = makeGroup(root, limitsGroup); err != nil {
		return err
	}
	if m.tree, err = makeGroup(m.limits, treeGroup); err != nil {
		return err
	}
	want := "max"
	if m.config.Pids > 0 {
		want = strconv.FormatInt(m.config.Pids, 10)
	}
	if err := writeIn(m.limits, "pids.max", want); err != nil {
		return err
	}
	if err := writeIn(m.limits, "cgroup.procs", "1"); err != nil {
		return err
	}
	have, err := readIn(m.limits, "pids.max")
	if err != nil || have != want {
		return fmt.Errorf("pids.max is %q, wanted %q (%v)", have, want, err)
	}
	inside, err := readIn(m.limits, "cgroup.procs")
	if err != nil || inside != "1" {
		return fmt.Errorf("the limits hold %q, wanted process 1 alone (%v)", inside, err)
	}
	return nil
}

// mountApart mounts a file system without a place: only the descriptor leads to it.
func mountApart(fstype string) (*os.File, error) {
	context, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", fstype, err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return nil, fmt.Errorf("make %s: %w", fstype, err)
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", fstype, err)
	}
	return os.NewFile(uintptr(fd), fstype), nil
}

func makeGroup(parent *os.File, name string) (*os.File, error) {
	if err := unix.Mkdirat(int(parent.Fd()), name, 0o755); err != nil {
		return nil, fmt.Errorf("make control group %s: %w", name, err)
	}
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open control group %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func writeIn(dir *os.File, name, text string) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte(text))
		unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("write %q to %s: %w", text, name, err)
	}
	return nil
}

func readIn(dir *os.File, name string) (string, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	text, err := io.ReadAll(f)
	return strings.TrimSpace(string(text)), err
}

// forward makes the ports of loopback that the configuration names reachable at
// the first address.
func (m *machine) forward() error {
	for _, port := range m.config.Forward {
		address, err := netip.ParsePrefix(m.config.Addresses[0])
		if err != nil {
			return fmt.Errorf("forward port %d: %w", port, err)
		}
		l, err := listenAt(address.Addr().String(), port)
		if err != nil {
			return fmt.Errorf("forward port %d: %w", port, err)
		}
		go relay(l, port)
	}
	return nil
}

// relay hands each connection on to the same port of loopback.
func relay(l net.Listener, port int) {
	for {
		outer, err := l.Accept()
		if err != nil {
			// Out of descriptors or the like: those that wait are taken later.
			time.Sleep(readyPeriod)
			continue
		}
		go relayOne(outer.(*net.TCPConn), port)
	}
}

func relayOne(outer *net.TCPConn, port int) {
	defer outer.Close()
	var d net.Dialer
	d.SetMultipathTCP(false)
	c, err := d.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		outer.SetLinger(0) // refused, as far as a relay can say so
		return
	}
	inner := c.(*net.TCPConn)
	// What the server's kernel keeps of a connection goes with the reset, as it does on the other arms.
	inner.SetLinger(0)
	defer inner.Close()
	go func() {
		// A client that says no more is gone, or as good as gone: QEMU makes an end of
		// stream of its reset. The server must see that, and nothing may stay of it.
		io.Copy(inner, outer)
		inner.Close()
	}()
	if _, err := io.Copy(outer, inner); err != nil {
		outer.SetLinger(0)
	}
}

// errNoMachine answers what only the first process of a machine may do.
var errNoMachine = errors.New("the kernel here is not this guest's own")

func (s *server) clock(w http.ResponseWriter, r *http.Request) {
	var q proto.ClockRequest
	if err := decode(w, r, &q); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if s.machine == nil {
		refuse(w, http.StatusConflict, errNoMachine.Error())
		return
	}
	a, err := setClock(r.Context(), q)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "set clock: "+err.Error())
		return
	}
	answer(w, http.StatusOK, a)
}

// clockTolerance is how far the clock may be from what it was just set to.
const clockTolerance = 200 * time.Millisecond

func setClock(ctx context.Context, q proto.ClockRequest) (proto.ClockResponse, error) {
	a := proto.ClockResponse{Source: "request"}
	var set int64
	var err error
	if q.Time != "" {
		set, err = strconv.ParseInt(string(q.Time), 10, 64)
	} else {
		a.Source = "rtc"
		set, err = readRTC(ctx)
	}
	if err == nil && set <= 0 {
		err = fmt.Errorf("%d is no time after the epoch", set)
	}
	if err != nil {
		return a, err
	}
	begin, err := monotonic()
	if err != nil {
		return a, err
	}
	before := time.Now().UnixNano()
	ts := unix.NsecToTimespec(set)
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return a, err
	}
	after := time.Now().UnixNano()
	end, err := monotonic()
	if err != nil {
		return a, err
	}
	if wrong := time.Duration(after - set - (end - begin)); wrong.Abs() > clockTolerance {
		return a, fmt.Errorf("it was set to %d and reads %d after %s", set, after, time.Duration(end-begin))
	}
	a.Before, a.Set, a.After, a.Skew = number(before), number(set), number(after), number(set-before)
	return a, nil
}

// readRTC reads the hardware clock, which knows seconds only, when its second changes.
func readRTC(ctx context.Context) (int64, error) {
	const limit = 3 * time.Second
	read := func() (int64, error) {
		text, err := os.ReadFile("/sys/class/rtc/rtc0/since_epoch")
		if err != nil {
			return 0, fmt.Errorf("read RTC: %w", err)
		}
		return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	}
	first, err := read()
	if err != nil {
		return 0, err
	}
	begin, err := monotonic()
	if err != nil {
		return 0, err
	}
	for {
		now, err := read()
		if err != nil {
			return 0, err
		}
		if now != first {
			return now * int64(time.Second), nil
		}
		at, err := monotonic()
		if err != nil {
			return 0, err
		}
		if at-begin > int64(limit) {
			return 0, fmt.Errorf("the RTC stands still at %d", now)
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		time.Sleep(time.Millisecond)
	}
}

func (s *server) freeze(w http.ResponseWriter, r *http.Request) {
	var q proto.FreezeRequest
	if err := decode(w, r, &q); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if s.machine == nil {
		refuse(w, http.StatusConflict, errNoMachine.Error())
		return
	}
	if q.Entropy != nil && (q.Frozen || len(q.Entropy) != proto.EntropySize) {
		refuse(w, http.StatusBadRequest, fmt.Sprintf("%d bytes of entropy: a thaw takes %d", len(q.Entropy), proto.EntropySize))
		return
	}
	if q.Entropy != nil {
		if err := reseedKernel(q.Entropy); err != nil {
			refuse(w, http.StatusInternalServerError, "make the kernel's random numbers anew: "+err.Error())
			return
		}
	}
	if err := s.machine.freeze(q.Frozen); err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	answer(w, http.StatusOK, proto.FreezeResponse{Frozen: q.Frozen, Reseeded: q.Entropy != nil})
}

// reseedKernel gives the kernel's generator of random numbers entropy, and has it draw its
// key anew at once: left alone it would do so a minute later (random(4), drivers/char/random.c).
func reseedKernel(entropy []byte) error {
	f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	// struct rand_pool_info: the bits that it counts for, its size, and itself.
	pool := binary.NativeEndian.AppendUint32(nil, uint32(8*len(entropy)))
	pool = append(binary.NativeEndian.AppendUint32(pool, uint32(len(entropy))), entropy...)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&pool[0]))); e != 0 {
		return os.NewSyscallError("ioctl RNDADDENTROPY", e)
	}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDRESEEDCRNG, 0); e != 0 {
		return os.NewSyscallError("ioctl RNDRESEEDCRNG", e)
	}
	return nil
}

// freezeTime is how long the tree may take to stop.
const freezeTime = 10 * time.Second

// freeze stops the tree or lets it go on, and returns nil once the kernel says so.
func (m *machine) freeze(frozen bool) error {
	bit := "0"
	if frozen {
		bit = "1"
	}
	if err := writeIn(m.tree, "cgroup.freeze", bit); err != nil {
		return err
	}
	for end := time.Now().Add(freezeTime); ; time.Sleep(time.Millisecond) {
		events, err := readIn(m.tree, "cgroup.events")
		if err != nil {
			return err
		}
		populated := strings.Contains(events, "populated 1")
		// An empty group is frozen at once, and says so.
		if strings.Contains(events, "frozen "+bit) || frozen && !populated {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the tree is not as was asked for after %s: %s", freezeTime, strings.ReplaceAll(events, "\n", ", "))
		}
	}
}

// readLimits reads the machine's limits from its own kernel.
func (m *machine) readLimits() (*proto.Limits, error) {
	if m == nil {
		return nil, errNoMachine
	}
	l := &proto.Limits{}
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	for key, to := range map[string]*bench.Int64{"MemTotal": &l.Memory, "SwapTotal": &l.Swap} {
		_, rest, _ := strings.Cut("\n"+string(text), "\n"+key+":")
		line, _, _ := strings.Cut(rest, "\n")
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(line, "kB")), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s of /proc/meminfo is %q", key, line)
		}
		*to = number(kib << 10)
	}
	cpus, err := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, cpu := range cpus {
		// The first one has no file where it cannot be switched off.
		if text, err := os.ReadFile(cpu + "/online"); errors.Is(err, os.ErrNotExist) || err == nil && strings.TrimSpace(string(text)) == "1" {
			l.CPUs++
		}
	}
	most, err := readIn(m.limits, "pids.max")
	if err != nil {
		return nil, err
	}
	if most != "max" {
		if l.Pids, err = strconv.ParseInt(most, 10, 64); err != nil {
			return nil, err
		}
	}
	tasks, err := readIn(m.limits, "pids.current")
	if err != nil {
		return nil, err
	}
	if l.Tasks, err = strconv.ParseInt(tasks, 10, 64); err != nil {
		return nil, err
	}
	return l, nil
}

package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const (
	// sleeper is the program that a holder is: it maps little, opens nothing and never wakes.
	sleeper = "/bin/sleep"
	// undoTime bounds what is done after a start that failed.
	undoTime = 10 * time.Second
)

// Holder is a process that does nothing but keep a network namespace alive. It
// exists because runc tells CRIU that a container's own network namespace is
// empty, so that it comes back without addresses and with lo down; a namespace
// that is named by path is left alone, if somebody keeps it meanwhile.
//
// Always holds: the holder is in the ledger before it is born; it is only ever
// meant by its pid, its start time and its namespace's device and inode
// together; it outlives the process that made it, and is ended by Release or by
// a sweep. Safe for concurrent use.
type Holder struct {
	ledger   engine.Ledger
	owned    int64
	identity bench.Identity
	ns       procfs.Namespace

	mu     sync.Mutex
	reaped chan struct{} // closed once we waited for it; nil if it is not our child
	gone   bool
}

// StartHolder starts a holder with a new network namespace in which lo is up,
// which is read back before anything is born there. The holder is born in the v2
// cgroup of cgroupFD, whose path the ledger gets, so that a sweep finds it
// whenever the engine dies. It inherits no descriptor and no variable. ctx is
// heeded before the start only; the holder does not end with it.
func StartHolder(ctx context.Context, ledger engine.Ledger, cgroupFD int, cgroupPath string) (*Holder, error) {
	const op = "start network namespace holder"
	if ctx.Err() != nil {
		return nil, &engine.Error{Op: op, Err: context.Cause(ctx)}
	}
	owned, err := ledger.Intend("process", bench.Claim{Cgroup: cgroupPath, Note: "network namespace holder"})
	if err != nil {
		return nil, err
	}
	h := &Holder{ledger: ledger, owned: owned}
	if err := h.start(cgroupFD); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		return nil, errors.Join(&engine.Error{Op: op, Err: err}, h.Release(undo))
	}
	return h, nil
}

// start makes namespace and process. What it leaves after an error is Release's to end.
func (h *Holder) start(cgroupFD int) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	// Descriptors that we inherited ourselves; Go's own are never passed on.
	if err := unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close inherited descriptors: %w", err)
	}
	cmd := &exec.Cmd{
		Path: sleeper, Args: []string{"sleep", "infinity"}, Dir: "/", Env: []string{},
		Stdin: null, Stdout: null, Stderr: null,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: cgroupFD},
	}
	err = thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare network namespace: %w", err)
		}
		if err := loopbackUp(); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
			return fmt.Errorf("read own network namespace: %w", err)
		}
		h.ns = procfs.Namespace{Dev: uint64(st.Dev), Ino: st.Ino}
		return cmd.Start() // a child of this very thread, and so in its namespace
	})
	if err != nil {
		return err
	}
	// Until somebody waits for it the pid stays its own.
	id, err := procfs.Identity(cmd.Process.Pid)
	id.Dev, id.Ino = bench.Int64(strconv.FormatUint(h.ns.Dev, 10)), bench.Int64(strconv.FormatUint(h.ns.Ino, 10))
	h.identity = id
	h.reaped = make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended does not matter, that it did does
		close(h.reaped)
	}()
	if err != nil {
		kerr := cmd.Process.Kill() // a pidfd of Go's own, so it is ours
		<-h.reaped
		h.identity = bench.Identity{}
		return errors.Join(err, kerr)
	}
	if err := h.Verify(); err != nil {
		return err
	}
	return h.ledger.Bind(h.owned, h.identity)
}

// loopbackUp brings lo up in the calling thread's namespace and reads that back.
func loopbackUp() error {
	n, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a route socket: %w", err)
	}
	defer n.Close()
	lo, err := n.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := n.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	if lo, err = n.LinkByName("lo"); err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if lo.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("%w: lo is down after it was brought up", engine.ErrUnknown)
	}
	addrs, err := n.AddrList(lo, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("read addresses of lo: %w", err)
	}
	for _, a := range addrs {
		if a.IP.Equal(net.IPv4(127, 0, 0, 1)) {
			return nil
		}
	}
	return fmt.Errorf("%w: lo has no 127.0.0.1 after it was brought up", engine.ErrUnknown)
}

// AdoptHolder takes over a holder that another process started: owned is its
// number in the ledger, id the identity that the ledger bound. ErrRefused if it
// is not the same process with the same namespace any more.
func AdoptHolder(ledger engine.Ledger, owned int64, id bench.Identity) (*Holder, error) {
	const op = "adopt network namespace holder"
	dev, derr := strconv.ParseUint(string(id.Dev), 10, 64)
	ino, ierr := strconv.ParseUint(string(id.Ino), 10, 64)
	if err := errors.Join(derr, ierr); err != nil || id.Pid <= 0 || id.StartTicks == "" {
		return nil, &engine.Error{Op: op, Err: errors.Join(fmt.Errorf("%w: %+v does not identify a holder", engine.ErrRefused, id), err)}
	}
	h := &Holder{ledger: ledger, owned: owned, identity: id, ns: procfs.Namespace{Dev: dev, Ino: ino}}
	if err := h.Verify(); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	return h, nil
}

// Owned is the holder's number in the ledger, for AdoptHolder.
func (h *Holder) Owned() int64 { return h.owned }

// Identity is pid, start ticks, and device and inode of the namespace, as the ledger has them.
func (h *Holder) Identity() bench.Identity { return h.identity }

// Pid of the holder on the host.
func (h *Holder) Pid() int { return int(h.identity.Pid) }

// Path names the namespace for a configuration. It means the holder's only as
// long as Verify holds: verify before each use.
func (h *Holder) Path() string { return fmt.Sprintf("/proc/%d/ns/net", h.identity.Pid) }

// Verify requires that the holder lives, that its pid is the very process that
// was bound, and that it still is in the namespace that was bound. Otherwise
// ErrRefused with a hint. A holder that cannot be looked at is ErrUnknown.
func (h *Holder) Verify() error {
	ns, err := h.Open()
	if err != nil {
		return err
	}
	return ns.Close()
}

// Open opens the namespace of exactly this holder. Errors as Verify.
func (h *Holder) Open() (*Handle, error) {
	const (
		op   = "verify network namespace holder"
		hint = "its namespace is lost, and a checkpoint that needs it cannot be restored: release the slot and provision a new one"
	)
	refuse := func(format string, args ...any) error {
		return &engine.Error{Op: op, Err: fmt.Errorf("%w: "+format, append([]any{engine.ErrRefused}, args...)...), Hint: hint}
	}
	alive, err := procfs.Alive(h.identity)
	if err == nil && !alive {
		return nil, refuse("pid %d with start time %s is gone", h.identity.Pid, h.identity.StartTicks)
	}
	var f *os.File
	if err == nil {
		f, err = procfs.OpenNamespace(h.identity, "net")
	}
	if errors.Is(err, engine.ErrDead) {
		return nil, refuse("%w", err)
	}
	if err != nil {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
	}
	if now := (procfs.Namespace{Dev: uint64(st.Dev), Ino: st.Ino}); now != h.ns {
		f.Close()
		return nil, refuse("pid %d is in network namespace %d:%d, and was bound in %d:%d", h.identity.Pid, now.Dev, now.Ino, h.ns.Dev, h.ns.Ino)
	}
	return &Handle{f}, nil
}

// Life is how long ago the holder was born, to the ten milliseconds of a tick of the
// kernel's.
func (h *Holder) Life() (time.Duration, error) {
	var now unix.Timespec
	ticks, err := strconv.ParseInt(string(h.Identity().StartTicks), 10, 64)
	if err == nil {
		err = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)
	}
	if err != nil {
		return 0, &engine.Error{Op: "measure network namespace holder", Err: fmt.Errorf("%w: its age: %w", engine.ErrUnknown, err)}
	}
	const hertz = 100 // USER_HZ, proc_pid_stat(5)
	return max(time.Duration(now.Nano())-time.Duration(ticks)*(time.Second/hertz), 1), nil
}

// Memory is what the holder costs: its private dirty memory in bytes now, and
// the CPU time that it has used since it was born; what it uses while it idles
// is the difference of two readings. One that was born a moment ago is still
// loading, and smaller than it will be.
func (h *Holder) Memory() (privateDirty int64, idleCPU time.Duration, err error) {
	const op = "measure network namespace holder"
	if err := h.Verify(); err != nil {
		return 0, 0, err
	}
	reading := procfs.ReadMemory([]int{h.Pid()})
	memory, ok := reading.Get()
	if !ok {
		return 0, 0, &engine.Error{Op: op, Err: fmt.Errorf("%w: %s", engine.ErrUnknown, reading.Reason())}
	}
	var used unix.Timespec
	if err := unix.ClockGettime(cpuClock(h.Pid()), &used); err != nil {
		return 0, 0, &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
	}
	if err := h.Verify(); err != nil { // what was read was its own
		return 0, 0, err
	}
	return memory.PrivateDirty, time.Duration(used.Nano()), nil
}

// cpuClock is the clock that counts a process's CPU time, in nanoseconds where
// stat has ticks of ten milliseconds (clock_getcpuclockid(3); CPUCLOCK_SCHED).
func cpuClock(pid int) int32 { return int32(^uint32(pid)<<3 | 2) }

// Release ends the holder, and with it the namespace unless a container is still
// in it, proves that the process is gone and says so in the ledger. It ends
// nothing but the very process that was bound. Idempotent.
func (h *Holder) Release(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return nil
	}
	const op = "end network namespace holder"
	if h.identity.Pid > 0 { // else it was never born
		if err := procfs.Kill(ctx, h.identity); err != nil {
			return &engine.Error{Op: op, Err: err}
		}
		if h.reaped != nil { // a zombie of ours would still be seen
			select {
			case <-h.reaped:
			case <-ctx.Done():
				return &engine.Error{Op: op, Err: context.Cause(ctx)}
			}
		}
		alive, err := procfs.Alive(h.identity)
		if err == nil && alive {
			err = fmt.Errorf("%w: pid %d lives after SIGKILL", engine.ErrUnknown, h.identity.Pid)
		}
		if err != nil {
			return &engine.Error{Op: op, Err: err}
		}
	}
	if err := h.ledger.Gone(h.owned); err != nil {
		return err
	}
	h.gone = true
	return nil
}

// Package procfs is the host's view of a slot: which processes are in it, what
// they hold, and what ties them to the outside. It exists because a checkpoint
// is only as good as the knowledge that the slot is closed in itself, and
// because a pid alone never names a process.
//
// What always holds: nothing here changes a slot but Handle's Signal and Kill;
// a process is identified by its pid and start time, and a slot by the host pid
// of its pid 1, which is compared before and after each census; a process that
// ends during a census is left out, and anything else that cannot be read is an
// error, never an empty answer. The procfs of the caller's own pid namespace,
// mounted at /proc, is the only one that is read: processes above that
// namespace cannot be seen.
package procfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	prom "github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// root is where the procfs of our own pid namespace is mounted.
const root = "/proc"

// Identity reads the identity of a living or zombie process: its pid and its
// start time in clock ticks since boot. engine.ErrDead if there is none.
func Identity(pid int) (bench.Identity, error) {
	ticks, err := startTicks(pid)
	if err != nil {
		return bench.Identity{}, err
	}
	return bench.Identity{Pid: int64(pid), StartTicks: bench.Int64(strconv.FormatUint(ticks, 10))}, nil
}

func startTicks(pid int) (uint64, error) {
	st, err := stat(pid)
	return st.Starttime, err
}

func stat(pid int) (prom.ProcStat, error) {
	p, err := prom.NewFS(root)
	if err != nil {
		return prom.ProcStat{}, fmt.Errorf("read stat of pid %d: %w", pid, err)
	}
	proc, err := p.Proc(pid)
	if err != nil {
		return prom.ProcStat{}, gone(pid, err)
	}
	st, err := proc.Stat()
	if err != nil {
		return prom.ProcStat{}, gone(pid, err)
	}
	return st, nil
}

// gone turns the errors of a vanished process into engine.ErrDead.
func gone(pid int, err error) error {
	if vanished(err) {
		return fmt.Errorf("read pid %d: %w", pid, engine.ErrDead)
	}
	return fmt.Errorf("read pid %d: %w", pid, err)
}

// vanished says that a procfs read failed because the process or descriptor is no more.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// Alive says whether the process of this identity still runs. A zombie does
// not. The proof is a pidfd whose start time was compared after it was opened.
func Alive(id bench.Identity) (bool, error) {
	h, err := Open(id)
	if errors.Is(err, engine.ErrDead) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer h.Close()
	exited, err := h.Exited()
	return err == nil && !exited, err
}

// Handle holds on to one process by a pidfd: whatever happens to the pid, the
// handle never means another process.
type Handle struct {
	f *os.File
	// ID is the identity that was compared when the handle was opened.
	ID bench.Identity
}

// Open opens a handle on exactly the process of this identity; engine.ErrDead
// if it has been reaped or its pid is another process's. A zombie can be opened.
func Open(id bench.Identity) (*Handle, error) {
	fd, err := unix.PidfdOpen(int(id.Pid), unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process: %w", gone(int(id.Pid), err))
	}
	h := &Handle{f: os.NewFile(uintptr(fd), "pidfd:"+strconv.FormatInt(id.Pid, 10)), ID: id}
	now, err := Identity(int(id.Pid))
	if err == nil && now.StartTicks != id.StartTicks {
		err = fmt.Errorf("pid %d started at tick %s, wanted %s: %w", id.Pid, now.StartTicks, id.StartTicks, engine.ErrDead)
	}
	if err == nil {
		// Not reaped up to now, so the start time that was just read is this process's.
		err = h.Signal(0)
	}
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("open process: %w", err)
	}
	return h, nil
}

// Close lets go of the process. Idempotent.
func (h *Handle) Close() error {
	err := h.f.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// Signal sends a signal; engine.ErrDead if the process has been reaped.
func (h *Handle) Signal(sig unix.Signal) error {
	return h.control(func(fd int) error {
		err := unix.PidfdSendSignal(fd, sig, nil, 0)
		if err == unix.ESRCH {
			return fmt.Errorf("signal pid %d: %w", h.ID.Pid, engine.ErrDead)
		}
		return err
	})
}

// Exited says whether every thread of the process has ended, zombies included.
func (h *Handle) Exited() (exited bool, err error) {
	err = h.control(func(fd int) error {
		exited, err = readable(fd)
		return err
	})
	return exited, err
}

// Wait returns once the process has ended (it may still be a zombie), or with ctx's error.
func (h *Handle) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("wait for pid %d: %w", h.ID.Pid, err)
	}
	rc, err := h.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("wait for pid %d: %w", h.ID.Pid, err)
	}
	if err := h.f.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("wait for pid %d: %w", h.ID.Pid, err)
	}
	stop := context.AfterFunc(ctx, func() { h.f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var pollErr error
	err = rc.Read(func(fd uintptr) bool {
		var done bool
		done, pollErr = readable(int(fd))
		return done || pollErr != nil
	})
	if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		err = ctx.Err()
	}
	if err = errors.Join(err, pollErr); err != nil {
		return fmt.Errorf("wait for pid %d: %w", h.ID.Pid, err)
	}
	return nil
}

// Kill sends SIGKILL and returns once the process has ended: that of a pid
// namespace's init proves that the namespace is empty. Idempotent. A task that a
// v1 freezer holds does not end before it is thawed.
func (h *Handle) Kill(ctx context.Context) error {
	if err := h.Signal(unix.SIGKILL); err != nil && !errors.Is(err, engine.ErrDead) {
		return err
	}
	return h.Wait(ctx)
}

// Kill ends the process of this identity and proves it. A process that is gone is success.
func Kill(ctx context.Context, id bench.Identity) error {
	h, err := Open(id)
	if errors.Is(err, engine.ErrDead) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.Close()
	return h.Kill(ctx)
}

func (h *Handle) control(fn func(fd int) error) error {
	rc, err := h.f.SyscallConn()
	if err != nil {
		return err
	}
	if e := rc.Control(func(fd uintptr) { err = fn(int(fd)) }); e != nil {
		return e
	}
	return err
}

func readable(fd int) (bool, error) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 0)
		if err == unix.EINTR {
			continue
		}
		return n > 0, err
	}
}

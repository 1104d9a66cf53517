package oci

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// go-runc makes the command of each call itself, with all of our environment and
// in our own cgroups. Its Monitor is the one place where a command passes by
// before it is started: there a call of ours, known by a variable of its own, gets
// the cgroup that it is born in and an environment that is spelt out.
func init() { gorunc.Monitor = monitor{} }

// callVariable names a call to the monitor; runc never sees it.
const callVariable = "DRUMS_RUNC_CALL"

// call is how one runc is started.
type call struct {
	// groupFD is the v2 cgroup that runc and whatever it starts are born in.
	groupFD int
	env     []string
	// started is called once runc runs, on the caller's own thread; nil for nothing. Its error ends runc.
	started func() error
}

var (
	calls    sync.Map // of string to call
	callName atomic.Int64
)

// with returns a context whose runc is started as c says, until done is called.
func (c call) with(ctx context.Context) (_ context.Context, done func()) {
	name := strconv.FormatInt(callName.Add(1), 10)
	calls.Store(name, c)
	return gorunc.WithExtraEnv(ctx, callVariable+"="+name), func() { calls.Delete(name) }
}

// monitor starts commands and waits for them, each on the caller's own thread,
// whose namespaces they inherit.
type monitor struct{}

func (monitor) Start(cmd *exec.Cmd) (chan gorunc.Exit, error) {
	started := func() error { return nil }
	for _, e := range cmd.Env {
		name, ours := strings.CutPrefix(e, callVariable+"=")
		if !ours {
			continue
		}
		v, known := calls.Load(name)
		if !known {
			return nil, errors.New("start runc: the call is over")
		}
		c := v.(call)
		cmd.Env = c.env
		cmd.SysProcAttr.Setpgid = true
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, c.groupFD
		if c.started != nil {
			started = c.started
		}
		// criu runs in runc's process group: a deadline ends both.
		cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
		break
	}
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if err := started(); err != nil {
		err = errors.Join(err, unix.Kill(-cmd.Process.Pid, unix.SIGKILL))
		_ = cmd.Wait() // says only that it was killed
		return nil, err
	}
	exit := make(chan gorunc.Exit, 1)
	go func() {
		status := 0
		if err := cmd.Wait(); err != nil {
			status = 255
			var e *exec.ExitError
			if errors.As(err, &e) {
				if ws, ok := e.Sys().(syscall.WaitStatus); ok && ws.Exited() {
					status = ws.ExitStatus()
				}
			}
		}
		exit <- gorunc.Exit{Timestamp: time.Now(), Pid: cmd.Process.Pid, Status: status}
		close(exit)
	}()
	return exit, nil
}

func (m monitor) StartLocked(cmd *exec.Cmd) (chan gorunc.Exit, error) { return m.Start(cmd) }

func (monitor) Wait(_ *exec.Cmd, exit chan gorunc.Exit) (int, error) {
	e := <-exit
	return e.Status, nil
}

// over is the error of a runc that failed: a context that has ended comes first.
func over(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() == nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	cause := context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		cause = fmt.Errorf("%w: %w", engine.ErrDeadline, cause)
	}
	return fmt.Errorf("%s: runc was killed: %w", op, cause)
}

// reaper makes this process the parent of the orphans below it while somebody
// needs that: a container's first process is an orphan as soon as runc has
// started it, and its end is proven by waiting for it.
var reaper struct {
	sync.Mutex
	users int
}

// adoptOrphans makes us the reaper until the result is called.
func adoptOrphans() (release func() error, err error) {
	set := func(on uintptr) error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, on, 0, 0, 0) }
	reaper.Lock()
	defer reaper.Unlock()
	if reaper.users == 0 {
		if err := set(1); err != nil {
			return nil, fmt.Errorf("adopt orphans: %w", err)
		}
	}
	reaper.users++
	return func() error {
		reaper.Lock()
		defer reaper.Unlock()
		reaper.users--
		if reaper.users > 0 {
			return nil
		}
		return set(0)
	}, nil
}

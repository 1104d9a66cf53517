package hostexec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const (
	// undoTime bounds what is done after a failure, a deadline or a cancellation.
	undoTime = 10 * time.Second
	// drainTime is how long the end of an output may be in coming once the group is empty.
	drainTime = time.Second
	// searchPath is all that a program gets of an environment beside what it is given.
	searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// loaded implements engine.HostProcess.
type loaded struct {
	runner *Runner
	name   string
	argv   []string

	mu      sync.Mutex
	dir     string
	dirID   int64
	program string
	group   *cgroup.Group
	owned   bool
	started bool
}

func (l *loaded) cwd() string { return filepath.Join(l.dir, "cwd") }

// Run implements engine.HostProcess.
func (l *loaded) Run(ctx context.Context, env []string) (r engine.HostResult, err error) {
	const op = "run policy"
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.group == nil || l.started:
		return r, &engine.Error{Op: op, Err: fmt.Errorf("%w: it was started or taken away before", engine.ErrUsage)}
	case ctx.Err() != nil:
		return r, &engine.Error{Op: op, Err: context.Cause(ctx)}
	}
	l.started = true
	ledger := l.runner.ws.Ledger
	id, err := ledger.Intend("process", bench.Claim{Cgroup: l.group.Path(), Note: "policy of " + l.name})
	if err != nil {
		return r, err
	}
	stdout, err := newCapture()
	if err != nil {
		return r, &engine.Error{Op: op, Err: err}
	}
	defer stdout.close()
	stderr, err := newCapture()
	if err != nil {
		return r, &engine.Error{Op: op, Err: err}
	}
	defer stderr.close()

	begin := time.Now()
	cmd, err := l.start(env, stdout.write, stderr.write)
	if err != nil {
		// Nothing was born: the group is read back to be empty before the ledger says so.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		kerr := l.group.Kill(undo)
		if kerr == nil {
			kerr = ledger.Gone(id)
		}
		return r, errors.Join(&engine.Error{Op: op, Err: err, Hint: "it must be a program for this machine, or begin with #! and an interpreter that is installed"}, kerr)
	}
	identity, err := procfs.Identity(cmd.Process.Pid) // there until somebody waits for it
	if err == nil {
		err = ledger.Bind(id, identity)
	}
	ended := make(chan syscall.WaitStatus, 1)
	go func() {
		cmd.Wait() // its error says what the state says
		ended <- cmd.ProcessState.Sys().(syscall.WaitStatus)
	}()
	stdout.follow()
	stderr.follow()

	var status syscall.WaitStatus
	over := false
	if err == nil {
		select {
		case status = <-ended:
			over = true
		case <-ctx.Done():
		}
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	left, kerr := l.end(undo)
	r.Ended = left
	if !over && kerr == nil {
		select {
		case status = <-ended:
		case <-undo.Done():
			kerr = &engine.Error{Op: op, Err: fmt.Errorf("%w: pid %d was killed and cannot be waited for", engine.ErrUnknown, cmd.Process.Pid)}
		}
	}
	r.Elapsed = time.Since(begin)
	if kerr == nil {
		kerr = ledger.Gone(id)
	}
	held := errors.Join(stdout.finish(), stderr.finish())
	r.Stdout, r.Stderr, r.Truncated = stdout.kept, stderr.kept, stdout.more || stderr.more
	r.Exit = status.ExitStatus()
	if status.Signaled() {
		r.Exit = -int(status.Signal())
	}
	var ferr error
	r.Files, r.FilesLeftOut, ferr = files(l.cwd())
	if err := errors.Join(err, kerr, held, ferr); err != nil {
		return r, &engine.Error{Op: op, Err: err}
	}
	if !over {
		return r, &engine.Error{Op: op, Err: context.Cause(ctx)}
	}
	return r, nil
}

// start starts the copy in the group, with nothing of ours.
func (l *loaded) start(env []string, stdout, stderr *os.File) (*exec.Cmd, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	// Descriptors that we inherited ourselves; Go's own are never passed on.
	if err := unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("close inherited descriptors: %w", err)
	}
	cmd := &exec.Cmd{
		Path: l.program, Args: append([]string{l.program}, l.argv[1:]...), Dir: l.cwd(), Env: append([]string{searchPath}, env...),
		Stdin: null, Stdout: stdout, Stderr: stderr,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: l.group.FD()},
	}
	err = cmd.Start()
	// Our own ends would keep the outputs from ending.
	stdout.Close()
	stderr.Close()
	return cmd, err
}

// end kills what is in the group, says how many that were, and proves that none is left.
func (l *loaded) end(ctx context.Context) (int, error) {
	pids, err := l.group.Pids()
	if err != nil {
		return 0, err
	}
	return len(pids), l.group.Kill(ctx)
}

// Release implements engine.HostProcess.
func (l *loaded) Release(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.group != nil {
		if err := l.group.Kill(ctx); err != nil {
			return err
		}
		if err := l.group.Remove(ctx); err != nil {
			return err
		}
		l.group = nil
	}
	if l.owned {
		if err := l.runner.owner.release(ctx); err != nil {
			return err
		}
		l.owned = false
	}
	if l.dir == "" {
		return nil
	}
	if err := os.RemoveAll(l.dir); err != nil {
		return &engine.Error{Op: "take policy's program away", Err: err}
	}
	l.dir = ""
	return l.runner.ws.Ledger.Gone(l.dirID)
}

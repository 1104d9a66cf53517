package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

const (
	// killLimit is how long a tree may take to be gone once it is killed.
	killLimit = 15 * time.Second
	// drainGrace is how long a program's children that live on are waited for once
	// it has ended, while they hold its outputs open. What the program itself
	// printed is complete without it.
	drainGrace = 100 * time.Millisecond
)

// errTree: a tree outlived SIGKILL. Nobody knows any more what runs in the slot.
var errTree = errors.New("end the program's tree")

// outcome of a program that was started.
type outcome struct {
	status         syscall.WaitStatus
	timedOut       bool
	stdout, stderr capture
}

// job is a program to run and wait for.
type job struct {
	argv    []string
	path    string // of the program; empty: argv[0] is looked up
	dir     string // empty: where programs of who start
	timeout time.Duration
	merged  bool // both outputs are one, and that is stdout
}

// run runs j as who and waits for it. When its time is up or ctx is cancelled,
// the program's whole tree is ended, and read back to be. Its children may
// outlive a program that ends by itself; from then on nobody reads their output.
func (p *processes) run(ctx context.Context, who *identity, j job) (*outcome, error) {
	path := j.path
	if path == "" {
		var err error
		if path, err = who.program(j.argv[0]); err != nil {
			return nil, err
		}
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	o := &outcome{}
	outRead, outWrite, err := pipe()
	if err != nil {
		return nil, err
	}
	defer outRead.Close()
	errRead, errWrite, err := pipe()
	if err != nil {
		unix.Close(outWrite)
		return nil, err
	}
	defer errRead.Close()

	timer := time.NewTimer(j.timeout)
	defer timer.Stop()
	mark := p.mark()
	attr := who.attributes(nil, null.Fd(), uintptr(outWrite), uintptr(errWrite))
	if j.merged {
		attr.Files[2] = attr.Files[1]
	}
	if j.dir != "" {
		attr.Dir = j.dir
	}
	pid, ended, err := p.start(path, j.argv, attr, mark)
	unix.Close(outWrite)
	unix.Close(errWrite)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	stdoutDone, stderrDone := o.stdout.follow(outRead), o.stderr.follow(errRead)

	select {
	case o.status = <-ended:
	case <-timer.C:
		o.timedOut = true
	case <-ctx.Done():
	}
	if o.timedOut || ctx.Err() != nil {
		if err := endTree(pid, mark, killLimit); err != nil {
			return nil, fmt.Errorf("%w: %w", errTree, err)
		}
	}
	deadline := time.Now().Add(drainGrace)
	o.stdout.finish(outRead, stdoutDone, deadline)
	o.stderr.finish(errRead, stderrDone, deadline)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return o, nil
}

// pipe returns a read end for the poller and a write end that blocks, as a program expects.
func pipe() (*os.File, int, error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return nil, 0, fmt.Errorf("make a pipe: %w", err)
	}
	if err := unix.SetNonblock(fd[0], true); err != nil {
		unix.Close(fd[0])
		unix.Close(fd[1])
		return nil, 0, fmt.Errorf("make a pipe: %w", err)
	}
	return os.NewFile(uintptr(fd[0]), "output"), fd[1], nil
}

// capture keeps the first bytes of an output and counts on.
type capture struct {
	kept      []byte
	truncated bool
}

func (c *capture) add(b []byte) {
	room := proto.OutputLimit - len(c.kept)
	if len(b) > room {
		c.truncated = true
		b = b[:room]
	}
	c.kept = append(c.kept, b...)
}

// follow reads r until its end, or until finish has it stop.
func (c *capture) follow(r *os.File) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 16<<10)
		for {
			n, err := r.Read(buf)
			c.add(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	return done
}

// finish ends follow at deadline at the latest, and then takes what lies in the
// pipe: all that was written before the program ended.
func (c *capture) finish(r *os.File, done <-chan struct{}, deadline time.Time) {
	r.SetReadDeadline(deadline)
	<-done
	r.SetReadDeadline(time.Time{})
	raw, err := r.SyscallConn()
	if err != nil {
		return
	}
	raw.Read(func(fd uintptr) bool {
		buf := make([]byte, 16<<10)
		// A child that goes on writing must not keep us: no more than the pipe holds.
		size, err := unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0)
		for read := 0; err == nil && read < size; {
			var n int
			if n, err = unix.Read(int(fd), buf); n <= 0 {
				break
			}
			c.add(buf[:n])
			read += n
		}
		return true
	})
}

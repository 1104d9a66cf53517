package criu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"

	"github.com/drumsbench/drumsbench/engine"
)

// ErrTransient: the same call may succeed a moment later; the tree runs on.
var ErrTransient = errors.New("transient")

// VetoError says that a notification was answered with an error.
type VetoError struct {
	Script string
	Err    error
}

func (e *VetoError) Error() string { return e.Script + ": " + e.Err.Error() }
func (e *VetoError) Unwrap() error { return e.Err }

// Failure is why CRIU failed, as far as it says. It wraps engine.ErrRefused or
// [ErrTransient] where its kind is one.
type Failure struct {
	// Kind is empty for a failure that is not in the table of kinds.
	Kind Kind
	// Lines are CRIU's own error lines, at most [maxLines], without time stamp and place.
	Lines []string
	// Signal that ended the program, 0 if none did.
	Signal syscall.Signal
	// Exit is the program's exit status, where that is all there is.
	Exit int
	// Stderr is what the program, or the caller's stage before it, wrote last.
	Stderr string
	// Errno is CRIU's own, as the answer gave it.
	Errno syscall.Errno
}

func (f *Failure) Error() string {
	var parts []string
	if f.Signal != 0 {
		parts = append(parts, fmt.Sprintf("criu crashed: %s", f.Signal))
	}
	parts = append(parts, f.Lines...)
	if len(f.Lines) == 0 && f.Stderr != "" {
		parts = append(parts, f.Stderr)
	}
	if len(parts) == 0 {
		switch {
		case f.Errno != 0:
			parts = append(parts, "criu failed: "+f.Errno.Error())
		case f.Exit != 0:
			parts = append(parts, fmt.Sprintf("criu exited %d", f.Exit))
		default:
			parts = append(parts, "criu failed and does not say why")
		}
	}
	return strings.Join(parts, "; ")
}

func (f *Failure) Unwrap() error { return kinds[f.Kind].sentinel }

// wrap makes the typed error of a call.
func (c *call) wrap(err error) error {
	return &engine.Error{Op: c.req.Op, Log: c.logPath(), Err: err}
}

// logPath names the log if there is one to read.
func (c *call) logPath() string {
	if c.req.Log == "" {
		return ""
	}
	if _, err := os.Stat(c.req.Log); err != nil {
		return ""
	}
	return c.req.Log
}

// failure makes the error of a call that did not succeed. What explains most
// comes first: our own deadline, then the caller's veto, then CRIU's words.
func (c *call) failure(ctx context.Context, resp *rpc.CriuResp, waitErr, talkErr error) error {
	e := &engine.Error{Op: c.req.Op, Log: c.logPath()}
	f := c.explain(resp, waitErr)
	var veto *VetoError
	switch {
	case ctx.Err() != nil:
		e.Err = ended(ctx, time.Since(c.started), f)
		if errors.Is(e.Err, engine.ErrDeadline) {
			e.Hint = "the log names the last thing that criu did; a longer deadline helps only where it was still working"
		}
	case errors.As(talkErr, &veto):
		e.Err = veto
	case c.lingered && resp.GetSuccess():
		e.Err = fmt.Errorf("criu did not end within %s of its answer", exitTime)
	case f.Kind == "" && len(f.Lines) == 0 && f.Signal == 0 && talkErr != nil && !errors.Is(talkErr, errNoAnswer):
		e.Err = talkErr
	default:
		e.Err, e.Hint = f, kinds[f.Kind].hint
	}
	var exit *exec.ExitError
	if waitErr != nil && !errors.As(waitErr, &exit) { // the program could not be collected
		e.Err = errors.Join(e.Err, waitErr)
	}
	return e
}

// over is the error of a context that has ended, engine.ErrDeadline for a deadline.
func over(ctx context.Context) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", engine.ErrDeadline, err)
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

func ended(ctx context.Context, after time.Duration, f *Failure) error {
	err := fmt.Errorf("criu was killed after %s: %w", after.Round(time.Millisecond), over(ctx))
	if len(f.Lines) > 0 {
		err = fmt.Errorf("%w; its log says: %s", err, strings.Join(f.Lines, "; "))
	}
	return err
}

// explain gathers what CRIU left.
func (c *call) explain(resp *rpc.CriuResp, waitErr error) *Failure {
	f := &Failure{Errno: syscall.Errno(resp.GetCrErrno())}
	if c.stderr != nil {
		f.Stderr = tail(c.stderr)
	}
	var exit *exec.ExitError
	if errors.As(waitErr, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && !c.killed.Load() {
			f.Signal = status.Signal()
		} else if exit.ExitCode() > 0 {
			f.Exit = exit.ExitCode()
		}
	}
	var lines []string
	if c.req.Log != "" {
		log, _ := readTail(c.req.Log) // an unreadable log says nothing
		lines = errorLines(log)
	}
	if len(lines) == 0 {
		// CRIU had not opened its log, or the request names none: what it wrote
		// to stderr, and the first error line as the answer repeats it.
		lines = errorLines([]byte(f.Stderr + "\n" + resp.GetCrErrmsg()))
	}
	f.Kind, f.Lines = diagnose(lines)
	if len(lines) == 0 { // plain words of the program or of the caller's stage
		f.Kind, _ = diagnose(strings.Split(f.Stderr, "\n"))
	}
	if f.Signal != 0 {
		f.Kind = KindCrash
	}
	return f
}

// tailSize is how much of a log or of stderr is looked at: its end.
const tailSize = 256 << 10

func readTail(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return tailOf(file)
}

func tailOf(file *os.File) ([]byte, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(file, max(0, info.Size()-tailSize), tailSize))
}

// tail is the last text of a small file, for a message.
func tail(file *os.File) string {
	data, err := tailOf(file)
	if err != nil {
		return ""
	}
	data = bytes.ToValidUTF8(bytes.TrimSpace(data), []byte("?"))
	if over := len(data) - 2000; over > 0 {
		data = data[over:]
	}
	return string(data)
}

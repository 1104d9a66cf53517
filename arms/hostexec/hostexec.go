// Package hostexec runs somebody else's program on the host: an agent that acts
// on a slot through the port that it is offered.
//
// What always holds: what is started is a copy whose digest was compared with
// the pin, never the file that may change meanwhile; the program and all that it
// starts are born in a control group of their own inside the run's ownership
// cgroup, the ledger first; the group is killed when the program has ended and
// when its time is up, and read back to be empty; of the engine's environment,
// descriptors and standard input it gets nothing. A program that runs as root can
// leave its group if it means to: whoever still holds its output then is noticed,
// and the run is told.
package hostexec

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Owners is an arm that has the run's ownership cgroup.
type Owners interface {
	// Owner makes the run's ownership cgroup if there is none yet. Whoever has it takes it away.
	Owner(ws *engine.Workspace) (*cgroup.Owner, error)
}

// Runner implements engine.HostRunner for one run.
type Runner struct {
	ws    *engine.Workspace
	owner owner
}

// New returns the runner of a run. On an arm that has no ownership cgroup (it is
// no [Owners]) the runner makes one as long as a program is loaded.
func New(ws *engine.Workspace, arm engine.Arm) *Runner {
	if has, ok := arm.(Owners); ok {
		return &Runner{ws: ws, owner: lent{has, ws}}
	}
	return &Runner{ws: ws, owner: &counted{ws: ws}}
}

// resolve is the path of a manifest's program.
func resolve(dir string, argv []string) (string, error) {
	switch {
	case len(argv) == 0 || argv[0] == "":
		return "", fmt.Errorf("%w: no program", engine.ErrUsage)
	case filepath.IsAbs(argv[0]):
		return argv[0], nil
	case !filepath.IsAbs(dir):
		return "", fmt.Errorf("%w: %q is relative, and where the manifest lies is not known", engine.ErrUsage, argv[0])
	}
	return filepath.Join(dir, argv[0]), nil
}

// Verify compares a program's file with its pin without running anything, so that
// a run can be refused before it has begun. It proves nothing for later: Load compares again.
func Verify(p engine.HostProgram) error {
	path, err := resolve(p.Dir, p.Exec)
	if err != nil {
		return &engine.Error{Op: "check policy's program", Err: err}
	}
	return take(path, p.SHA256, io.Discard)
}

// take copies the file at path to out and compares what was copied with the pin.
func take(path string, pin bench.SHA256, out io.Writer) error {
	op := "read policy's program " + path
	// A FIFO in its place would be waited for for ever.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", engine.ErrRefused, err), Hint: "policy.host.exec begins with a file beside the manifest, or an absolute path"}
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: it is no regular file", engine.ErrRefused)
	}
	sum := sha256.New()
	if err == nil {
		_, err = io.Copy(io.MultiWriter(out, sum), f)
	}
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	if have := hex.EncodeToString(sum.Sum(nil)); have != string(pin) {
		return &engine.Error{Op: op, Err: fmt.Errorf("%w: its sha256 is %s, the pin is %s", engine.ErrRefused, have, pin),
			Hint: "if the change is meant, pin the new digest as policy.host.sha256; it is another workload then"}
	}
	return nil
}

// Load implements engine.HostRunner.
func (r *Runner) Load(ctx context.Context, p engine.HostProgram) (engine.HostProcess, error) {
	const op = "load policy's program"
	path, err := resolve(p.Dir, p.Exec)
	if err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	l := &loaded{runner: r, name: "agent-" + p.Name, argv: p.Exec}
	if err := l.prepare(path, p.SHA256); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		return nil, errors.Join(err, l.Release(undo))
	}
	return l, nil
}

// prepare makes the folder, ledger first, with the copy and the working directory in it.
func (l *loaded) prepare(path string, pin bench.SHA256) error {
	const op = "load policy's program"
	ws := l.runner.ws
	dir := filepath.Join(ws.Work, l.name)
	id, err := engine.Own(ws.Ledger, "directory", bench.Claim{Path: dir}, func() (bench.Identity, error) {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return bench.Identity{}, err
		}
		l.dir = dir
		return identity(dir)
	})
	l.dirID = id
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	if err := os.Mkdir(l.cwd(), 0o700); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	l.program = filepath.Join(dir, filepath.Base(path))
	if l.program == l.cwd() {
		l.program += ".program"
	}
	out, err := os.OpenFile(l.program, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o500)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	if err := errors.Join(take(path, pin, out), out.Close()); err != nil {
		return err
	}
	// A process that was forked while the copy was open for writing has a descriptor
	// of it until it has become its program, and would make the start fail with
	// ETXTBSY. None is between the two while this lock is held (syscall.ForkLock).
	syscall.ForkLock.Lock()
	//lint:ignore SA2001 having had the lock is the point
	syscall.ForkLock.Unlock()
	owner, err := l.runner.owner.acquire()
	if err != nil {
		return err
	}
	l.owned = true
	l.group, err = owner.Group(l.name)
	return err
}

func identity(path string) (bench.Identity, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return bench.Identity{}, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	return bench.Identity{Dev: bench.Int64(strconv.FormatUint(uint64(st.Dev), 10)), Ino: bench.Int64(strconv.FormatUint(st.Ino, 10))}, nil
}

package locks

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/engine/pathtext"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Report says what a repair did.
type Report struct {
	Restored []Restored
	// NotRepairable are the missing locks of a type that an injected call cannot put back.
	NotRepairable []bench.Lock
	// Duration is the whole repair's, census included.
	Duration time.Duration
}

// Restored is one lock that is back.
type Restored struct {
	Lock bench.Lock
	// FD is the owner's descriptor that was used.
	FD int
	// Duration is the lock's own time; the first lock of an owner includes stopping its thread.
	Duration time.Duration
}

// settle bounds how long a thread may take to be as it was, whatever became of the caller's context.
const settle = 10 * time.Second

var errCompat = fmt.Errorf("%w: it is a 32-bit program", engine.ErrRefused)

// Restore puts back those of the wanted locks that a slot's stopped tree lacks, as Repair does.
func Restore(ctx context.Context, initPid int, wanted []bench.Lock) (Report, error) {
	start := time.Now()
	tasks, err := procfs.Tree(initPid)
	if err != nil {
		return Report{}, failed(err)
	}
	lacking, err := missing(initPid, tasks, wanted)
	if err != nil || len(lacking) == 0 {
		return Report{Duration: time.Since(start)}, err
	}
	return repair(ctx, start, initPid, tasks, lacking)
}

// Repair puts missing POSIX locks back while the slot's tree is stopped by
// SIGSTOP, as criu --leave-stopped leaves it: each owner is made to take its
// lock itself, by an injected fcntl(F_SETLK) in one of its threads, and a census
// must show the lock afterwards. The tree is left stopped.
//
// engine.ErrRefused, with nothing changed, if the tree is not stopped, an owner
// is a 32-bit program, or an owner has no fitting descriptor; also, after what
// can be done was done, if missing holds locks that are not POSIX. A conflicting
// lock is an error that wraps EAGAIN; what was restored before it is in the
// report and stays. Not idempotent in its report, but harmless to repeat. When
// ctx ends a task may have been killed: the slot is of no use then.
//
// Nothing else in this process may wait for all children (wait4(-1)) meanwhile: it would take a tracee's stops.
func Repair(ctx context.Context, initPid int, missing []bench.Lock) (Report, error) {
	start := time.Now()
	tasks, err := procfs.Tree(initPid)
	if err != nil {
		return Report{Duration: time.Since(start)}, failed(err)
	}
	return repair(ctx, start, initPid, tasks, missing)
}

func failed(err error) error {
	hint := ""
	switch {
	case errors.Is(err, errCompat):
		hint = "set the arm's locks to refuse: locks of 32-bit programs cannot be put back"
	case errors.Is(err, unix.EAGAIN):
		hint = "a lock was taken by somebody else after the restore: nothing may run before the repair"
	}
	return &engine.Error{Op: "repair locks", Err: err, Hint: hint}
}

func repair(ctx context.Context, start time.Time, initPid int, tasks []procfs.Task, lacking []bench.Lock) (Report, error) {
	var report Report
	var err error
	fail := func(err error) (Report, error) {
		report.Duration = time.Since(start)
		return report, failed(err)
	}
	for _, t := range tasks {
		if t.Status.State != 'T' && t.Status.State != 'Z' {
			return fail(fmt.Errorf("%w: pid %d (%s) is not stopped but in state %c", engine.ErrRefused, t.Inner, t.Status.Name, t.Status.State))
		}
	}
	owners, of := map[int]*owner{}, paths(lacking)
	var order []*owner
	var posix []bench.Lock
	for _, l := range lacking {
		if l.Type != observe.LockPOSIX {
			report.NotRepairable = append(report.NotRepairable, l)
			continue
		}
		o := owners[int(l.Pid)]
		if o == nil {
			if o, err = newOwner(tasks, int(l.Pid), of); err != nil {
				return fail(err)
			}
			owners[int(l.Pid)] = o
			order = append(order, o)
		}
		if err := o.want(l); err != nil {
			return fail(err)
		}
		posix = append(posix, l)
	}
	err = thread.Run(func() error {
		for _, o := range order {
			done, err := o.repair(ctx)
			report.Restored = append(report.Restored, done...)
			if err != nil {
				return fmt.Errorf("pid %d (%s): %w", o.task.Inner, o.task.Status.Name, err)
			}
		}
		return nil
	})
	if err != nil {
		return fail(err)
	}
	gone, err := missing(initPid, tasks, posix)
	if err != nil {
		return fail(err)
	}
	if len(gone) > 0 {
		return fail(fmt.Errorf("%d of %d locks are not there after they were set, the first: %s", len(gone), len(posix), Describe(gone[0])))
	}
	if n := len(report.NotRepairable); n > 0 {
		return fail(fmt.Errorf("%w: %d missing locks are not of type POSIX, the first: %s", engine.ErrRefused, n, Describe(report.NotRepairable[0])))
	}
	report.Duration = time.Since(start)
	return report, nil
}

// Describe names a lock for a person: process, file, type, mode and range.
func Describe(l bench.Lock) string {
	to := "to " + string(l.End)
	if l.End == "-1" {
		to = "to the end"
	}
	return fmt.Sprintf("%s %s lock of pid %d on %s, bytes %s %s", l.Type, l.Mode, l.Pid, l.Path, l.Start, to)
}

// owner is a process with locks to put back.
type owner struct {
	task    procfs.Task
	tid     int
	seccomp bool
	fds     []procfs.Descriptor
	wanted  []request
}

// request is one lock and how to take it.
type request struct {
	lock  bench.Lock
	fd    int
	flock unix.Flock_t
}

// newOwner finds a process by its inner pid, one of its threads that can be used, and its descriptors of these paths.
func newOwner(tasks []procfs.Task, inner int, paths map[string]bool) (*owner, error) {
	i := slices.IndexFunc(tasks, func(t procfs.Task) bool { return t.Inner == inner })
	if i < 0 {
		return nil, fmt.Errorf("%w: the slot has no pid %d that should hold a lock", engine.ErrRefused, inner)
	}
	o := &owner{task: tasks[i]}
	fail := func(err error) (*owner, error) {
		return nil, fmt.Errorf("pid %d (%s): %w", inner, o.task.Status.Name, err)
	}
	if err := native(o.task.Pid); err != nil {
		return fail(err)
	}
	tids, err := procfs.Threads(o.task.Pid)
	if err != nil {
		return fail(err)
	}
	for _, tid := range tids {
		st, err := observe.ReadStatus(os.DirFS("/proc"), tid)
		if err != nil {
			return fail(err)
		}
		switch {
		case st.TracerPid != 0:
			return fail(fmt.Errorf("%w: thread %d is traced by host pid %d", engine.ErrRefused, tid, st.TracerPid))
		case st.State == 'Z', st.State == 'X':
		case st.State != 'T':
			return fail(fmt.Errorf("%w: thread %d is not stopped but in state %c", engine.ErrRefused, tid, st.State))
		case o.tid == 0:
			o.tid, o.seccomp = tid, st.Seccomp != 0
		}
	}
	if o.tid == 0 {
		return fail(fmt.Errorf("%w: no thread is left", engine.ErrRefused))
	}
	if o.fds, err = procfs.DescriptorsOf(o.task, func(link string) bool { return paths[pathtext.Quote(link)] }); err != nil {
		return fail(err)
	}
	return o, nil
}

// native refuses programs of another word size.
func native(pid int) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return fmt.Errorf("read program: %w", err)
	}
	defer f.Close()
	var ident [elf.EI_NIDENT]byte
	if _, err := f.ReadAt(ident[:], 0); err != nil {
		return fmt.Errorf("read program: %w", err)
	}
	if string(ident[:4]) != elf.ELFMAG {
		return fmt.Errorf("%w: its program is no ELF file", engine.ErrUnknown)
	}
	if elf.Class(ident[elf.EI_CLASS]) != elf.ELFCLASS64 {
		return errCompat
	}
	return nil
}

// want finds the descriptor for a lock: of its path, open for what the lock is for.
func (o *owner) want(l bench.Lock) error {
	r := request{lock: l, fd: -1}
	start, err1 := strconv.ParseInt(string(l.Start), 10, 64)
	end, err2 := strconv.ParseInt(string(l.End), 10, 64)
	if err1 != nil || err2 != nil || start < 0 || end < -1 || end >= 0 && end < start {
		return fmt.Errorf("%w: range of %s", engine.ErrRefused, Describe(l))
	}
	r.flock.Start = start
	if end >= 0 {
		r.flock.Len = end - start + 1
	}
	deny := unix.O_WRONLY
	switch l.Mode {
	case "READ":
		r.flock.Type = unix.F_RDLCK
	case "WRITE":
		r.flock.Type, deny = unix.F_WRLCK, unix.O_RDONLY
	default:
		return fmt.Errorf("%w: mode of %s", engine.ErrRefused, Describe(l))
	}
	var file procfs.Stat
	for _, d := range o.fds {
		if pathtext.Quote(d.Link) != l.Path || d.Info.Flags&unix.O_PATH != 0 {
			continue
		}
		st, err := d.Stat()
		if err != nil {
			return err
		}
		if file != (procfs.Stat{}) && (st.Dev != file.Dev || st.Ino != file.Ino) {
			return fmt.Errorf("%w: pid %d has two files open as %s, and %s can only be of one", engine.ErrRefused, l.Pid, l.Path, Describe(l))
		}
		file = st
		if r.fd < 0 && d.Info.Flags&unix.O_ACCMODE != deny {
			r.fd = d.FD
		}
	}
	if r.fd < 0 {
		return fmt.Errorf("%w: pid %d has no descriptor that fits %s", engine.ErrRefused, l.Pid, Describe(l))
	}
	o.wanted = append(o.wanted, r)
	return nil
}

// repair makes the owner take its locks. It must be called on a thread that stays the same.
func (o *owner) repair(ctx context.Context) (done []Restored, err error) {
	start := time.Now()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t, err := seize(ctx, o.task.Pid, o.tid, o.seccomp)
	if err != nil {
		return nil, err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), settle)
		defer cancel()
		e := t.release(last)
		if e == nil {
			e = stopped(last, o.tid)
		}
		err = errors.Join(err, e)
		if n := len(done); n > 0 {
			done[n-1].Duration += time.Since(start)
		}
	}()
	for _, r := range o.wanted {
		if err := t.setLock(ctx, r.fd, r.flock); err != nil {
			if errors.Is(err, unix.EACCES) {
				err = unix.EAGAIN // POSIX lets a system choose either for a conflict
			}
			if errors.Is(err, unix.EAGAIN) {
				err = fmt.Errorf("a conflicting lock is held by somebody else: %w", err)
			}
			return done, fmt.Errorf("set %s: %w", Describe(r.lock), err)
		}
		now := time.Now()
		done = append(done, Restored{Lock: r.lock, FD: r.fd, Duration: now.Sub(start)})
		start = now
	}
	return done, nil
}

// stopped waits until a thread is in its group's stop again.
func stopped(ctx context.Context, tid int) error {
	for {
		st, err := observe.ReadStatus(os.DirFS("/proc"), tid)
		if err != nil {
			return err
		}
		if st.State == 'T' {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("thread %d is in state %c after the repair, not stopped: %w", tid, st.State, ctx.Err())
		}
		time.Sleep(20 * time.Microsecond)
	}
}

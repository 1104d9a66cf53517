package criu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/drumsbench/drumsbench/engine"
)

// LogLevel is how much CRIU writes (criu/include/log.h). Error lines are there
// on every level; from LogInfo on lines carry a time stamp.
type LogLevel int32

// The levels. A measured call uses LogWarnings or less.
const (
	LogErrors   LogLevel = 1
	LogWarnings LogLevel = 2
	LogInfo     LogLevel = 3
	LogDebug    LogLevel = 4
)

// DumpOptions of one dump. What is not here is fixed: the network is not locked,
// since nothing reaches into the slot; cgroups are the arm's own affair and not
// looked at; sockets to the outside, shell jobs and link remaps are refused.
type DumpOptions struct {
	// Pid of the tree's root in the pid namespace of the caller.
	Pid int
	// ImagesDir and WorkDir exist, WorkDir gets the log and stats-dump.
	ImagesDir, WorkDir string
	// LogFile is a name in WorkDir; empty is dump.log.
	LogFile  string
	LogLevel LogLevel
	// FileLocks carries file locks in the images; without it a held lock refuses the dump.
	FileLocks bool
	// TCPClose leaves established TCP connections out, to be closed at the restore; without it one refuses the dump.
	TCPClose bool
	// GhostLimit in bytes bounds each unlinked open file that is carried in the images. 0 is CRIU's own 1 MiB.
	GhostLimit int64
	// Started as in Request.
	Started func() error
}

// RestoreOptions of one restore. Fixed is what is fixed for a dump.
type RestoreOptions struct {
	// Root is a mount point in CRIU's own mount namespace that becomes the slot's root.
	Root string
	// ImagesDir and WorkDir exist; WorkDir gets the log and stats-restore, and differs between siblings.
	ImagesDir, WorkDir string
	// LogFile is a name in WorkDir; empty is restore.log.
	LogFile  string
	LogLevel LogLevel
	// Sibling makes the restored root task a child of the process that started CRIU, which must reap it.
	Sibling bool
	// LeaveStopped leaves every task stopped, which is read back ([WaitStopped]); none has run an instruction of its own.
	LeaveStopped bool
	// FileLocks as at the dump. POSIX locks on files that their owner maps are lost all the same.
	FileLocks bool
	// TCPClose as at the dump; CRIU refuses a difference.
	TCPClose bool
	// Network brings the content of the slot's network namespace back in CRIU's place, which makes an
	// empty one and starts no program for it. It is called with the path of the namespace before any
	// socket is made in it; its error ends the restore. nil leaves the network to CRIU.
	Network func(path string) error
	// LazyPages leaves private anonymous memory out: a server listens on lazy-pages.socket in WorkDir, gets a
	// userfaultfd for each task there and fills it. Where nobody does, the tree's memory is zeros.
	LazyPages bool
	// Started as in Request.
	Started func() error
}

// common is what every call with a log has.
type common struct {
	ImagesDir, WorkDir, LogFile string
	LogLevel                    LogLevel
}

// request fills in directories and log. done closes the directories, which CRIU opens through /proc/OURPID/fd.
func request(op string, kind rpc.CriuReqType, c common, opts *rpc.CriuOpts) (r Request, done func(), err error) {
	images, err := openDir(c.ImagesDir)
	if err != nil {
		return Request{}, nil, &engine.Error{Op: op, Err: err}
	}
	work, err := openDir(c.WorkDir)
	if err != nil {
		images.Close()
		return Request{}, nil, &engine.Error{Op: op, Err: err}
	}
	level := c.LogLevel
	if level == 0 {
		level = LogWarnings
	}
	opts.ImagesDirFd = proto.Int32(int32(images.Fd()))
	opts.WorkDirFd = proto.Int32(int32(work.Fd()))
	opts.LogFile = proto.String(c.LogFile)
	opts.LogLevel = proto.Int32(int32(level))
	r = Request{Op: op, Log: filepath.Join(c.WorkDir, c.LogFile), CriuReq: &rpc.CriuReq{Type: kind.Enum(), Opts: opts}}
	return r, func() { images.Close(); work.Close() }, nil
}

// opts is the part that is the same for dump and restore.
func opts(fileLocks, tcpClose bool) *rpc.CriuOpts {
	return &rpc.CriuOpts{
		ManageCgroups:     proto.Bool(false),
		ManageCgroupsMode: rpc.CriuCgMode_IGNORE.Enum(),
		NetworkLock:       rpc.CriuNetworkLockMethod_SKIP.Enum(),
		FileLocks:         proto.Bool(fileLocks),
		TcpClose:          proto.Bool(tcpClose),
		TcpEstablished:    proto.Bool(false),
		ShellJob:          proto.Bool(false),
		ExtUnixSk:         proto.Bool(false),
		OrphanPtsMaster:   proto.Bool(false),
		LinkRemap:         proto.Bool(false),
	}
}

// Opts is the dump as CRIU is asked for it, without directories and log.
func (o DumpOptions) Opts() (*rpc.CriuOpts, error) {
	if o.Pid < 1 || o.Pid > math.MaxInt32 {
		return nil, fmt.Errorf("%d is no pid", o.Pid)
	}
	if o.GhostLimit < 0 || o.GhostLimit > math.MaxUint32 {
		return nil, fmt.Errorf("ghost limit of %d bytes, CRIU takes 0 to %d", o.GhostLimit, uint32(math.MaxUint32))
	}
	opts := opts(o.FileLocks, o.TCPClose)
	opts.Pid = proto.Int32(int32(o.Pid))
	opts.LeaveRunning = proto.Bool(false)
	if o.GhostLimit > 0 {
		opts.GhostLimit = proto.Uint32(uint32(o.GhostLimit))
	}
	return opts, nil
}

// Opts is the restore as CRIU is asked for it, without directories and log.
func (o RestoreOptions) Opts() (*rpc.CriuOpts, error) {
	if !filepath.IsAbs(o.Root) {
		return nil, fmt.Errorf("root %q is no absolute path", o.Root)
	}
	opts := opts(o.FileLocks, o.TCPClose)
	opts.Root = proto.String(o.Root)
	opts.RstSibling = proto.Bool(o.Sibling)
	opts.LeaveStopped = proto.Bool(o.LeaveStopped)
	if o.LazyPages {
		opts.LazyPages = proto.Bool(true)
	}
	if o.Network != nil {
		opts.EmptyNs = proto.Uint32(unix.CLONE_NEWNET)
	}
	return opts, nil
}

// Dump dumps a tree and ends it; its root stays a zombie until its parent waits
// for it. On an error the tree runs on, with two exceptions: where ctx ended in
// the middle of the dump its state is unknown (it ran on wherever that was
// tried, but CRIU may have been inside of a task), and where the images do not
// hold what CRIU reports the tree is gone.
func Dump(ctx context.Context, cmd *exec.Cmd, o DumpOptions, notify Notify) error {
	const op = "dump"
	opts, err := o.Opts()
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	req, done, err := request(op, rpc.CriuReqType_DUMP, common{o.ImagesDir, o.WorkDir, orElse(o.LogFile, "dump.log"), o.LogLevel}, opts)
	if err != nil {
		return err
	}
	defer done()
	req.Started = o.Started
	if _, err := Run(ctx, cmd, req, notify); err != nil {
		return err
	}
	if err := OpenImages(o.ImagesDir).Complete(); err != nil {
		return &engine.Error{Op: op, Log: req.Log, Err: fmt.Errorf("criu reports success: %w", err)}
	}
	return nil
}

// bringNetwork has o.Network called when the root task's namespaces exist and nothing is in them.
// told says whether it was: without it the slot would run with an empty network.
func (o RestoreOptions) bringNetwork(notify Notify) (both Notify, told *bool) {
	told = new(bool)
	return func(ctx context.Context, n Notification) error {
		if n.Script == ScriptSetupNamespaces {
			if n.Pid == 0 {
				return errors.New("criu does not name the root task")
			}
			if err := o.Network(fmt.Sprintf("/proc/%d/ns/net", n.Pid)); err != nil {
				return err
			}
			*told = true
		}
		if notify == nil {
			return nil
		}
		return notify(ctx, n)
	}, told
}

// Restore brings a tree back and returns the pid of its root in the pid
// namespace of the caller. On an error nothing of the tree is left.
func Restore(ctx context.Context, cmd *exec.Cmd, o RestoreOptions, notify Notify) (int, error) {
	const op = "restore"
	opts, err := o.Opts()
	if err != nil {
		return 0, &engine.Error{Op: op, Err: err}
	}
	req, done, err := request(op, rpc.CriuReqType_RESTORE, common{o.ImagesDir, o.WorkDir, orElse(o.LogFile, "restore.log"), o.LogLevel}, opts)
	if err != nil {
		return 0, err
	}
	defer done()
	req.Started = o.Started
	told := new(bool)
	if o.Network != nil {
		notify, told = o.bringNetwork(notify)
	}
	resp, err := Run(ctx, cmd, req, notify)
	if err != nil {
		return 0, err
	}
	pid := int(resp.GetRestore().GetPid())
	if o.Network != nil && !*told {
		err = errors.New("criu reports success: it never said that the network namespace was there")
		if pid > 0 {
			err = errors.Join(err, endTree(pid))
		}
		return 0, &engine.Error{Op: op, Log: req.Log, Err: err}
	}
	if pid < 1 || o.Sibling && !isChild(pid) {
		return 0, &engine.Error{Op: op, Log: req.Log, Err: fmt.Errorf("criu reports success: root task %d is no child of ours", pid)}
	}
	if o.LeaveStopped {
		err = WaitStopped(ctx, pid)
	} else if _, err = os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
		err = fmt.Errorf("root task %d: %w", pid, engine.ErrDead)
	}
	if err != nil {
		if rest := endTree(pid); rest != nil {
			err = errors.Join(err, rest)
		}
		return 0, &engine.Error{Op: op, Log: req.Log, Err: fmt.Errorf("criu reports success: %w", err)}
	}
	return pid, nil
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

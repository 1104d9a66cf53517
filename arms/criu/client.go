package criu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/drumsbench/drumsbench/engine"
)

// Scripts that CRIU notifies of, as in the table of the package comment.
const (
	ScriptPreDump             = "pre-dump"
	ScriptNetworkLock         = "network-lock"
	ScriptNetworkUnlock       = "network-unlock"
	ScriptQueryExtFiles       = "query-ext-files"
	ScriptPostDump            = "post-dump"
	ScriptPreRestore          = "pre-restore"
	ScriptSetupNamespaces     = "setup-namespaces"
	ScriptPostSetupNamespaces = "post-setup-namespaces"
	ScriptPostRestore         = "post-restore"
	ScriptPreResume           = "pre-resume"
	ScriptPostResume          = "post-resume"
	ScriptOrphanPtsMaster     = "orphan-pts-master"
	ScriptStatusReady         = "status-ready"
)

// Notification is a moment at which CRIU waits for an answer.
type Notification struct {
	Script string
	// CRIU is the pid of the program as it was started. Its mount namespace is reached as /proc/CRIU/root.
	CRIU int
	// Pid of the restored root task in the caller's pid namespace. Known from
	// setup-namespaces on; 0 before it and during a dump.
	Pid int
	// File comes with orphan-pts-master only; it is closed when the callback returns.
	File *os.File
}

// Notify answers a notification: an error is a veto. It must return soon after
// ctx is done; [Run] waits for it.
type Notify func(ctx context.Context, n Notification) error

// Request is one call.
type Request struct {
	// Op is what an error starts with: "dump", "restore".
	Op string
	*rpc.CriuReq
	// Started is called once the program runs and before it is asked for anything, on the caller's
	// own thread; nil for nothing. Its error ends the program.
	Started func() error
	// Log is the path of the log that the request names, empty without one. An old file there is
	// removed first: it must not explain this call's failure.
	Log string
}

// maxMessage bounds one message of CRIU.
const maxMessage = 16 << 20

// exitTime is how long the program may take to end by itself after the conversation.
const exitTime = 2 * time.Second

// reapTime is how long killed processes may take to be gone.
const reapTime = 10 * time.Second

// Run starts cmd, which becomes `criu swrk` in the pid that it starts with, and
// carries out one request. The socket is put in front of cmd.ExtraFiles, so that
// the caller's own files begin at descriptor 4. cmd gets a process group of its
// own and, where cmd.Env is nil, the environment of [Env].
//
// It returns once the program was reaped. When ctx ends first, the program, its
// process group, its descendants and a restored root task are killed; the error
// then wraps ctx's and, for a deadline, engine.ErrDeadline. On any other error
// the same holds, so that nothing is left of a failed restore. The tree that is
// being dumped is never killed.
//
// The response comes with the error where CRIU gave one.
func Run(ctx context.Context, cmd *exec.Cmd, r Request, notify Notify) (*rpc.CriuResp, error) {
	if ctx.Err() != nil {
		return nil, &engine.Error{Op: r.Op, Err: fmt.Errorf("criu was not started: %w", over(ctx))}
	}
	c, err := start(cmd, r)
	if err != nil {
		return nil, err
	}
	defer c.close()
	stop := context.AfterFunc(ctx, c.interrupt)
	var resp *rpc.CriuResp
	var talkErr error
	if r.Started != nil {
		talkErr = r.Started()
	}
	if talkErr == nil {
		resp, talkErr = c.talk(ctx, notify)
	}
	c.conn.Close() // a program that waits for more requests ends now
	c.waitExit(ctx)
	stop()
	failed := talkErr != nil || ctx.Err() != nil || !resp.GetSuccess()
	if failed {
		c.kill()
	}
	waitErr := c.reap()
	if !failed && waitErr == nil {
		return resp, nil
	}
	c.holdRestored(resp)
	err = c.failure(ctx, resp, waitErr, talkErr)
	if rest := c.family.settle(reapTime); rest != nil {
		err = errors.Join(err, &engine.Error{Op: r.Op, Err: rest})
	}
	return resp, err
}

// call is one running request.
type call struct {
	req    Request
	cmd    *exec.Cmd
	conn   *net.UnixConn
	raw    syscall.RawConn
	stderr *os.File
	family *family
	// exited is closed when the program is a zombie, which keeps its pid and its group ours.
	exited chan struct{}
	gone   atomic.Bool
	// killed: the program's end was our doing and says nothing.
	killed atomic.Bool
	// lingered: the program had to be killed after its final answer.
	lingered bool
	started  time.Time
	// root is the restored root task, once CRIU named it.
	root int
}

func start(cmd *exec.Cmd, r Request) (*call, error) {
	c := &call{req: r, cmd: cmd, exited: make(chan struct{})}
	if r.Log != "" {
		if err := os.Remove(r.Log); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, c.wrap(fmt.Errorf("remove old log: %w", err))
		}
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, c.wrap(fmt.Errorf("make socket: %w", err))
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "criu client"), os.NewFile(uintptr(fds[1]), "criu")
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return nil, c.wrap(fmt.Errorf("use socket: %w", err))
	}
	c.conn = conn.(*net.UnixConn)
	if c.raw, err = c.conn.SyscallConn(); err != nil {
		c.close()
		return nil, c.wrap(err)
	}
	// What the program or the caller's stage says before there is a log. A file in memory, unlike a
	// pipe, needs no reader and cannot be held open by somebody else.
	fd, err := unix.MemfdCreate("criu-stderr", unix.MFD_CLOEXEC)
	if err != nil {
		c.close()
		return nil, c.wrap(fmt.Errorf("make memory file: %w", err))
	}
	c.stderr = os.NewFile(uintptr(fd), "criu stderr")
	if cmd.Stderr == nil {
		cmd.Stderr = c.stderr
	}
	if cmd.Stdout == nil { // CRIU says there which capability it lacks
		cmd.Stdout = c.stderr
	}
	if cmd.Env == nil {
		cmd.Env = Env()
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if !cmd.SysProcAttr.Setsid {
		cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pgid = true, 0
	}
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = time.Second
	}
	cmd.ExtraFiles = append([]*os.File{theirs}, cmd.ExtraFiles...)
	c.started = time.Now()
	if err := cmd.Start(); err != nil {
		c.close()
		return nil, c.wrap(fmt.Errorf("start %s: %w", cmd.Path, err))
	}
	c.family = &family{leader: cmd.Process.Pid}
	go c.watch()
	return c, nil
}

// watch waits for the program's end without reaping it, and wakes the reader: a
// descendant may still hold the other end of the socket, so its end is no sign.
func (c *call) watch() {
	for {
		err := unix.Waitid(unix.P_PID, c.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	c.gone.Store(true)
	close(c.exited)
	_ = c.conn.SetReadDeadline(time.Unix(1, 0))
}

// interrupt ends everything; the reader then fails.
func (c *call) interrupt() {
	c.kill()
	_ = c.conn.SetDeadline(time.Unix(1, 0))
}

func (c *call) kill() {
	if !c.gone.Load() {
		c.killed.Store(true)
	}
	c.family.kill()
}

// talk sends the request and answers notifications until the final response.
// A veto that CRIU ignores is an error all the same.
func (c *call) talk(ctx context.Context, notify Notify) (*rpc.CriuResp, error) {
	req := c.req.CriuReq
	if notify != nil {
		req = proto.Clone(req).(*rpc.CriuReq)
		if req.Opts == nil {
			req.Opts = &rpc.CriuOpts{ImagesDirFd: proto.Int32(-1)}
		}
		req.Opts.NotifyScripts = proto.Bool(true)
	}
	var veto error
	for {
		if err := c.send(req); err != nil {
			return nil, errors.Join(veto, err)
		}
		resp, file, err := c.receive()
		if err != nil {
			return nil, errors.Join(veto, err)
		}
		if resp.GetType() != rpc.CriuReqType_NOTIFY {
			closeFile(file)
			if resp.GetType() != c.req.GetType() && resp.GetSuccess() {
				return resp, fmt.Errorf("criu answered %s to %s", resp.GetType(), c.req.GetType())
			}
			return resp, veto
		}
		n := Notification{Script: resp.GetNotify().GetScript(), CRIU: c.cmd.Process.Pid, File: file}
		if pid := int(resp.GetNotify().GetPid()); pid > 1 {
			c.setRoot(pid)
		}
		n.Pid = c.root
		err = errors.New("nobody answers notifications")
		if notify != nil {
			err = notify(ctx, n)
		}
		if err == nil {
			err = ctx.Err() // told to go on when the time is up, criu could end a tree before it is killed itself
		}
		closeFile(file)
		if err != nil && veto == nil {
			veto = &VetoError{Script: n.Script, Err: err}
		}
		req = &rpc.CriuReq{Type: rpc.CriuReqType_NOTIFY.Enum(), NotifySuccess: proto.Bool(err == nil)}
	}
}

// setRoot remembers the restored root task and holds it, so that no other process can be taken for it.
func (c *call) setRoot(pid int) {
	if c.root == 0 {
		c.root = pid
		c.family.hold(pid)
	}
}

func closeFile(f *os.File) {
	if f != nil {
		f.Close()
	}
}

func (c *call) send(req *rpc.CriuReq) error {
	data, err := proto.Marshal(req)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	if _, err := c.conn.Write(data); err != nil {
		return fmt.Errorf("send %s: %w", req.GetType(), err)
	}
	return nil
}

var errNoAnswer = errors.New("criu ended without an answer")

// receive returns the next message, whole, and the file that came with it.
func (c *call) receive() (*rpc.CriuResp, *os.File, error) {
	var data []byte
	var file *os.File
	var readErr error
	again := false // the kernel had no message
	attempt := func(fd uintptr) bool {
		data, file, readErr = readMessage(int(fd))
		again = errors.Is(readErr, unix.EAGAIN)
		return !again
	}
	if err := c.raw.Read(attempt); err != nil {
		if !c.gone.Load() {
			return nil, nil, fmt.Errorf("read answer: %w", err)
		}
		// The program is gone and the deadline has woken us: take what it still sent.
		if err := c.raw.Control(func(fd uintptr) { attempt(fd) }); err != nil {
			return nil, nil, fmt.Errorf("read answer: %w", err)
		}
	}
	switch {
	case again:
		return nil, nil, errNoAnswer
	case errors.Is(readErr, unix.ECONNRESET):
		return nil, nil, errNoAnswer
	case readErr != nil:
		return nil, nil, fmt.Errorf("read answer: %w", readErr)
	case len(data) == 0:
		closeFile(file)
		return nil, nil, errNoAnswer
	}
	resp := &rpc.CriuResp{}
	if err := proto.Unmarshal(data, resp); err != nil {
		closeFile(file)
		return nil, nil, fmt.Errorf("decode answer of %d bytes: %w", len(data), err)
	}
	return resp, file, nil
}

// readMessage takes one message off a SOCK_SEQPACKET socket, whose length is
// asked for first: a buffer that is too short would lose the rest. No data is
// the end of the stream.
func readMessage(fd int) ([]byte, *os.File, error) {
	size, _, err := ignoringEINTR(func() (int, int, error) {
		n, _, err := unix.Recvfrom(fd, nil, unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		return n, 0, err
	})
	if err != nil {
		return nil, nil, err
	}
	if size > maxMessage {
		return nil, nil, fmt.Errorf("message of %d bytes, at most %d are allowed", size, maxMessage)
	}
	data, oob := make([]byte, size), make([]byte, unix.CmsgSpace(4*4))
	n, oobn, err := ignoringEINTR(func() (int, int, error) {
		n, oobn, _, _, err := unix.Recvmsg(fd, data, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		return n, oobn, err
	})
	if err != nil {
		return nil, nil, err
	}
	file, err := oneFile(oob[:oobn])
	return data[:n], file, err
}

// oneFile is the first descriptor of a control message; others are closed.
func oneFile(oob []byte) (*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("parse control message: %w", err)
	}
	var file *os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // other control data than descriptors
		}
		for _, fd := range fds {
			if file == nil {
				file = os.NewFile(uintptr(fd), "criu notification")
			} else {
				unix.Close(fd)
			}
		}
	}
	return file, nil
}

func ignoringEINTR(f func() (int, int, error)) (int, int, error) {
	for {
		n, m, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, m, err
		}
	}
}

// waitExit waits for the program's own end. After its final answer it has
// nothing left to do, and after a broken conversation nobody to talk to.
func (c *call) waitExit(ctx context.Context) {
	select {
	case <-c.exited:
	case <-ctx.Done():
	case <-time.After(exitTime):
		c.lingered = true
		c.kill()
	}
}

// reap collects the program, which has ended or was killed.
func (c *call) reap() error {
	c.family.retire()
	select {
	case <-c.exited:
	case <-time.After(reapTime):
		// In an uninterruptible sleep. It is collected when it wakes; nobody can do more.
		go func() { <-c.exited; _ = c.cmd.Wait() }()
		return fmt.Errorf("process %d is still there %s after SIGKILL", c.cmd.Process.Pid, reapTime)
	}
	return c.cmd.Wait()
}

// holdRestored takes hold of the root task of a failed restore that nobody was notified of.
func (c *call) holdRestored(resp *rpc.CriuResp) {
	pid := int(resp.GetRestore().GetPid())
	if c.req.GetType() == rpc.CriuReqType_RESTORE && c.req.Opts.GetRstSibling() && pid > 1 && isChild(pid) {
		c.setRoot(pid)
	}
}

func (c *call) close() {
	if c.conn != nil {
		c.conn.Close()
	}
	closeFile(c.stderr)
	if c.family != nil {
		c.family.release()
	}
}

// openDir opens a directory that CRIU reaches as /proc/OURPID/fd/N, whatever its own mount namespace is.
func openDir(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open directory", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Clean(path)), nil
}

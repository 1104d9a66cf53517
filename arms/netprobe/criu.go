package netprobe

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// criu tries CRIU alone: one process with namespaces of its own, on a root of its
// own, since CRIU would have to carry the mounts of the host otherwise.
func (p *probe) criu(ctx context.Context, l *bench.NetworkLayer, tool criu.Tool) (err error) {
	s, err := p.newSite(l.Layer)
	if err != nil {
		return err
	}
	defer undo(ctx, &err, s.close)
	root, err := s.makeRoot(ctx)
	if err != nil {
		return err
	}
	pid, err := s.child(root)
	if err != nil {
		return err
	}
	ok, err := p.before(l, pid)
	if err != nil || !ok {
		return err
	}
	images, err := s.mkdir("images")
	if err != nil {
		return err
	}
	for _, dir := range []string{"dump", "restore", "merged"} {
		if _, err := s.mkdir(dir); err != nil {
			return err
		}
	}
	dump := criu.DumpOptions{Pid: pid, ImagesDir: images, WorkDir: filepath.Join(s.dir, "dump"), LogLevel: criu.LogInfo}
	if err := s.besideCRIU(tool, func() error { return criu.Dump(ctx, s.command(tool), dump, nil) }); err != nil {
		return p.keepLog(filepath.Join(dump.WorkDir, "dump.log"), err)
	}
	if err := s.ended(ctx, pid); err != nil {
		return err
	}
	network, err := criu.OpenImages(images).Network()
	if err != nil {
		return err
	}
	l.Dumped = parts(network)
	if err := p.at(l.Layer, stageDumped, images); err != nil {
		return err
	}
	if err := s.intend("restored process of the network probe"); err != nil {
		return err
	}
	restore := criu.RestoreOptions{Root: filepath.Join(s.dir, "merged"), ImagesDir: images, WorkDir: filepath.Join(s.dir, "restore"), Sibling: true, LogLevel: criu.LogInfo}
	err = s.besideCRIU(tool, func() (err error) {
		if err := unix.Mount(root, restore.Root, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind root: %w", err)
		}
		pid, err = criu.Restore(ctx, s.command(tool), restore, nil)
		return err
	})
	if err != nil {
		return p.keepLog(filepath.Join(restore.WorkDir, "restore.log"), err)
	}
	if err := s.bind(pid); err != nil {
		return err
	}
	id, n, err := inside(pid)
	if err != nil {
		return err
	}
	judge(l, id, n)
	if missing := carries(network); l.Outcome == Lost && len(missing) > 0 {
		l.LostAt, l.Reason = atDump, "criu dumped no "+strings.Join(missing, ", no ")
	}
	return nil
}

// command is criu, born in the site's group.
func (s *site) command(tool criu.Tool) *exec.Cmd {
	cmd := tool.Command()
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: s.group.FD()}
	return cmd
}

// child starts the process that is dumped, with nothing of ours.
func (s *site) child(root string) (pid int, err error) {
	if err := s.intend("process of the network probe"); err != nil {
		return 0, err
	}
	cmd := &exec.Cmd{
		Path: sleeper, Args: []string{"sleep", "infinity"}, Dir: "/", Env: []string{},
		// A session of its own: CRIU cannot dump one whose leader is outside of the pid namespace.
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Setsid: true, UseCgroupFD: true, CgroupFD: s.group.FD()},
	}
	err = tree.Apart(unix.CLONE_NEWNET, func() error {
		if err := enter(root); err != nil {
			return err
		}
		stdio, err := os.OpenFile("/stdio", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer stdio.Close()
		cmd.Stdin, cmd.Stdout, cmd.Stderr = stdio, stdio, stdio
		return cmd.Start()
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", sleeper, err)
	}
	pid = cmd.Process.Pid
	if err := cmd.Process.Release(); err != nil { // the site waits for it
		return 0, err
	}
	return pid, s.bind(pid)
}

// enter makes a folder the root of the calling thread's mount namespace, and the only mount in it.
func enter(root string) error {
	if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind root: %w", err)
	}
	if err := unix.Chdir(root); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach old root: %w", err)
	}
	return unix.Chdir("/")
}

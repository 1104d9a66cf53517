package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// probeGroup makes a group, starts a process inside it and ends it with
// cgroup.kill, as a run's ownership cgroup does.
func probeGroup(ctx context.Context, dir string) (err error) {
	group, err := os.MkdirTemp(dir, prefix)
	if err != nil {
		return fmt.Errorf("make group: %w", err)
	}
	defer func() { err = errors.Join(err, removeGroup(group)) }()
	if err := unix.Access(filepath.Join(group, "cgroup.kill"), unix.W_OK); err != nil {
		return fmt.Errorf("the kernel has no cgroup.kill: %w", err)
	}
	fd, err := unix.Open(group, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: group, Err: err}
	}
	defer unix.Close(fd)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a process inside the group: %w", err)
	}
	held, rerr := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	kerr := os.WriteFile(filepath.Join(group, "cgroup.kill"), []byte("1"), 0)
	if kerr != nil {
		cancel() // which kills it all the same
	}
	_ = cmd.Wait() // how it ended is looked at below
	ended, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case rerr != nil:
		return fmt.Errorf("read cgroup.procs: %w", rerr)
	case kerr != nil:
		return fmt.Errorf("write cgroup.kill: %w", kerr)
	case strings.TrimSpace(string(held)) != strconv.Itoa(cmd.Process.Pid):
		return fmt.Errorf("a process that was started inside the group is not there: %w", errNotSeen)
	case ctx.Err() != nil || !ended.Signaled() || ended.Signal() != syscall.SIGKILL:
		return fmt.Errorf("cgroup.kill did not end the process: %w", errNotSeen)
	}
	return nil
}

// removeGroup waits for the kernel to let go of the dead.
func removeGroup(group string) error {
	var err error
	for range 200 {
		if err = unix.Rmdir(group); err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("remove group %s: %w", group, err)
}

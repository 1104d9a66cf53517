package tree

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/arms/armtest"
	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/engine"
)

// What is in the group and descends from us is waited for also while it is no
// zombie yet; what is in another group is left alone.
func TestReapStrays(t *testing.T) {
	ws, done := armtest.Workspace(t, t.TempDir(), t.TempDir())
	owner, err := cgroup.OpenOwner(ws)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	start := func(name string) (*cgroup.Group, *exec.Cmd) {
		g, err := owner.Group(name)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sh", "-c", "sleep 600 & wait")
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: g.FD()}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return g, cmd
	}
	group, _ := start("slot-0")
	other, stays := start("slot-01")

	short, stop := context.WithTimeoutCause(ctx, 50*time.Millisecond, engine.ErrDeadline)
	defer stop()
	if err := ReapStrays(short, group); !errors.Is(err, engine.ErrDeadline) {
		t.Errorf("a tree that lives: %v", err)
	}
	killed := make(chan error, 1)
	go func() {
		time.Sleep(50 * time.Millisecond)
		killed <- group.Kill(ctx)
	}()
	if err := ReapStrays(ctx, group); err != nil {
		t.Error(err)
	}
	if err := <-killed; err != nil {
		t.Error(err)
	}
	if children, more, err := strays([]*cgroup.Group{group}); err != nil || len(children) > 0 || more {
		t.Errorf("children %v are left, %v, %v", children, more, err)
	}
	if ended, err := Ended(stays.Process.Pid); err != nil || ended {
		t.Errorf("a child in another group: %v, %v", ended, err)
	}
	if err := errors.Join(other.Kill(ctx), ReapStrays(ctx, other), group.Remove(ctx), other.Remove(ctx), owner.Remove(ctx), ws.Release(ctx), done()); err != nil {
		t.Error(err)
	}
}

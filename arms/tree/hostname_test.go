package tree

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
)

// The name is set in the namespace of the slot; where that is the host's, nothing is.
func TestSetHostname(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	child := func(flags uintptr) *Tenancy {
		cmd := exec.Command("sleep", "60")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return &Tenancy{Pid: cmd.Process.Pid}
	}
	if err := child(0).SetHostname("slot", "drums-other"); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("in the host's namespace: %v", err)
	}
	own := child(syscall.CLONE_NEWUTS)
	if err := own.SetHostname("slot", "drums-own"); err != nil {
		t.Fatal(err)
	}
	name := ""
	err = thread.Run(func() error {
		fd, err := unix.PidfdOpen(own.Pid, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Setns(fd, unix.CLONE_NEWUTS); err != nil {
			return err
		}
		name, err = os.Hostname()
		return err
	})
	if err != nil || name != "drums-own" {
		t.Errorf("the slot is %q, %v", name, err)
	}
	if now, err := os.Hostname(); err != nil || now != host {
		t.Errorf("the host is %q, was %q, %v", now, host, err)
	}
	if err := (&Tenancy{}).SetHostname("slot", "drums-none"); !errors.Is(err, engine.ErrDead) {
		t.Errorf("without a tree: %v", err)
	}
}

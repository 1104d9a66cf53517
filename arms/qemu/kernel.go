package qemu

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/initrd"
	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
)

// noRoot is the last word of a kernel that came through all of its own start and was
// given no root file system (init/do_mounts.c); panic=-1 then resets the machine.
const noRoot = "VFS: Unable to mount root fs"

// kernelTime is how long a kernel may take to come there; emulated it takes some seconds.
const kernelTime = 60 * time.Second

// Boots has a Linux kernel run with an accelerator, without a disk, up to where it
// misses its root file system. A guest of a few instructions may run (Accelerator)
// where a kernel, with its interrupts and timers, hangs. engine.ErrDeadline where it
// does not get there; the error has the kernel's and QEMU's last words.
func (t Tool) Boots(ctx context.Context, accel, kernel string) error {
	return thread.Run(func() error { return t.boots(ctx, accel, kernel) }) // what it starts dies with us
}

func (t Tool) boots(ctx context.Context, accel, kernel string) error {
	ctx, cancel := context.WithTimeout(ctx, kernelTime)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, t.Path, "-machine", "q35,accel="+accel, "-cpu", processor(accel), "-m", "256M",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio", "-kernel", kernel, "-append", initrd.CommandLine)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = environment, &said, &said, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	switch {
	case err == nil && strings.Contains(said.String(), noRoot):
		return nil
	case ctx.Err() != nil:
		err = fmt.Errorf("%w: the kernel does not get to its root file system: %w", engine.ErrDeadline, context.Cause(ctx))
	case err == nil:
		err = errors.New("the kernel ends before it looks for its root file system")
	}
	if last := lastLine(said.String()); last != "" {
		err = fmt.Errorf("%w: %.200q", err, last)
	}
	return err
}

// Kernel is the one that was last taken out of an image for machines; empty where none was.
func Kernel(state string) string {
	kernels, _ := filepath.Glob(filepath.Join(state, "cache", Kind, "*.kernel"))
	if len(kernels) == 0 {
		return ""
	}
	taken := func(path string) int64 {
		info, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return info.ModTime().UnixNano()
	}
	return slices.MaxFunc(kernels, func(a, b string) int { return cmp.Compare(taken(a), taken(b)) })
}

package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
)

func number(n int64) *int64 { return &n }

// onlyNull are rules that let tasks open /dev/null and nothing else.
func onlyNull() []specs.LinuxDeviceCgroup {
	return []specs.LinuxDeviceCgroup{
		{Allow: false, Type: "a", Major: number(-1), Minor: number(-1), Access: "rwm"},
		{Allow: true, Type: "c", Major: number(1), Minor: number(3), Access: "rwm"},
	}
}

// The kernel keeps root in the group from a device of the host's, by a node of the
// host's and by one that it makes; outside of it nothing changes.
func TestGuardKeepsRootFromDevices(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	l := limits(t, ws, o, small)
	if err := l.Guard(o, onlyNull()); err != nil {
		t.Fatal(err)
	}
	have, err := l.Devices()
	if err != nil || !slices.Equal(have, []string{"c 1:3 rwm"}) {
		t.Errorf("%q, %v", have, err)
	}
	node := filepath.Join(t.TempDir(), "kmsg")
	err = thread.Run(func() error {
		leave, err := l.JoinThread()
		if err != nil {
			return err
		}
		for path, want := range map[string]error{"/dev/null": nil, "/dev/kmsg": unix.EPERM} {
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("open %s: %v, want %v", path, err, want)
			}
			if err == nil {
				unix.Close(fd)
			}
		}
		if err := unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 11))); !errors.Is(err, unix.EPERM) {
			t.Errorf("make a node of kmsg: %v", err)
		}
		return leave()
	})
	if err != nil {
		t.Fatal(err)
	}
	if f, err := os.Open("/dev/kmsg"); err != nil {
		t.Errorf("outside of the group: %v", err)
	} else {
		f.Close()
	}
}

// Limits without a guard read as unknown, and one that says less than the kernel's is refused.
func TestGuardIsReadBack(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	l := limits(t, ws, o, small)
	if _, err := l.Devices(); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("without a guard: %v", err)
	}
	// Without the rule that denies all, all is allowed.
	if err := l.Guard(o, onlyNull()[1:]); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("a guard that denies nothing: %v", err)
	}
}

// The program that judges on v2, on a real group of v2: this host has one, without controllers.
func TestGuardByProgram(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := programsOn(g.dir); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("without a program: %v", err)
	}
	if err := attach(g.dir, onlyNull()); err != nil {
		t.Fatal(err)
	}
	v2 := &Limits{kernel: v2{}, places: map[string]place{"": {dir: g.Path()}}}
	have, err := v2.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if want, err := v2.expected(onlyNull()); err != nil || !slices.Equal(have, want) {
		t.Errorf("%q on the group, %q is expected, %v", have, want, err)
	}
	if other, err := v2.expected(onlyNull()[:1]); err != nil || slices.Equal(have, other) {
		t.Errorf("other rules read back the same: %q, %v", other, err)
	}
	try := func(fd int) string {
		cmd := exec.Command("/bin/sh", "-c", "for d in null kmsg; do if : < /dev/$d; then echo opened $d; fi; done")
		if fd >= 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
		}
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if said := try(g.FD()); !strings.Contains(said, "opened null") || strings.Contains(said, "opened kmsg") || !strings.Contains(said, "not permitted") {
		t.Errorf("in the group: %s", said)
	}
	if said := try(-1); !strings.Contains(said, "opened kmsg") {
		t.Errorf("outside of it: %s", said)
	}
	if err := g.Kill(within(t, 5*time.Second)); err != nil {
		t.Error(err)
	}
}

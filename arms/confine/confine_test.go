package confine

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// A task with a capability more than the kept ones is named; so is a device.
func TestWhatReachesFurtherIsNamed(t *testing.T) {
	sets, err := Read([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	if len(sets.Beyond) == 0 || !strings.Contains(sets.Beyond[0], "number 21") {
		t.Errorf("this test has CAP_SYS_ADMIN, and that reads as %+v", sets)
	}
	if have := Allowed([]string{"c 1:3 rwm", "c *:* m", "b 8:0 rwm", "a *:* rwm"}); !slices.Equal(have, []string{`device rule "b 8:0 rwm"`, `device rule "a *:* rwm"`}) {
		t.Errorf("%q", have)
	}
	// One that is not there is left out: no process has a number beyond the kernel's greatest.
	if gone, err := Read([]int{1 << 30}); err != nil || len(gone.Beyond) > 0 {
		t.Errorf("%+v, %v", gone, err)
	}
}

// The lists say what they mean, and nothing in them reaches a disk, a module or another process.
func TestLists(t *testing.T) {
	for _, never := range []uint{unix.CAP_SYS_ADMIN, unix.CAP_SYS_MODULE, unix.CAP_SYS_RAWIO, unix.CAP_SYS_PTRACE, unix.CAP_MKNOD,
		unix.CAP_DAC_READ_SEARCH, unix.CAP_SYS_BOOT, unix.CAP_SYS_TIME, unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYSLOG, unix.CAP_SYS_RESOURCE} {
		if KeptMask()&(1<<never) != 0 {
			t.Errorf("capability %d is kept", never)
		}
	}
	for _, c := range Kept {
		if c.Why == "" || !strings.HasPrefix(c.Name, "CAP_") || Names(1<<c.Bit) != c.Name {
			t.Errorf("%+v", c)
		}
	}
	for _, d := range Devices {
		if d.Why == "" || d.Major != 1 && d.Major != 5 && d.Major != 136 {
			t.Errorf("%+v", d)
		}
	}
	for _, p := range ReadOnly {
		if p.Why == "" || !strings.HasPrefix(p.At, "/proc/") {
			t.Errorf("%+v", p)
		}
	}
	if r := DeviceRules(); r[0].Allow || r[0].Type != "a" || len(r) != len(Devices)+1 {
		t.Errorf("%+v", r)
	}
}

// Whoever is never confined is waited for no longer than its caller says.
func TestWait(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Wait(ctx, os.Getpid()); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("%v", err)
	}
	if err := Wait(t.Context(), 1<<30); err != nil {
		t.Errorf("one that has ended: %v", err)
	}
}

package drums

import (
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// strangeNames is a service that keeps a file open, mapped and locked whose name is no text, below a folder that
// names it with a backslash, and a link to it.
const strangeNames = `
import fcntl, mmap, os, time
d = b"/var/tmp/back\\slash\n"; os.mkdir(d)
f = os.open(d + b"/\xff\xfe", os.O_RDWR | os.O_CREAT); os.write(f, b"x" * 4096); os.symlink(d + b"/\xff\xfe", b"/var/tmp/\xc3")
m = mmap.mmap(f, 4096)
fcntl.lockf(f, fcntl.LOCK_EX)
open("/run/strange.ready", "w").close()
while True: time.sleep(1)
`

// A guest names its files as it likes: such a name goes through handle, lock repair, copy-up and every gate as the bytes it is.
func TestNamesThatAreNoText(t *testing.T) {
	m := manifest(t, "rollouts=1")
	m.Guest.Services = append(m.Guest.Services, bench.Service{Name: "strange", Exec: []string{"/usr/bin/python3", "-c", strangeNames}, Ready: "/run/strange.ready"})
	arm := &hasty{Arm: newArm(t, m), fails: -1}
	_, by, r := execute(t, arm, m, "restore")
	if r.Verdict != engine.RunPassed {
		t.Errorf("%s: %s", r.Verdict, r.Reason)
		for step, got := range by {
			if got.Error != nil {
				t.Errorf("%s: %+v", step, got.Error)
			}
		}
	}
	const name = "/var/tmp/back\\x5cslash\n/\\xff\\xfe"
	found := 0
	for _, l := range arm.handle.Locks {
		if l.Path == name && l.Mapped {
			found++
		}
	}
	for _, path := range arm.handle.CopyUp {
		if path == name {
			found++
		}
	}
	if found != 2 {
		t.Errorf("locks %+v and copy-up %q name it %d times", arm.handle.Locks, arm.handle.CopyUp, found)
	}
}

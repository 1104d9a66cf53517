package crashtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A namespace that is lived in, open, or mounted is seen; another one that got its number is not it, where the
// kernel can tell them apart.
func TestNamespaceHolders(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root")
	}
	in, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUTS, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // whose death the signal is about
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	t.Cleanup(end)
	path := fmt.Sprintf("/proc/%d/ns/uts", cmd.Process.Pid)
	link, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	id := namespaceID(path)
	if id != 0 && id == namespaceID("/proc/self/ns/uts") {
		t.Fatalf("two namespaces have the id %d", id)
	}
	looks := func(what string, n namespace, want string) {
		t.Helper()
		n.of = "sleep"
		have, err := namespaceHolders(map[string]namespace{link: n})
		if err != nil {
			t.Fatal(err)
		}
		if want == "" && len(have) > 0 || want != "" && !slices.ContainsFunc(have, func(h string) bool { return strings.HasSuffix(h, want) }) {
			t.Errorf("%s: %q, want %q", what, have, want)
		}
	}
	looks("lived in", namespace{id: id}, "is held by "+path)
	looks("on a kernel that has no ids", namespace{}, "is held by "+path)
	if id != 0 {
		looks("another of the same number", namespace{id: id + 1<<40}, "")
	}
	open, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	mount := filepath.Join(in, "ns")
	if err := os.WriteFile(mount, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(path, mount, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(mount, unix.MNT_DETACH) })
	end()
	looks("open", namespace{id: id}, fmt.Sprintf("is held by /proc/%d/fd/%d", os.Getpid(), open.Fd()))
	open.Close()
	looks("mounted", namespace{id: id}, "is mounted on "+mount)
	if id != 0 {
		looks("another one is mounted", namespace{id: id + 1<<40}, "")
	}
	if err := unix.Unmount(mount, 0); err != nil {
		t.Fatal(err)
	}
	looks("gone", namespace{id: id}, "")
}

package hostview

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func take(t testing.TB, scope Scope) Snapshot {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("hostview tests need root")
	}
	s, err := Take(context.Background(), scope)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fails are the findings that count, one line each.
func fails(findings []bench.Finding) []string {
	var out []string
	for _, f := range findings {
		if f.Verdict == engine.Fail {
			out = append(out, f.Subject+" "+f.Text+" "+f.Have)
		}
	}
	return out
}

// expect wants exactly the findings whose lines begin so.
func expect(t *testing.T, findings []bench.Finding, begins ...string) {
	t.Helper()
	have := fails(findings)
	if len(have) != len(begins) {
		t.Fatalf("have %q, want %q", have, begins)
	}
	for i, b := range begins {
		if !strings.HasPrefix(have[i], b) {
			t.Errorf("have %q, want %q", have[i], b)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ownCgroup makes a group of ours on the v2 hierarchy below our own group.
func ownCgroup(t *testing.T, id string) string {
	t.Helper()
	s := take(t, Scope{})
	own := s.Processes[findSelf(t, s)].Cgroup
	for m := range s.Mounts {
		if m.Type != "cgroup2" {
			continue
		}
		dir := filepath.Join(m.Point, strings.TrimPrefix(own, m.Root), "drums-"+id)
		must(t, os.Mkdir(dir, 0o755))
		t.Cleanup(func() { unix.Rmdir(dir) })
		return dir
	}
	t.Fatal("no cgroup2 hierarchy is mounted")
	return ""
}

func findSelf(t *testing.T, s Snapshot) ProcessID {
	for id := range s.Processes {
		if id.Pid == os.Getpid() {
			return id
		}
	}
	t.Fatal("we are not in our own snapshot")
	return ProcessID{}
}

func TestNothingChanged(t *testing.T) {
	scope := Scope{ID: "0123456789ab", Paths: []string{t.TempDir()}}
	a := take(t, scope)
	if len(a.Mounts) == 0 || len(a.Processes) == 0 || len(a.Cgroups) == 0 || len(a.NetNamespaces) == 0 || a.Links["lo"].Type == "" {
		t.Errorf("a part of the host is empty: %+v", a)
	}
	expect(t, Diff(a, take(t, scope)))
	findings := Diff(a, a)
	if len(findings) != 0 {
		t.Errorf("a host differs from itself: %+v", findings)
	}
}

func TestMountLeftBehind(t *testing.T) {
	dir := t.TempDir()
	point := filepath.Join(dir, "point")
	must(t, os.Mkdir(point, 0o755))
	scope := Scope{ID: "0123456789ab", Paths: []string{dir}}
	before := take(t, scope)
	must(t, unix.Mount("drums", point, "tmpfs", 0, ""))
	defer unix.Unmount(point, unix.MNT_DETACH)
	once := take(t, scope)
	expect(t, Diff(before, once), "mount "+point+" is there and was not tmpfs drums")
	// The same twice on top of each other is one more.
	must(t, unix.Mount("drums", point, "tmpfs", 0, ""))
	defer unix.Unmount(point, unix.MNT_DETACH)
	expect(t, Diff(once, take(t, scope)), "mount "+point+" is there and was not")
	// Somebody else's, unless nobody else is here.
	foreign := take(t, Scope{ID: scope.ID})
	expect(t, Diff(before, foreign))
	foreign.Scope.Exclusive = true
	if have := fails(Diff(before, foreign)); !strings.Contains(strings.Join(have, "\n"), point) {
		t.Errorf("on an exclusive host: %q", have)
	}
	// Gone, or with other options, is a change too.
	must(t, unix.Mount("", point, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	expect(t, Diff(once, take(t, scope)), "mount "+point)
	must(t, unix.Unmount(point, 0))
	must(t, unix.Unmount(point, 0))
	expect(t, Diff(once, take(t, scope)), "mount "+point+" was there and is not")
}

func TestProcessesLeftBehind(t *testing.T) {
	id := "fedcba987654"
	group := ownCgroup(t, id)
	scope := Scope{ID: id}
	before := take(t, scope)
	child := exec.Command("sleep", "100")
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, child.Start())
	defer child.Wait()
	defer child.Process.Kill()
	pid := child.Process.Pid
	expect(t, Diff(before, take(t, scope)), fmt.Sprintf("process %d is there and was not sleep", pid))
	during := take(t, scope)
	must(t, child.Process.Kill())
	await(t, func() bool { return strings.Contains(stat(pid), ") Z ") })
	expect(t, Diff(during, take(t, scope)), fmt.Sprintf("process %d ended and was not waited for", pid))
	child.Wait()
	expect(t, Diff(during, take(t, scope))) // its end is nothing that is left
	expect(t, Diff(before, take(t, scope)))

	// An orphan is no descendant any more: in our group it is ours, elsewhere it is foreign.
	in, out := orphan(t, group), orphan(t, "")
	findings := Diff(before, take(t, scope))
	expect(t, findings, fmt.Sprintf("process %d is there and was not sleep", in))
	if !slices.ContainsFunc(findings, func(f bench.Finding) bool { return f.Verdict == engine.Pass && f.Subject == "processes" }) {
		t.Errorf("the foreign process %d is not listed: %+v", out, findings)
	}
	with := take(t, scope)
	must(t, os.WriteFile(group+"/cgroup.kill", []byte("1"), 0))
	await(t, func() bool { s := stat(in); return s == "" || strings.Contains(s, ") Z ") })
	if f := fails(Diff(with, take(t, scope))); len(f) != 1 || !strings.HasPrefix(f[0], fmt.Sprintf("process %d ", in)) {
		t.Errorf("the process %d of our group has ended: %q", in, f)
	}
	// In the group of another run it is foreign.
	expect(t, Diff(before, take(t, Scope{ID: "000000000000"})))
}

// orphan starts a process whose parent ends at once, and returns its pid.
func orphan(t *testing.T, group string) int {
	t.Helper()
	cmd := exec.Command("sh", "-c", "sleep 100 >/dev/null 2>&1 & echo $!")
	if group != "" {
		dir, err := os.Open(group)
		must(t, err)
		defer dir.Close()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	}
	out, err := cmd.Output()
	must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	must(t, err)
	fd, err := unix.PidfdOpen(pid, 0)
	must(t, err)
	t.Cleanup(func() {
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		unix.Close(fd)
		// Somebody else reaps it; the group can be removed once it is dead.
		await(t, func() bool { s := stat(pid); return s == "" || strings.Contains(s, ") Z ") })
	})
	await(t, func() bool { return strings.Contains(stat(pid), "(sleep)") })
	return pid
}

func stat(pid int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return string(data)
}

func await(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never came true")
		}
	}
}

func TestCgroupLeftBehind(t *testing.T) {
	id := "abcdef012345"
	scope := Scope{ID: id}
	before := take(t, scope)
	group := ownCgroup(t, id)
	must(t, os.Mkdir(group+"/slot-a", 0o755))
	defer unix.Rmdir(group + "/slot-a")
	expect(t, Diff(before, take(t, scope)), "control group "+group+" is there", "control group "+group+"/slot-a is there")
	// A similar name is somebody else's.
	expect(t, Diff(before, take(t, Scope{ID: id[:6]})))
}

func TestLoopDeviceLeftBehind(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "backing")
	must(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
	scope := Scope{ID: "0123456789ab", Paths: []string{dir}}
	before := take(t, scope)
	out, err := exec.Command("losetup", "--find", "--show", "--read-only", file).Output()
	must(t, err)
	dev := strings.TrimSpace(string(out))
	detached := false
	detach := func() {
		if !detached {
			detached = true
			must(t, exec.Command("losetup", "--detach", dev).Run())
		}
	}
	defer detach()
	expect(t, Diff(before, take(t, scope)), "loop device "+filepath.Base(dev)+" is there and was not "+file)
	detach()
	await(t, func() bool { return len(fails(Diff(before, take(t, scope)))) == 0 })
}

func TestNetworkNamespaceLeftBehind(t *testing.T) {
	scope := Scope{ID: "0123456789ab"}
	before := take(t, scope)
	cmd := exec.Command("sleep", "100")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	expect(t, Diff(before, take(t, scope)), fmt.Sprintf("process %d", cmd.Process.Pid), "network namespace ")
}

func TestLinksAndVerdicts(t *testing.T) {
	lo := Link{Type: "device", Index: 1}
	before := Snapshot{Links: map[string]Link{"lo": lo, "eth7": {Type: "veth", Index: 7}}}
	after := Snapshot{Links: map[string]Link{"lo": lo, "eth7": {Type: "veth", Index: 9}, "eth8": {Type: "veth", Index: 10}}, Scope: Scope{Exclusive: true}}
	expect(t, Diff(before, after), "link eth7 is another one", "link eth8 is there")
	after.Scope.Exclusive = false
	expect(t, Diff(before, after))
	if len(Diff(before, after)) != 2 {
		t.Error("foreign changes are not listed")
	}
}

func TestTakeStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Take(ctx, Scope{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func BenchmarkTake(b *testing.B) {
	for b.Loop() {
		take(b, Scope{})
	}
}

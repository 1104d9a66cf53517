package main

import (
	"bytes"
	"cmp"
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

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// rootVariable names a folder with low, up, work and m: the slot then has an
// overlay of its own for a root, as the drums arm makes it.
const rootVariable = "DRUMS_TEST_ROOT"

func mountOverlay(base, more string) error {
	options := fmt.Sprintf("lowerdir=%s/low,upperdir=%s/up,workdir=%s/work,uuid=null%s", base, base, base, more)
	return unix.Mount("overlay", base+"/m", "overlay", 0, options)
}

// enterRoot makes the overlay the root of the calling process's mount namespace
// and opens the three descriptors inside it.
func enterRoot(base string) error {
	if err := mountOverlay(base, ",index=on,nfs_export=on"); err != nil {
		return fmt.Errorf("mount overlay: %w", err)
	}
	if err := os.Chdir(base + "/m"); err != nil {
		return err
	}
	for _, m := range [][2]string{{"proc", "proc"}, {"sysfs", "sys"}, {"tmpfs", "dev"}} {
		if err := unix.Mount(m[0], m[1], m[0], unix.MS_NOSUID, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	if err := unix.Mknod("dev/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	for fd := range 3 {
		if err := unix.Dup3(null, fd, 0); err != nil {
			return err
		}
	}
	return nil
}

// restoreStage is the test binary in a fresh mount namespace: it mounts the
// overlay again and becomes criu.
func restoreStage(argv []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mountOverlay(os.Getenv(rootVariable), ""); err != nil {
		return err
	}
	return unix.Exec(argv[0], argv, []string{"PATH=" + searchPath})
}

func criu(t *testing.T) string {
	t.Helper()
	path := cmp.Or(os.Getenv("DRUMSBENCH_CRIU"), cmp.Or(os.Getenv("DRUMSBENCH_STATE"), "/var/lib/drumsbench")+"/criu/current/bin/criu")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no criu: %v; run scripts/setup", err)
	}
	return path
}

// The program comes back from CRIU with its memory, and does all that it did
// before: answer, start, end trees, reap.
func TestRestoredByCRIU(t *testing.T) {
	tool := criu(t)
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatalf("no busybox: %v; run scripts/setup", err)
	}
	base := t.TempDir()
	for _, dir := range []string{"low/bin", "low/proc", "low/sys", "low/dev", "low/run", "low/root", "up", "work", "m", "img"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, from := range map[string]string{"guestd": program(t), "busybox": busybox} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(base, "low/bin", name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, applet := range []string{"sh", "sleep", "true", "cat", "touch", "setsid"} {
		if err := os.Symlink("busybox", filepath.Join(base, "low/bin", applet)); err != nil {
			t.Fatal(err)
		}
	}
	s := launch(t, standard(bench.Service{Name: "loop", Exec: []string{"sh", "-c", "touch /run/ready; echo $$; while :; do sleep 0.1; done"}, Ready: "/run/ready"}),
		rootVariable+"="+base)
	before := s.wait(guest.PhaseRunning)
	s.sh("setsid sleep 1000 </dev/null >/dev/null 2>&1 & true")

	run := func(what string, cmd *exec.Cmd) {
		t.Helper()
		if out, err := cmd.CombinedOutput(); err != nil {
			log, _ := os.ReadFile(filepath.Join(base, "img", what+".log"))
			var errors []string
			for _, line := range strings.Split(string(log), "\n") {
				if strings.Contains(line, "Error") {
					errors = append(errors, line)
				}
			}
			t.Fatalf("criu %s: %v\n%s\n%s", what, err, out, strings.Join(errors, "\n"))
		}
	}
	common := []string{"--no-default-config", "-D", filepath.Join(base, "img"), "--network-lock", "skip", "--file-locks", "--manage-cgroups=ignore", "-v4"}
	run("dump", exec.Command(tool, append([]string{"dump", "-t", strconv.Itoa(s.pid), "-o", "dump.log"}, common...)...))
	<-s.ended
	if s.state.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("after the dump: %s", s.state)
	}

	// The restored process becomes ours once criu is gone.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	pidfile := filepath.Join(base, "pid")
	restore := exec.Command("/proc/self/exe", append([]string{tool, "restore", "-d", "--root", base + "/m", "--pidfile", pidfile, "-o", "restore.log"}, common...)...)
	restore.Env = []string{stageVariable + "=restore", rootVariable + "=" + base}
	restore.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	run("restore", restore)
	text, err := os.ReadFile(pidfile)
	if err != nil {
		t.Fatal(err)
	}
	r := &testSlot{t: t, stderr: &bytes.Buffer{}, ended: make(chan struct{})}
	if r.pid, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		t.Fatal(err)
	}
	r.client = guest.New(r.dial, testPort, guest.Limits{})
	t.Cleanup(func() {
		unix.Kill(r.pid, unix.SIGKILL)
		var status unix.WaitStatus
		if pid, err := unix.Wait4(r.pid, &status, 0, nil); pid != r.pid || err != nil {
			t.Errorf("reap the restored slot: %d, %v", pid, err)
		}
		unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	})

	after := r.wait(guest.PhaseRunning)
	if after.Live.Token != before.Live.Token || value64(t, after.Live.Counter) <= value64(t, before.Live.Counter) {
		t.Errorf("live state %+v, before %+v", after.Live, before.Live)
	}
	if diff := gocmp.Diff(before.Services, after.Services); diff != "" {
		t.Error(diff)
	}
	if diff := gocmp.Diff(observe.Normalise(before.Mounts), observe.Normalise(after.Mounts)); diff != "" {
		t.Error(diff)
	}
	if diff := gocmp.Diff(before.Network, after.Network); diff != "" {
		t.Error(diff)
	}
	time.Sleep(10 * proto.TickPeriod)
	if later := r.wait(guest.PhaseRunning); value64(t, later.Live.Counter) < value64(t, after.Live.Counter)+5 {
		t.Errorf("the counter stands: %+v after %+v", later.Live, after.Live)
	}
	names := func() (out []string) {
		for _, what := range r.processes() {
			if what[2:] != "sleep" || what[0] == 'Z' {
				out = append(out, what[2:])
			}
		}
		slices.Sort(out)
		return out
	}
	if got := names(); !slices.Equal(got, []string{"guestd", "sh"}) {
		t.Errorf("processes %q", got)
	}
	if res, err := r.client.Execute(t.Context(), []string{"sh", "-c", "(setsid sleep 30 &); exec sleep 31"}, 300*time.Millisecond); err != nil || !res.TimedOut {
		t.Errorf("%+v, %v", res, err)
	}
	// The daemon of before and the service's present sleep are all that sleeps.
	if out := r.sh("n=0; for f in /proc/[0-9]*/comm; do read c < $f && [ $c = sleep ] && n=$((n+1)); done; echo $n"); out != "2\n" && out != "1\n" {
		t.Errorf("%s sleep", out)
	}
	if left := r.sockets(); len(left) > 0 {
		t.Errorf("sockets: %q", left)
	}
	if _, err := r.client.Execute(t.Context(), []string{"sh", "-c", "kill -9 " + strconv.Itoa(before.Services[0].Pid)}, time.Second); err != nil {
		t.Error(err)
	}
	if p := r.wait(guest.PhaseFailed); p.Reason != "service loop ended: signal 9" {
		t.Error(p.Reason)
	}
}

func value64(t *testing.T, n bench.Int64) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(string(n), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

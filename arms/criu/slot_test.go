package criu

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
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

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"
)

// slot is a tree in namespaces of its own on an overlay of its own.
type slot struct {
	t                  testing.TB
	dir                string
	lower, upper, root string
	cmd                *exec.Cmd
	pid                int
}

// kdatFile of the whole test run, so that not every call probes the kernel.
func kdatFile(t testing.TB) string {
	t.Helper()
	k, err := tool.Kdat(filepath.Dir(guestFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	return k.File
}

func makeDirs(t testing.TB, dirs ...string) {
	t.Helper()
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// startSlot starts a tree that does what it is told and waits until it is ready.
func startSlot(t testing.TB, what ...string) *slot { return startSlotOf(t, guestFile, what...) }

func startSlotOf(t testing.TB, guest string, what ...string) *slot {
	t.Helper()
	s := &slot{t: t, dir: t.TempDir()}
	s.lower, s.upper, s.root = filepath.Join(s.dir, "lower"), filepath.Join(s.dir, "upper"), filepath.Join(s.dir, "root")
	work := filepath.Join(s.dir, "work")
	makeDirs(t, s.upper, s.root, work)
	for _, d := range []string{"proc", "dev", "tmp", "data", "alias"} {
		makeDirs(t, filepath.Join(s.lower, d))
	}
	for _, f := range []string{"plain", "mapped", "ofd", "flock", "ro-shared", "ro-private", "readonly", "gone", "bound", "writeonly"} {
		if err := os.WriteFile(filepath.Join(s.lower, "data", f), bytes.Repeat([]byte{'x'}, 4096), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	copyFile(t, guest, filepath.Join(s.lower, "guest"))
	s.cmd = exec.Command(guest, append([]string{"init", s.lower, s.upper, work, s.root}, what...)...)
	var stderr bytes.Buffer
	s.cmd.Stderr = &stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Setsid:     !slices.Contains(what, "no-session"),
	}
	if slices.Contains(what, "external") {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		inside, outside := os.NewFile(uintptr(fds[0]), "inside"), os.NewFile(uintptr(fds[1]), "outside")
		defer inside.Close()
		t.Cleanup(func() { outside.Close() })
		s.cmd.Stdin = inside
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.pid = s.cmd.Process.Pid
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
	s.waitFor("/ready")
	return s
}

// path of a file of the slot as the host reaches it.
func (s *slot) path(name string) string { return fmt.Sprintf("/proc/%d/root%s", s.pid, name) }

func (s *slot) waitFor(name string) {
	s.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		if _, err := os.Stat(filepath.Join(s.upper, name)); err == nil {
			return
		}
		failed, _ := os.ReadFile(filepath.Join(s.upper, "failed"))
		if len(failed) > 0 || time.Now().After(deadline) {
			s.t.Fatalf("slot does not show %s: %s", name, failed)
		}
		time.Sleep(time.Millisecond)
	}
}

func (s *slot) counter() uint64 {
	s.t.Helper()
	data, err := os.ReadFile(s.path("/counter"))
	if err != nil || len(data) != 8 {
		s.t.Fatalf("read counter: %v (%d bytes)", err, len(data))
	}
	return binary.LittleEndian.Uint64(data)
}

// runsOn fails the test unless the tree counts.
func (s *slot) runsOn() {
	s.t.Helper()
	before := s.counter()
	deadline := time.Now().Add(10 * time.Second)
	for s.counter() == before {
		if time.Now().After(deadline) {
			s.t.Fatalf("the tree does not run: the counter stays at %d", before)
		}
		time.Sleep(time.Millisecond)
	}
}

// states of all threads below a process, as /proc/PID/stat shows them, by host tid.
func states(pid int) map[int]string {
	found := map[int]string{}
	for _, p := range append([]int{pid}, descendants(pid)...) {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p))
		for _, name := range tasks {
			data, err := os.ReadFile(name)
			if err != nil {
				continue
			}
			stat := string(data)
			tid, _ := strconv.Atoi(stat[:strings.IndexByte(stat, ' ')])
			found[tid] = stat[strings.LastIndexByte(stat, ')')+2:][:1]
		}
	}
	return found
}

// allIn says whether every thread that is no zombie is in one of the states.
func allIn(have map[int]string, want string) bool {
	for _, s := range have {
		if s != "Z" && !strings.Contains(want, s) {
			return false
		}
	}
	return len(have) > 0
}

// stageCommand executes CRIU behind a stage of the test program.
func stageCommand(t testing.TB, s stageSpec) *exec.Cmd {
	t.Helper()
	if s.Criu == "" {
		s.Criu = tool.Path
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{stageVariable + "=" + string(text)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	return cmd
}

// dump of the slot into dir/images and dir/dump; the tree is reaped when it succeeds.
func (s *slot) dump(o DumpOptions, notify Notify) (DumpOptions, error) {
	s.t.Helper()
	o.Pid, o.ImagesDir, o.WorkDir = s.pid, filepath.Join(s.dir, "images"), filepath.Join(s.dir, "dump")
	makeDirs(s.t, o.ImagesDir, o.WorkDir)
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	err := Dump(ctx, stageCommand(s.t, stageSpec{Kdat: kdatFile(s.t)}), o, notify)
	if err == nil {
		_ = s.cmd.Wait()
		s.pid = 0
	}
	return o, err
}

// restored is a slot that came back, on an upper layer of its own over the dumped one.
func (s *slot) restore(ctx context.Context, name string, o RestoreOptions, notify Notify) (*slot, error) {
	s.t.Helper()
	dir := filepath.Join(s.dir, name)
	r := &slot{t: s.t, dir: dir, lower: s.lower, upper: filepath.Join(dir, "upper"), root: filepath.Join(dir, "root")}
	o.WorkDir = filepath.Join(dir, "criu")
	if o.ImagesDir == "" {
		o.ImagesDir = filepath.Join(s.dir, "images")
	}
	o.Root = r.root
	makeDirs(s.t, r.upper, r.root, filepath.Join(dir, "work"), o.WorkDir)
	copyUp, err := OpenImages(o.ImagesDir).CopyUp()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, name := range copyUp {
		from := filepath.Join(s.upper, name)
		if _, err := os.Stat(from); err != nil {
			from = filepath.Join(s.lower, name)
		}
		makeDirs(s.t, filepath.Dir(filepath.Join(r.upper, name)))
		copyFile(s.t, from, filepath.Join(r.upper, name))
		info, err := os.Stat(from)
		if err != nil {
			s.t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(r.upper, name), info.Mode()); err != nil {
			s.t.Fatal(err)
		}
	}
	cmd := stageCommand(s.t, stageSpec{
		Kdat: kdatFile(s.t), Layers: s.upper + ":" + s.lower, Upper: r.upper, Work: filepath.Join(dir, "work"), Root: r.root,
	})
	r.pid, err = Restore(ctx, cmd, o, notify)
	if err != nil {
		return nil, err
	}
	s.t.Cleanup(r.end)
	return r, nil
}

// end kills a restored tree and reaps it.
func (s *slot) end() {
	if s.pid == 0 {
		return
	}
	_ = unix.Kill(s.pid, unix.SIGKILL)
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(s.pid, &status, unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	s.pid = 0
}

// resume continues every task below a stopped root.
func (s *slot) resume() {
	for _, pid := range append([]int{s.pid}, descendants(s.pid)...) {
		_ = unix.Kill(pid, unix.SIGCONT)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

func parseHex(t testing.TB, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(strings.TrimSpace(s), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

const restoreType = rpc.CriuReqType_RESTORE

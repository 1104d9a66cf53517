package criu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// moment is one notification with what was seen at it.
type moment struct {
	script string
	at     time.Duration
	states map[int]string
}

func watch(start time.Time, pid int, seen *[]moment) Notify {
	return func(_ context.Context, n Notification) error {
		at := time.Since(start)
		root := pid
		if root == 0 {
			root = n.Pid
		}
		m := moment{script: n.Script, at: at}
		if root != 0 {
			m.states = states(root)
		}
		*seen = append(*seen, m)
		return nil
	}
}

func scripts(seen []moment) []string {
	var names []string
	for _, m := range seen {
		names = append(names, m.script)
	}
	return names
}

func report(t *testing.T, what string, seen []moment, end time.Duration) {
	t.Helper()
	for _, m := range seen {
		t.Logf("%s %7.1f ms  %-22s %v", what, ms(m.at), m.script, m.states)
	}
	t.Logf("%s %7.1f ms  returned", what, ms(end))
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// A tree goes and comes back, twice from one checkpoint: the table of the
// package comment, CRIU's images and the state of the tasks.
func TestDumpAndRestore(t *testing.T) {
	s := startSlot(t, "bind", "locks", "files", "stopped", "zombie")
	counted := s.counter()
	leaksNothing(t)
	littersNothing(t)

	var open []string
	var seen []moment
	start := time.Now()
	pid := s.pid
	see := watch(start, pid, &seen)
	o, err := s.dump(DumpOptions{FileLocks: true, GhostLimit: 64 << 20}, func(ctx context.Context, n Notification) error {
		if n.Script == ScriptNetworkLock { // the tree stands still
			open = openIn(t, pid)
		}
		return see(ctx, n)
	})
	report(t, "dump", seen, time.Since(start))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{ScriptPreDump, ScriptNetworkLock, ScriptQueryExtFiles, ScriptPostDump}; !slices.Equal(scripts(seen), want) {
		t.Errorf("dump notified %q", scripts(seen))
	}
	for _, m := range seen[1:] {
		if !allIn(m.states, "t") || len(m.states) != len(seen[0].states) {
			t.Errorf("tasks are not all seized at %s: %v", m.script, m.states)
		}
	}
	if isRunning(pid) {
		t.Error("the dumped tree still runs")
	}
	stats, err := ReadDumpStats(o.WorkDir)
	if err != nil || stats.Frozen <= 0 || stats.PagesWritten == 0 {
		t.Errorf("statistics %+v, %v", stats, err)
	}
	t.Logf("dump %+v", stats)
	checkImages(t, OpenImages(o.ImagesDir))

	for _, name := range []string{"first", "second"} {
		seen = nil
		start = time.Now()
		r, err := s.restore(t.Context(), name, RestoreOptions{FileLocks: true, Sibling: true, LeaveStopped: true}, watch(start, 0, &seen))
		report(t, "restore", seen, time.Since(start))
		if err != nil {
			t.Fatal(err)
		}
		want := []string{
			ScriptPreRestore, ScriptSetupNamespaces, ScriptPostSetupNamespaces, ScriptPostRestore, ScriptNetworkUnlock, ScriptPreResume, ScriptPostResume,
		}
		if !slices.Equal(scripts(seen), want) {
			t.Fatalf("restore notified %q", scripts(seen))
		}
		if at := seen[5]; !allIn(at.states, "t") {
			t.Errorf("tasks are not all in tracing stop at pre-resume: %v", at.states)
		}
		if !allIn(states(r.pid), "T") {
			t.Errorf("tasks are not all stopped: %v", states(r.pid))
		}
		if now := openIn(t, r.pid); !slices.Equal(now, open) {
			t.Errorf("the restored root has open %q, it had %q", now, open)
		}
		if !isChild(r.pid) {
			t.Error("the restored root is no child of ours")
		}
		if got := r.counter(); got < counted || got > counted+1e6 {
			t.Errorf("counter is %d, it was %d", got, counted)
		}
		before := r.counter()
		time.Sleep(20 * time.Millisecond)
		if r.counter() != before {
			t.Error("a stopped tree counts")
		}
		rs, err := ReadRestoreStats(filepath.Join(r.dir, "criu"))
		if err != nil || rs.Restore <= 0 || rs.PagesRestored == 0 {
			t.Errorf("statistics %+v, %v", rs, err)
		}
		t.Logf("restore %+v", rs)
		r.resume()
		r.runsOn()
		r.end()
	}
}

// openIn are the open files of a process: descriptor and what it is, without numbers that a restore may change.
func openIn(t *testing.T, pid int) []string {
	t.Helper()
	dir := filepath.Join("/proc", itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ = strings.Cut(name, ":[")
		found = append(found, e.Name()+" "+strings.TrimSuffix(name, " (deleted)"))
	}
	return found
}

func checkImages(t *testing.T, im Images) {
	t.Helper()
	locks, err := im.Locks()
	if err != nil {
		t.Fatal(err)
	}
	wantLocks := []bench.Lock{
		{Path: "/data/flock", Pid: 1, Type: "FLOCK", Mode: "WRITE", Start: "0", End: "-1"},
		{Path: "/data/mapped", Pid: 1, Type: "POSIX", Mode: "WRITE", Start: "5", End: "-1", Mapped: true},
		{Path: "/data/ofd", Pid: 1, Type: "OFDLCK", Mode: "WRITE", Start: "100", End: "149"},
		{Path: "/data/plain", Pid: 1, Type: "POSIX", Mode: "READ", Start: "0", End: "9"},
	}
	if !slices.Equal(locks, wantLocks) {
		t.Errorf("locks %+v", locks)
	}
	held, err := im.HeldLocks()
	if err != nil || len(held[0].Holders) != 2 || !slices.Equal(held[1].Holders, []int{1}) {
		t.Errorf("holders %+v, %v", held, err)
	}
	copyUp, err := im.CopyUp()
	want := []string{"/counter", "/data/bound", "/data/flock", "/data/mapped", "/data/ofd", "/data/plain", "/data/ro-shared", "/data/writeonly"}
	if err != nil || !slices.Equal(copyUp, want) {
		t.Errorf("copy up %q, %v", copyUp, err)
	}
	processes, err := im.Processes()
	if err != nil || len(processes) != 4 {
		t.Fatalf("processes %+v, %v", processes, err)
	}
	root, stopped, zombie := processes[0], processes[2], processes[3]
	if root.Pid != 1 || root.Parent != 0 || root.Group != 1 || root.Session != 1 || root.Comm != "guest" || len(root.Threads) < 2 || root.Threads[0] != 1 {
		t.Errorf("root %+v", root)
	}
	if zombie.State != Dead || zombie.Parent != 1 || !slices.Equal(zombie.Threads, []int{zombie.Pid}) {
		t.Errorf("zombie %+v", zombie)
	}
	pids, err := im.StoppedAtDump()
	if err != nil || !slices.Equal(pids, []int{stopped.Pid}) {
		t.Errorf("stopped %v, %v", pids, err)
	}
	if pids, err := im.Compat32(); err != nil || len(pids) != 0 {
		t.Errorf("32-bit tasks %v, %v", pids, err)
	}
	if _, err := fs.Stat(im.fsys, "cgroup.img"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("cgroups were dumped: %v", err)
	}
	network, err := im.Network()
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int64{}
	for _, n := range network {
		sizes[n.Kind] = n.Size
	}
	for _, kind := range []string{"netdev", "netns", "ifaddr", "route", "rule"} {
		if sizes[kind] == 0 {
			t.Errorf("no network image %s: %+v", kind, network)
		}
	}
}

// Without leave-stopped the tree runs at once, without sibling it is nobody's child of ours.
func TestRestoreRunning(t *testing.T) {
	s := startSlot(t)
	if _, err := s.dump(DumpOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	r, err := s.restore(t.Context(), "r", RestoreOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if isChild(r.pid) {
		t.Error("the restored root is a child of ours")
	}
	r.runsOn()
}

// Siblings come from one checkpoint at the same time.
func TestParallelSiblings(t *testing.T) {
	s := startSlot(t, "locks")
	if _, err := s.dump(DumpOptions{FileLocks: true}, nil); err != nil {
		t.Fatal(err)
	}
	leaksNothing(t)
	kdatFile(t)
	t.Run("siblings", func(t *testing.T) {
		for i := range 4 {
			t.Run(itoa(i), func(t *testing.T) {
				t.Parallel()
				mine := *s
				mine.t = t
				r, err := mine.restore(t.Context(), "sibling"+itoa(i), RestoreOptions{FileLocks: true, Sibling: true, LeaveStopped: true}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if !allIn(states(r.pid), "T") {
					t.Errorf("tasks are not all stopped: %v", states(r.pid))
				}
				r.resume()
				r.runsOn()
			})
		}
	})
}

// No thread runs an instruction of its own between the dump and the resume, not
// even one that was in the middle of a loop, and not on a busy host.
func TestStoppedMeansStopped(t *testing.T) {
	s := startSlot(t, "spin")
	if _, err := s.dump(DumpOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	counts := func(name string) [4]uint64 {
		data, err := os.ReadFile(name)
		if err != nil || len(data) != 4096 {
			t.Fatalf("read counters: %v (%d bytes)", err, len(data))
		}
		var n [4]uint64
		for i := range n {
			n[i] = binary.LittleEndian.Uint64(data[i*64:])
		}
		return n
	}
	dumped := counts(filepath.Join(s.upper, "data/spin"))
	t.Run("siblings", func(t *testing.T) {
		for i := range 4 {
			t.Run(itoa(i), func(t *testing.T) {
				t.Parallel()
				mine := *s
				mine.t = t
				for j := range 3 {
					r, err := mine.restore(t.Context(), "spin"+itoa(i)+itoa(j), RestoreOptions{Sibling: true, LeaveStopped: true}, nil)
					if err != nil {
						t.Fatal(err)
					}
					if got := counts(r.path("/data/spin")); got != dumped {
						t.Errorf("counters are %v, they were %v", got, dumped)
					}
					r.resume()
					for counts(r.path("/data/spin")) == dumped && isRunning(r.pid) {
						time.Sleep(time.Millisecond)
					}
					r.end()
				}
			})
		}
	})
}

// A tree that runs is not waited for beyond the context.
func TestWaitStopped(t *testing.T) {
	s := startSlot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := WaitStopped(ctx, s.pid); !errors.Is(err, engine.ErrDeadline) {
		t.Errorf("error %v", err)
	}
	if err := unix.Kill(s.pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := WaitStopped(t.Context(), s.pid); err != nil {
		t.Error(err)
	}
	if err := unix.Kill(s.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for isRunning(s.pid) {
		time.Sleep(time.Millisecond)
	}
	if err := WaitStopped(t.Context(), s.pid); err == nil {
		t.Error("a dead tree counts as stopped")
	}
}

// EXP-009: CRIU reports success and the lock on the mapped file is gone.
func TestMappedLockIsLost(t *testing.T) {
	s := startSlot(t, "locks")
	if _, err := s.dump(DumpOptions{FileLocks: true}, nil); err != nil {
		t.Fatal(err)
	}
	r, err := s.restore(t.Context(), "r", RestoreOptions{FileLocks: true, Sibling: true, LeaveStopped: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	held := func(fd string) string {
		data, err := os.ReadFile(filepath.Join("/proc", itoa(r.pid), "fdinfo", fd))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(data), "\n") {
			if strings.HasPrefix(line, "lock:") {
				return line
			}
		}
		return ""
	}
	if held("3") == "" || held("5") == "" {
		t.Errorf("locks on unmapped files are gone: %q %q", held("3"), held("5"))
	}
	if held("4") != "" {
		t.Errorf("this CRIU keeps the lock on a mapped file: %q; the repair is needless", held("4"))
	}
}

// A veto ends the dump, and the tree runs on with its locks.
func TestDumpVeto(t *testing.T) {
	s := startSlot(t, "locks")
	leaksNothing(t)
	want := errors.New("a gate says no")
	for _, script := range []string{ScriptPreDump, ScriptNetworkLock, ScriptQueryExtFiles, ScriptPostDump} {
		var seen []string
		_, err := s.dump(DumpOptions{FileLocks: true}, func(_ context.Context, n Notification) error {
			seen = append(seen, n.Script)
			if n.Script == script {
				return want
			}
			return nil
		})
		var veto *VetoError
		var e *engine.Error
		if !errors.Is(err, want) || !errors.As(err, &veto) || veto.Script != script || !errors.As(err, &e) || e.Log == "" {
			t.Errorf("%s: error %v", script, err)
		}
		if !slices.Contains(seen, script) || slices.Index(seen, ScriptPostDump) > slices.Index(seen, script) {
			t.Errorf("%s: notified %q", script, seen)
		}
		s.runsOn()
		if strings.Contains(strings.Join(flat(states(s.pid)), ""), "t") {
			t.Errorf("%s: tasks stay traced: %v", script, states(s.pid))
		}
	}
	// It can be dumped afterwards.
	if _, err := s.dump(DumpOptions{FileLocks: true}, nil); err != nil {
		t.Error(err)
	}
}

func flat(m map[int]string) []string {
	var all []string
	for _, s := range m {
		all = append(all, s)
	}
	return all
}

// A veto ends the restore, also where CRIU itself would go on.
func TestRestoreVeto(t *testing.T) {
	s := startSlot(t)
	if _, err := s.dump(DumpOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	leaksNothing(t)
	want := errors.New("a gate says no")
	for _, script := range []string{
		ScriptPreRestore, ScriptSetupNamespaces, ScriptPostSetupNamespaces, ScriptPostRestore, ScriptNetworkUnlock, ScriptPreResume, ScriptPostResume,
	} {
		for _, sibling := range []bool{true, false} {
			root := 0
			_, err := s.restore(t.Context(), script+itoa(len(script))+map[bool]string{true: "s"}[sibling], RestoreOptions{Sibling: sibling, LeaveStopped: true},
				func(_ context.Context, n Notification) error {
					root = n.Pid
					if n.Script == script {
						return want
					}
					return nil
				})
			var veto *VetoError
			if !errors.Is(err, want) || !errors.As(err, &veto) || veto.Script != script {
				t.Errorf("%s, sibling %v: error %v", script, sibling, err)
			}
			if root != 0 && isRunning(root) {
				t.Errorf("%s, sibling %v: task %d is left", script, sibling, root)
			}
		}
	}
}

// The network is brought back in an empty namespace by whoever asked for that, before the tree runs; what fails there ends the restore.
func TestRestoreNetwork(t *testing.T) {
	s := startSlot(t)
	if _, err := s.dump(DumpOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	leaksNothing(t)
	up := func(path string) string {
		t.Helper()
		n, err := observe.NetworkAt(path)
		if err != nil || len(n.Links) == 0 {
			t.Fatalf("%+v, %v", n, err)
		}
		return fmt.Sprintf("up %t, %d addresses", n.Links[0].Up, len(n.Addresses))
	}
	found, scripts := "", 0
	r, err := s.restore(t.Context(), "direct", RestoreOptions{Sibling: true, LeaveStopped: true, Network: func(path string) error {
		found = up(path)
		return inside(path, func() error { return exec.Command("ip", "link", "set", "lo", "up").Run() })
	}}, func(context.Context, Notification) error { scripts++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if now := up(fmt.Sprintf("/proc/%d/ns/net", r.pid)); found != "up false, 0 addresses" || now == found || scripts == 0 {
		t.Errorf("the namespace was %q and is %q; %d notifications", found, now, scripts)
	}
	want := errors.New("not as it was")
	if _, err := s.restore(t.Context(), "fails", RestoreOptions{Sibling: true, LeaveStopped: true, Network: func(string) error { return want }}, nil); !errors.Is(err, want) {
		t.Errorf("error %v", err)
	}
}

// inside runs f in a network namespace, on a thread that ends with it.
func inside(path string, f func() error) error {
	return thread.Run(func() error {
		ns, err := os.Open(path)
		if err != nil {
			return err
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// The deadline ends a restore at any moment, without a rest.
func TestRestoreDeadline(t *testing.T) {
	s := startSlot(t, "locks")
	if _, err := s.dump(DumpOptions{FileLocks: true}, nil); err != nil {
		t.Fatal(err)
	}
	leaksNothing(t)
	for _, script := range []string{ScriptPreRestore, ScriptSetupNamespaces, ScriptPostSetupNamespaces, ScriptPostRestore, ScriptPreResume, ScriptPostResume} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		root := 0
		_, err := s.restore(ctx, script, RestoreOptions{FileLocks: true, Sibling: true, LeaveStopped: true}, func(ctx context.Context, n Notification) error {
			root = n.Pid
			if n.Script == script {
				cancel()
				<-ctx.Done()
			}
			return nil
		})
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v", script, err)
		}
		if root != 0 && isRunning(root) {
			t.Errorf("%s: task %d is left", script, root)
		}
	}
}

// The deadline ends a dump while the tree is seized; the kernel lets it run on.
func TestDumpDeadline(t *testing.T) {
	s := startSlot(t, "locks")
	leaksNothing(t)
	for _, script := range []string{ScriptNetworkLock, ScriptPostDump} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		o := DumpOptions{FileLocks: true, Pid: s.pid, ImagesDir: filepath.Join(s.dir, script), WorkDir: filepath.Join(s.dir, script)}
		makeDirs(t, o.ImagesDir)
		err := Dump(ctx, stageCommand(t, stageSpec{Kdat: kdatFile(t)}), o, func(ctx context.Context, n Notification) error {
			if n.Script == script {
				cancel()
				<-ctx.Done()
			}
			return nil
		})
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v", script, err)
		}
		time.Sleep(50 * time.Millisecond)
		t.Logf("%s: killed, tree is %v", script, states(s.pid))
		s.runsOn()
	}
}

// A helper of CRIU's that hangs, here ip, ends with the deadline (case 30).
func TestHangingHelper(t *testing.T) {
	s := startSlot(t)
	leaksNothing(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ip"), []byte("#!/bin/sh\necho $$ >"+dir+"/pid\nsleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	o := DumpOptions{Pid: s.pid, ImagesDir: filepath.Join(s.dir, "i"), WorkDir: filepath.Join(s.dir, "i")}
	makeDirs(t, o.ImagesDir)
	start := time.Now()
	err := Dump(ctx, stageCommand(t, stageSpec{Kdat: kdatFile(t), Env: []string{"PATH=" + dir + ":/usr/bin:/bin"}}), o, nil)
	if !errors.Is(err, engine.ErrDeadline) || time.Since(start) > 8*time.Second {
		t.Errorf("after %s: %v", time.Since(start), err)
	}
	if !isGone(t, dir, "pid") {
		t.Error("ip still runs")
	}
	s.runsOn()
}

// Each refusal is typed, has a remedy, and leaves the tree alone.
func TestDumpRefusals(t *testing.T) {
	tests := []struct {
		what     string
		options  DumpOptions
		kind     Kind
		sentinel error
		hint     string
	}{
		{"lock", DumpOptions{}, KindLocks, engine.ErrRefused, "the arm's locks"},
		{"device", DumpOptions{}, KindRootMount, engine.ErrRefused, "bind-mounted"},
		{"tcp", DumpOptions{}, KindTCP, engine.ErrRefused, "checkpoint.establishedTCP"},
		{"inflight", DumpOptions{}, KindInFlight, ErrTransient, "again"},
		{"ghost", DumpOptions{GhostLimit: 1 << 20}, KindGhostSize, engine.ErrRefused, "checkpoint.ghostLimit"},
		{"mptcp", DumpOptions{}, KindMPTCP, engine.ErrRefused, "SetMultipathTCP"},
		{"accept", DumpOptions{}, KindUnixSocket, engine.ErrRefused, "outside"},
		{"external", DumpOptions{}, KindUnixSocket, engine.ErrRefused, "outside"},
		{"no-session", DumpOptions{}, KindSession, engine.ErrRefused, "session"},
	}
	for _, test := range tests {
		t.Run(test.what, func(t *testing.T) {
			s := startSlot(t, test.what)
			leaksNothing(t)
			if test.what == "accept" {
				c, err := net.Dial("unix", s.path("/sock"))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				s.waitFor("/accepted")
			}
			_, err := s.dump(test.options, nil)
			var e *engine.Error
			var f *Failure
			if !errors.Is(err, test.sentinel) || !errors.As(err, &e) || !errors.As(err, &f) {
				t.Fatalf("error %v", err)
			}
			if f.Kind != test.kind || !strings.Contains(e.Hint, test.hint) || e.Op != "dump" || filepath.Base(e.Log) != "dump.log" {
				t.Errorf("failure %+v in %+v", f, e)
			}
			t.Log(err)
			s.runsOn()
		})
	}
}

// Reading another user's limits needs CAP_SYS_RESOURCE; with it the dump passes.
func TestDumpOtherUser(t *testing.T) {
	s := startSlot(t, "user")
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	var eff uint64
	for _, line := range strings.Split(string(status), "\n") {
		if hex, ok := strings.CutPrefix(line, "CapEff:\t"); ok {
			eff = parseHex(t, hex)
		}
	}
	_, err = s.dump(DumpOptions{}, nil)
	if eff&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		if err != nil {
			t.Error(err)
		}
		return
	}
	var f *Failure
	if !errors.Is(err, engine.ErrRefused) || !errors.As(err, &f) || f.Kind != KindRlimit {
		t.Errorf("error %v", err)
	}
	s.runsOn()
}

// What the policy allows passes: TCP connections are closed, a large unlinked file is carried.
func TestDumpAllowed(t *testing.T) {
	s := startSlot(t, "tcp", "ghost")
	if _, err := s.dump(DumpOptions{TCPClose: true, GhostLimit: 64 << 20}, nil); err != nil {
		t.Fatal(err)
	}
	var f *Failure
	_, err := s.restore(t.Context(), "without", RestoreOptions{Sibling: true, LeaveStopped: true}, nil)
	if !errors.As(err, &f) || f.Kind != KindTCP {
		t.Errorf("restore without tcp-close: %v", err)
	}
	r, err := s.restore(t.Context(), "with", RestoreOptions{TCPClose: true, Sibling: true, LeaveStopped: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.resume()
	r.runsOn()
}

func TestRestoreRefusals(t *testing.T) {
	s := startSlot(t, "files", "bind")
	if _, err := s.dump(DumpOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	leaksNothing(t)
	var f *Failure
	file := filepath.Join(s.lower, "data/readonly")
	if err := os.WriteFile(file, []byte("another"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := s.restore(t.Context(), "changed", RestoreOptions{Sibling: true, LeaveStopped: true}, nil)
	if !errors.Is(err, engine.ErrRefused) || !errors.As(err, &f) || f.Kind != KindFileChanged || !strings.Contains(err.Error(), "data/readonly") {
		t.Errorf("changed file: %v", err)
	}
	t.Log(err)
	if err := os.WriteFile(file, make([]byte, 4096), 0o644); err != nil {
		t.Fatal(err)
	}
	// A damaged image.
	images := filepath.Join(s.dir, "damaged")
	if err := os.CopyFS(images, os.DirFS(filepath.Join(s.dir, "images"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(images, "fs-1.img"), 10); err != nil {
		t.Fatal(err)
	}
	f = nil
	_, err = s.restore(t.Context(), "damaged", RestoreOptions{ImagesDir: images, Sibling: true, LeaveStopped: true}, nil)
	if !errors.As(err, &f) || f.Kind != KindImages {
		t.Errorf("damaged image: %v", err)
	}
	t.Log(err)
	// A stage that fails before CRIU is there.
	o := RestoreOptions{Root: s.root, ImagesDir: filepath.Join(s.dir, "images"), WorkDir: s.dir, Sibling: true}
	_, err = Restore(t.Context(), stageCommand(t, stageSpec{Fail: "the cgroup is gone"}), o, nil)
	if err == nil || !strings.Contains(err.Error(), "the cgroup is gone") {
		t.Errorf("failing stage: %v", err)
	}
	// Without a root it cannot be said.
	o.Root = ""
	if _, err := Restore(t.Context(), stageCommand(t, stageSpec{}), o, nil); err == nil || !strings.Contains(err.Error(), "root") {
		t.Errorf("no root: %v", err)
	}
}

// Said to CRIU itself, a restore without a root is a typed failure (case 5).
func TestRestoreWithoutRoot(t *testing.T) {
	s := startSlot(t)
	o, err := s.dump(DumpOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	leaksNothing(t)
	opts := opts(false, false)
	work := t.TempDir()
	req, done, err := request("restore", restoreType, common{o.ImagesDir, work, "restore.log", LogWarnings}, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	_, err = Run(t.Context(), stageCommand(t, stageSpec{Kdat: kdatFile(t)}), req, nil)
	var f *Failure
	if !errors.As(err, &f) || f.Kind != KindCrash && f.Kind != KindRootMissing {
		t.Errorf("error %v", err)
	}
	t.Log(err)
}

// vetoAt answers with an error at a script, after doing something.
func vetoAt(script string, veto error, do func(Notification) error) Notify {
	return func(_ context.Context, n Notification) error {
		if n.Script != script {
			return nil
		}
		if do != nil {
			if err := do(n); err != nil {
				return err
			}
		}
		return veto
	}
}

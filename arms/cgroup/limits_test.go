package cgroup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

var small = bench.Resources{Vcpus: 1, Memory: "64MiB", Swap: "0", Pids: 20}

func limits(t testing.TB, ws *engine.Workspace, o *Owner, r bench.Resources) *Limits {
	t.Helper()
	l, err := NewLimits(ws, o, "slot-a", r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(o.Kill(ctx), l.Remove(ctx)); err != nil {
			t.Error(err)
		}
		for _, n := range l.nodes {
			if _, err := os.Lstat(n.path); !os.IsNotExist(err) {
				t.Errorf("%s is still there", n.path)
			}
		}
	})
	return l
}

// birthplace is a group that a process can be born in: on a unified host the slot's own hands on controllers.
func birthplace(o *Owner) string {
	if o.at.unified {
		return "tools"
	}
	return "slot-a"
}

func TestLimitsAreSetAndReadBack(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	l := limits(t, ws, o, bench.Resources{Vcpus: 2, Memory: "96MiB", Swap: "32MiB", Pids: 77})
	g, err := o.Group(birthplace(o))
	if err != nil {
		t.Fatal(err)
	}
	cmd := start(t, g, "sleep 100 & wait")
	if err := l.Add(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	have, ok := l.Read([]int{cmd.Process.Pid}).Get()
	if !ok {
		t.Fatal(l.Read(nil).Reason())
	}
	if have.VCPUs != 2 || have.Memory != 96<<20 || have.Swap != 32<<20 || have.Pids != 77 || len(have.Outside) != 0 {
		t.Errorf("read back: %+v", have)
	}
	if l.kernel == (kernel)(v1{}) {
		for c, file := range map[string][2]string{
			"memory": {"memory.limit_in_bytes", "100663296"},
			"pids":   {"pids.max", "77"},
			"cpu":    {"cpu.cfs_quota_us", "200000"},
		} {
			if text, err := read(l.places[c].dir, file[0]); err != nil || text != file[1] {
				t.Errorf("%s is %q, %v", file[0], text, err)
			}
		}
	}
	if err := g.Kill(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	// Dead and not waited for: a task, not outside.
	have, _ = l.Read([]int{cmd.Process.Pid}).Get()
	if len(have.Outside) != 0 || !slices.Equal(have.Tasks, []int{cmd.Process.Pid}) {
		t.Errorf("with a zombie: %+v", have)
	}
	cmd.Wait()
	if have, _ = l.Read([]int{cmd.Process.Pid}).Get(); len(have.Tasks) != 0 {
		t.Errorf("with a pid that is gone: %+v", have)
	}
}

// Restored into another cgroup, tasks are left outside.
func TestTaskOutsideIsFound(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	l := limits(t, ws, o, small)
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	in := start(t, g, "exec sleep 100")
	out := start(t, g, "exec sleep 100")
	partly := start(t, g, "exec sleep 100")
	if err := l.Add(in.Process.Pid); err != nil {
		t.Fatal(err)
	}
	// In one controller's group only.
	if err := write(l.Dirs()[0], itoa(partly.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	pids := []int{in.Process.Pid, out.Process.Pid, partly.Process.Pid}
	have, ok := l.Read(pids).Get()
	if !ok {
		t.Fatal(l.Read(pids).Reason())
	}
	want := []int{out.Process.Pid, partly.Process.Pid}
	slices.Sort(want)
	if !slices.Equal(have.Outside, want) || len(have.Tasks) != 3 {
		t.Errorf("have %+v, want outside %v", have, want)
	}
}

// On v1 one thread can be moved alone.
func TestThreadOutsideIsFound(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	l := limits(t, ws, o, small)
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	cmd := start(t, g, `exec python3 -c "
import threading,time
threading.Thread(target=time.sleep,args=(100,)).start()"`)
	pid := cmd.Process.Pid
	var tids []os.DirEntry
	eventually(t, "a second thread", func() bool {
		tids, _ = os.ReadDir("/proc/" + itoa(pid) + "/task")
		return len(tids) == 2
	})
	if err := l.Add(pid); err != nil {
		t.Fatal(err)
	}
	if have, _ := l.Read([]int{pid}).Get(); len(have.Tasks) != 1 || len(have.Outside) != 0 {
		t.Fatalf("before: %+v", have)
	}
	parent := filepath.Dir(l.places["pids"].dir)
	if err := write(filepath.Join(parent, "tasks"), tids[1].Name()); err != nil {
		t.Fatal(err)
	}
	if have, _ := l.Read([]int{pid}).Get(); !slices.Equal(have.Outside, []int{pid}) {
		t.Errorf("after a thread left: %+v", have)
	}
}

// Threads that end all the time are at the root of v1's hierarchies for a moment each: they have not left.
func TestThreadsThatEndHaveNotLeft(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	l := limits(t, ws, o, small)
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	ready := filepath.Join(t.TempDir(), "ready")
	cmd := start(t, g, `exec python3 -c "
import os,sys,threading,time
while not os.path.exists('`+ready+`'): time.sleep(.01)
while True:
    t = threading.Thread(target=os.getpid); t.start(); t.join()"`)
	pid := cmd.Process.Pid
	if err := l.Add(pid); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		if have, ok := l.Read([]int{pid}).Get(); !ok || len(have.Outside) != 0 {
			t.Fatalf("look %d: %+v, %t", i, have, ok)
		}
	}
}

func TestBoundsAreEnforced(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	l := limits(t, ws, o, small)
	g, err := o.Group(birthplace(o))
	if err != nil {
		t.Fatal(err)
	}
	join := "for f in " + strings.Join(l.Dirs(), " ") + "; do echo $$ > $f; done; "
	forks := start(t, g, join+`exec python3 -c "
import os,sys,time
for i in range(60):
    try: pid = os.fork()
    except BlockingIOError: sys.exit(3)
    if pid == 0: time.sleep(100)
"`)
	if forks.Wait() == nil || forks.ProcessState.ExitCode() != 3 {
		t.Errorf("61 processes within a bound of 20: %v", forks.ProcessState)
	}
	slot, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	pids, err := slot.Pids()
	if err != nil || len(pids) != 19 {
		t.Errorf("%d processes within a bound of 20 and one gone, %v", len(pids), err)
	}
	if o.at.unified { // the limits' group lies in the slot's, and would go with a kill of that
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "their end", func() bool { pids, err := slot.Pids(); return err == nil && len(pids) == 0 })
	} else if err := g.Kill(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	eater := start(t, g, join+`exec python3 -c "x = bytearray(256 << 20)"`)
	if err := eater.Wait(); err == nil || eater.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("256 MiB in 64: %v", err)
	}
	u := l.Usage()
	peak, ok := u.MemoryPeak.Get()
	if !ok || peak < 32<<20 || peak > 64<<20 {
		t.Errorf("peak %d, %s", peak, u.MemoryPeak.Reason())
	}
	if cpu, ok := u.CPU.Get(); !ok || cpu < time.Millisecond {
		t.Errorf("cpu %v, %s", cpu, u.CPU.Reason())
	}
}

// A group above ours that is tighter makes the request a lie.
func TestTighterGroupAboveIsRefused(t *testing.T) {
	ws, ledger := workspace(t)
	o := owner(t, ws)
	above, err := makeNode(ws.Ledger, os.Mkdir, filepath.Join(o.at.v1["memory"].dir(), "drums-"+ws.ID+"-above"), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := above.remove(within(t, 5*time.Second)); err != nil {
			t.Error(err)
		}
	})
	if err := write(filepath.Join(above.path, "memory.limit_in_bytes"), "33554432"); err != nil {
		t.Fatal(err)
	}
	h := o.at.v1["memory"]
	h.rel = filepath.Join(h.rel, filepath.Base(above.path))
	o.at.v1["memory"] = h
	// 32 MiB of the 64 that memory and swap may have together would go to swap: that bound is another one too.
	before := len(ledger.open)
	_, err = NewLimits(ws, o, "slot-a", small)
	var e *engine.Error
	if !errors.Is(err, engine.ErrRefused) || !errors.As(err, &e) || len(e.Findings) != 2 || e.Findings[0].Subject != "memory" || e.Findings[0].Have != "33554432" {
		t.Errorf("%v %+v", err, e)
	}
	if len(ledger.open) != before {
		t.Error("a refused request left groups behind")
	}
}

func TestSwapWithoutAccountingIsUnknown(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	l := limits(t, ws, o, small)
	l.noSwap = "the kernel accounts no swap"
	if r := l.Read(nil); r.Reason() != l.noSwap {
		t.Errorf("reads as known: %+v", r)
	}
	if err := l.verify(bounds{vcpus: 1, memory: 64 << 20, swap: 1 << 30, pids: 20}); err != nil {
		t.Errorf("swap was compared: %v", err)
	}
}

func TestLimitsGoneAreUnknown(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	l := limits(t, ws, o, small)
	if err := RemoveTree(l.nodes[1].path); err != nil {
		t.Fatal(err)
	}
	if _, known := l.Read(nil).Get(); known {
		t.Error("limits that are gone read as known")
	}
}

func TestEachCallMakesNewGroups(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	a, b := limits(t, ws, o, small), limits(t, ws, o, small)
	for i := range a.nodes {
		if a.nodes[i].path == b.nodes[i].path {
			t.Errorf("shared: %s", a.nodes[i].path)
		}
	}
	for _, r := range []bench.Resources{
		{Vcpus: 1, Memory: "0", Swap: "0", Pids: 1},
		{Vcpus: 0, Memory: "1MiB", Swap: "0", Pids: 1},
		{Vcpus: 1, Memory: "1MB", Swap: "0", Pids: 1},
	} {
		if _, err := NewLimits(ws, o, "slot-a", r); !errors.Is(err, engine.ErrUsage) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// v1 keeps a group busy while a dead task was not waited for or memory is still charged.
func TestLimitsAreRemovedBesideZombies(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	l := limits(t, ws, o, small)
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "for f in "+strings.Join(l.Dirs(), " ")+"; do echo $$ > $f; done; head -c 8000000 /dev/zero > "+filepath.Join(t.TempDir(), "f")+"; sleep 100")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: g.FD()}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	eventually(t, "the sleep", func() bool { pids, _ := g.Pids(); return len(pids) == 2 })
	if err := g.Kill(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := l.Remove(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	t.Logf("removal beside a zombie: %v", time.Since(begin))
}

func BenchmarkNewLimits(b *testing.B) {
	ws, _ := workspace(b)
	o := owner(b, ws)
	for b.Loop() {
		l, err := NewLimits(ws, o, "slot-a", small)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := l.Remove(context.Background()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkReadLimits(b *testing.B) {
	ws, _ := workspace(b)
	o := owner(b, ws)
	l := limits(b, ws, o, small)
	for b.Loop() {
		if _, ok := l.Read([]int{os.Getpid()}).Get(); !ok {
			b.Fatal("unknown")
		}
	}
}

func BenchmarkRemoveLimits(b *testing.B) {
	ws, _ := workspace(b)
	o := owner(b, ws)
	for b.Loop() {
		b.StopTimer()
		l, err := NewLimits(ws, o, "slot-a", small)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := l.Remove(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

package procfs_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/procfs/slottest"
	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func TestProcessesOfASlot(t *testing.T) {
	s := slottest.Start(t)
	a := s.Spawn("a")
	b := a.Spawn("b")
	apid, bpid := a.Pid(), b.Pid()
	nested, _ := strconv.Atoi(a.Call("nested"))
	zombie, _ := strconv.Atoi(a.Call("zombie"))
	b.Go("jail", "/run/jail")
	find := func(ps []bench.Process, pid int) *bench.Process {
		i := slices.IndexFunc(ps, func(p bench.Process) bool { return p.Pid == int64(pid) })
		if i < 0 {
			return nil
		}
		return &ps[i]
	}
	var ps []bench.Process
	var hosts map[int]int
	waitFor(t, func() bool {
		var err error
		if ps, hosts, err = procfs.Processes(s.Init); err != nil {
			t.Fatal(err)
		}
		jailed, dead := find(ps, bpid), find(ps, zombie)
		return jailed != nil && jailed.Uids[0] == 1234 && dead != nil && dead.Exe == ""
	})
	if len(ps) != 5 || !slices.IsSortedFunc(ps, func(x, y bench.Process) int { return int(x.Pid - y.Pid) }) {
		t.Fatalf("processes %+v", ps)
	}
	init := find(ps, 1)
	if init.Parent != 0 || init.Session != 1 || init.Group != 1 || init.Exe != "/drums-slottest" || init.Cwd != "/" ||
		!slices.Equal(init.Argv, []string{"agent", "init"}) || !slices.Equal(init.Uids, []int64{0, 0, 0, 0}) || init.Threads < 2 {
		t.Errorf("pid 1: %+v", init)
	}
	if p := find(ps, apid); p.Parent != 1 || p.Session != int64(apid) {
		t.Errorf("child: %+v", p)
	}
	jailed := find(ps, bpid)
	if jailed.Parent != int64(apid) || jailed.Cwd != "/run/jail/below" || jailed.Exe != "/drums-slottest" ||
		!slices.Equal(jailed.Uids, []int64{1234, 1235, 1236, 1235}) || !slices.Equal(jailed.Gids, []int64{2345, 2346, 2347, 2346}) || !slices.Equal(jailed.Groups, []int64{7, 9}) {
		t.Errorf("process in a chroot: %+v", jailed)
	}
	if p := find(ps, nested); p == nil || p.Parent != int64(apid) || p.Exe != "/drums-slottest" {
		t.Errorf("process in a nested pid namespace: %+v", p)
	}
	if p := find(ps, zombie); p.Parent != int64(apid) || len(p.Argv) != 0 || p.Cwd != "" {
		t.Errorf("zombie: %+v", p)
	}
	if hosts[1] != s.Init || len(hosts) != len(ps) {
		t.Errorf("host pids: %v", hosts)
	}
	tasks, err := procfs.Tasks(s.Init)
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if task.Nested != (task.Inner == nested) || task.Zombie() != (task.Inner == zombie) || task.Pid != hosts[task.Inner] {
			t.Errorf("task %+v", task)
		}
	}
	// The joined process ends with the subtest: pid 1 cannot end before its parent, which we are, has reaped it.
	t.Run("tree", func(t *testing.T) { treeOf(t, s) })
	for name, list := range map[string]func(int) ([]procfs.Task, error){"all": procfs.Tasks, "tree": procfs.Tree,
		"first": func(pid int) ([]procfs.Task, error) { _, err := procfs.First(pid); return nil, err }} {
		if _, err := list(hosts[apid]); !errors.Is(err, engine.ErrRefused) {
			t.Errorf("%s of a process that is no pid 1: %v", name, err)
		}
	}
	s.Kill()
	for name, list := range map[string]func(int) ([]procfs.Task, error){"all": procfs.Tasks, "tree": procfs.Tree} {
		if _, err := list(s.Init); !errors.Is(err, engine.ErrDead) {
			t.Errorf("%s of a slot that is gone: %v", name, err)
		}
	}
}

// treeOf: the tree alone, which stands still, is the same as all but who joined from outside.
func treeOf(t *testing.T, s *slottest.Slot) {
	s.Stop()
	defer s.Continue()
	outsider := join(t, s, "pid")
	all, err := procfs.Tasks(s.Init)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := procfs.Tree(s.Init)
	if err != nil {
		t.Fatal(err)
	}
	without := slices.DeleteFunc(slices.Clone(all), func(task procfs.Task) bool { return task.Pid == outsider })
	if len(without) != len(all)-1 {
		t.Fatalf("%d, who joined, is not once in %+v", outsider, all)
	}
	if !reflect.DeepEqual(tree, without) {
		t.Errorf("tree %+v\nall  %+v", tree, without)
	}
}

func TestIdentityNeverMeansAnotherProcess(t *testing.T) {
	c := exec.Command("/bin/sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := procfs.Identity(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if alive, err := procfs.Alive(id); err != nil || !alive {
		t.Errorf("running: %v, %v", alive, err)
	}
	other := id
	other.StartTicks += "0"
	if alive, err := procfs.Alive(other); err != nil || alive {
		t.Errorf("other start time: %v, %v", alive, err)
	}
	if err := procfs.Kill(context.Background(), other); err != nil {
		t.Error(err)
	}
	if alive, _ := procfs.Alive(id); !alive {
		t.Error("a process of another start time was killed")
	}
	if _, err := procfs.OpenNamespace(other, "net"); !errors.Is(err, engine.ErrDead) {
		t.Errorf("namespace of another process: %v", err)
	}
	f, err := procfs.OpenNamespace(id, "net")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()

	h, err := procfs.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := h.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait for a running process: %v", err)
	}
	if err := h.Kill(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("kill after the deadline: %v", err)
	}
	if err := h.Kill(context.Background()); err != nil {
		t.Error(err)
	}
	if alive, err := procfs.Alive(id); err != nil || alive { // a zombie
		t.Errorf("zombie: %v, %v", alive, err)
	}
	c.Wait()
	if err := h.Kill(context.Background()); err != nil {
		t.Error(err)
	}
	if err := h.Signal(unix.SIGTERM); !errors.Is(err, engine.ErrDead) {
		t.Errorf("signal to a reaped process: %v", err)
	}
	if alive, err := procfs.Alive(id); err != nil || alive {
		t.Errorf("reaped: %v, %v", alive, err)
	}
	if err := procfs.Kill(context.Background(), id); err != nil {
		t.Error(err)
	}
	if _, err := procfs.Identity(c.Process.Pid); !errors.Is(err, engine.ErrDead) {
		t.Errorf("identity of a reaped process: %v", err)
	}
}

func TestKillOfPid1EmptiesTheNamespace(t *testing.T) {
	s := slottest.Start(t)
	s.Spawn("a").Spawn("b")
	ns, err := procfs.NamespaceOf(s.Init, "pid")
	if err != nil {
		t.Fatal(err)
	}
	id, err := procfs.Identity(s.Init)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := procfs.Kill(ctx, id); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == s.Init { // the zombie, which its parent has yet to reap
			continue
		}
		if have, err := procfs.NamespaceOf(pid, "pid"); err == nil && have == ns {
			t.Errorf("pid %d is left in the namespace", pid)
		}
	}
}

func TestOnThreadLeavesTheMainThreadAlone(t *testing.T) {
	for range 50 {
		err := thread.Run(func() error {
			if unix.Gettid() == unix.Getpid() {
				t.Error("on the main thread")
			}
			return unix.Unshare(unix.CLONE_NEWUTS)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	main, err := os.Readlink("/proc/self/ns/uts")
	if err != nil {
		t.Fatal(err)
	}
	if parent, err := os.Readlink("/proc/" + strconv.Itoa(os.Getppid()) + "/ns/uts"); err != nil || main != parent {
		t.Errorf("main thread in %s, parent in %s, %v", main, parent, err)
	}
}

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
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

func itoa(n int) string { return strconv.Itoa(n) }

// unifiedTree is a directory that behaves like cgroup2 as far as limits need it:
// mkdir fills a group with files, subtree_control takes +name and -name, and a
// group with processes hands nothing on.
type unifiedTree struct {
	root string
	// deaf is a group whose subtree_control swallows writes.
	deaf string
}

func newUnifiedTree(t *testing.T) (*unifiedTree, layout) {
	k := &unifiedTree{root: t.TempDir()}
	k.fill(k.root, "cpu memory pids io")
	own := filepath.Join(k.root, "user.slice")
	if err := k.mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	k.put(own, "cgroup.controllers", "cpu memory pids")
	return k, layout{unified: true, v2path: "/user.slice", v2: &hierarchy{mount: k.root, rel: "/user.slice", path: "/user.slice"}}
}

func (k *unifiedTree) put(dir, file, text string) {
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text+"\n"), 0o644); err != nil {
		panic(err)
	}
}

func (k *unifiedTree) fill(dir, controllers string) {
	k.put(dir, "cgroup.controllers", controllers)
	k.put(dir, "cgroup.subtree_control", "")
	k.put(dir, "cgroup.procs", "")
	for _, c := range strings.Fields(controllers) {
		for file, text := range map[string]map[string]string{
			"cpu":    {"cpu.max": "max 100000", "cpu.stat": "usage_usec 1500\nuser_usec 1000"},
			"memory": {"memory.max": "max", "memory.swap.max": "max", "memory.current": "4096", "memory.peak": "8192"},
			"pids":   {"pids.max": "max"},
		}[c] {
			k.put(dir, file, text)
		}
	}
}

func (k *unifiedTree) mkdir(path string, mode fs.FileMode) error {
	if err := os.Mkdir(path, mode); err != nil {
		return err
	}
	given, err := read(filepath.Dir(path), "cgroup.subtree_control")
	if err != nil {
		return err
	}
	k.fill(path, given)
	return nil
}

func (k *unifiedTree) setControl(dir, change string) error {
	if procs, err := read(dir, "cgroup.procs"); err != nil || procs != "" {
		return syscall.EBUSY
	}
	if dir == k.deaf {
		return nil
	}
	text, err := read(dir, "cgroup.subtree_control")
	if err != nil {
		return err
	}
	on := strings.Fields(text)
	for _, c := range strings.Fields(change) {
		if name, add := strings.CutPrefix(c, "+"); add {
			on = append(on, name)
		} else {
			on = without(on, []string{c[1:]})
		}
	}
	k.put(dir, "cgroup.subtree_control", strings.Join(on, " "))
	return nil
}

func (k *unifiedTree) owner(t *testing.T, at layout) (*engine.Workspace, *Owner) {
	ws, ledger := workspace(t)
	o, err := openOwner(ws, at, k.mkdir)
	if err != nil {
		t.Fatal(err)
	}
	o.setControl = k.setControl
	t.Cleanup(func() { clear(ledger.open) }) // plain directories with files in them: t.TempDir removes them
	return ws, o
}

func TestUnifiedLimits(t *testing.T) {
	k, at := newUnifiedTree(t)
	ws, o := k.owner(t, at)
	l, err := NewLimits(ws, o, "slot-a", bench.Resources{Vcpus: 3, Memory: "1GiB", Swap: "0", Pids: 64})
	if err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(k.root, "user.slice", "drums-"+ws.ID, "slot-a", "drums-"+ws.ID+"-slot-a-1")
	if !slices.Equal(l.Dirs(), []string{want + "/cgroup.procs"}) || l.FD() < 0 {
		t.Errorf("dirs %v, fd %d", l.Dirs(), l.FD())
	}
	for file, text := range map[string]string{"cpu.max": "300000 100000", "memory.max": "1073741824", "memory.swap.max": "0", "pids.max": "64"} {
		if have, err := read(want, file); err != nil || have != text {
			t.Errorf("%s is %q, %v", file, have, err)
		}
	}
	have, ok := l.Read(nil).Get()
	if !ok || have.VCPUs != 3 || have.Memory != 1<<30 || have.Swap != 0 || have.Pids != 64 || have.Groups[""] != strings.TrimPrefix(want, k.root) {
		t.Errorf("read back %+v, %s", have, l.Read(nil).Reason())
	}
	u := l.Usage()
	if cpu, _ := u.CPU.Get(); cpu != 1500*time.Microsecond {
		t.Errorf("cpu %v", cpu)
	}
	if peak, _ := u.MemoryPeak.Get(); peak != 8192 {
		t.Errorf("peak %v", peak)
	}
	if err := o.undelegate(within(t, time.Second)); err != nil {
		t.Error(err)
	}
	if on, _ := read(at.v2.dir(), "cgroup.subtree_control"); on != "" {
		t.Errorf("our own group still hands on %q", on)
	}
}

// What a tool of ours switches on in our own group beside what we did goes too: on
// systemd hosts runc switches on whatever there is, and then no process could come back
// (host-vm: "move process to cgroup: device or resource busy"). What was on before us stays.
func TestUnifiedGroupIsGivenBackAsItWas(t *testing.T) {
	k, at := newUnifiedTree(t)
	own := at.v2.dir()
	k.put(own, "cgroup.controllers", "cpu memory pids io rdma hugetlb")
	k.put(own, "cgroup.subtree_control", "rdma")
	ws, o := k.owner(t, at)
	if _, err := NewLimits(ws, o, "slot-a", small); err != nil {
		t.Fatal(err)
	}
	if err := k.setControl(own, "+io +hugetlb"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := o.undelegate(within(t, time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if on, err := read(own, "cgroup.subtree_control"); err != nil || on != "rdma" {
		t.Errorf("our own group hands on %q, %v", on, err)
	}
}

// An operator's group for our groups: they lie in it wherever a command is started, it
// keeps handing on what it did when a run ends, and nothing of ours moves into it.
func TestUnifiedHome(t *testing.T) {
	k, at := newUnifiedTree(t)
	home := filepath.Join(at.v2.dir(), "home.service")
	if err := k.mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	k.put(home, "cgroup.controllers", "cpu memory pids")
	k.put(at.v2.dir(), "cgroup.procs", "1") // where we are is somebody else, and that is no matter
	there, err := at.at(home)
	if err != nil {
		t.Fatal(err)
	}
	ws, o := k.owner(t, there)
	l, err := NewLimits(ws, o, "slot-a", small)
	if err != nil {
		t.Fatal(err)
	}
	if want := home + "/drums-" + ws.ID; o.Path() != want || o.stand != nil {
		t.Errorf("the owner is %s, want %s; aside %v", o.Path(), want, o.stand)
	}
	if have, ok := l.Read(nil).Get(); !ok || !strings.HasPrefix(have.Groups[""], "/user.slice/home.service/drums-") {
		t.Errorf("%+v", have)
	}
	if err := o.undelegate(within(t, time.Second)); err != nil {
		t.Fatal(err)
	}
	if on, _ := read(home, "cgroup.subtree_control"); on != "cpu memory pids" {
		t.Errorf("it hands on %q: another run's groups may need them", on)
	}
	k.put(home, "cgroup.procs", "1")
	nowhere := at
	nowhere.v2 = nil
	for what, err := range map[string]error{
		"with a process in it": second(at.at(home)), "not there": second(at.at(home + "/none")), "relative": second(at.at("home.service")),
		"outside": second(at.at(t.TempDir())), "no cgroup2": second(nowhere.at(home)),
	} {
		if !errors.Is(err, engine.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestUnifiedRefusalsNameTheLevel(t *testing.T) {
	newLimits := func(t *testing.T, plant func(k *unifiedTree, at layout, o *Owner)) (root string, err error) {
		k, at := newUnifiedTree(t)
		ws, o := k.owner(t, at)
		plant(k, at, o)
		_, err = NewLimits(ws, o, "slot-a", small)
		return k.root, err
	}
	t.Run("controller not given to us", func(t *testing.T) {
		root, err := newLimits(t, func(k *unifiedTree, at layout, o *Owner) { k.put(at.v2.dir(), "cgroup.controllers", "cpu pids") })
		if !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), root+"/user.slice is not given memory") {
			t.Error(err)
		}
	})
	t.Run("foreign process in our group", func(t *testing.T) {
		root, err := newLimits(t, func(k *unifiedTree, at layout, o *Owner) { k.put(at.v2.dir(), "cgroup.procs", "1") })
		if !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), root+"/user.slice also holds process 1,") {
			t.Error(err)
		}
	})
	t.Run("process in the owner", func(t *testing.T) {
		var path string
		_, err := newLimits(t, func(k *unifiedTree, at layout, o *Owner) {
			path = o.Path()
			k.put(path, "cgroup.procs", "1")
		})
		if !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), path+" refused cpu, memory, pids") {
			t.Error(err)
		}
	})
	t.Run("swallowed write", func(t *testing.T) {
		_, err := newLimits(t, func(k *unifiedTree, at layout, o *Owner) { k.deaf = o.Path() })
		if !errors.Is(err, engine.ErrUnknown) || !strings.Contains(err.Error(), "reads back without") {
			t.Error(err)
		}
	})
	t.Run("tighter group above", func(t *testing.T) {
		_, err := newLimits(t, func(k *unifiedTree, at layout, o *Owner) { k.put(at.v2.dir(), "memory.max", "1048576") })
		if !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), "memory 1048576 instead of 67108864") {
			t.Error(err)
		}
	})
}

// The real rule of the real kernel, on the hierarchy that a hybrid host has: a
// group with a process hands no controller on until the process steps aside.
// Which controller it is does not matter, as long as it is none of the threaded
// ones, which a group hands on beside its processes and is a thread root then.
func TestStepAsideOnTheKernel(t *testing.T) {
	at, err := discover()
	if err != nil {
		t.Fatal(err)
	}
	offered, err := read(at.v2.dir(), "cgroup.controllers")
	if err != nil || offered == "" {
		t.Fatalf("the v2 hierarchy at %s offers no controller to test with: %v", at.v2.dir(), err)
	}
	domain := without(strings.Fields(offered), []string{"cpu", "cpuset", "perf_event", "pids"})
	if len(domain) == 0 {
		t.Fatalf("the v2 hierarchy at %s offers threaded controllers only: %s", at.v2.dir(), offered)
	}
	controller := domain[0]
	ws, _ := workspace(t)
	o := owner(t, ws)
	if err := o.delegate([]string{controller}, o.Path()); err != nil {
		t.Fatal(err)
	}
	g, err := o.Group("inner")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestStepAsideInner$", "-test.v")
	cmd.Env = append(os.Environ(), "DRUMS_STEP_ASIDE="+controller)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: g.FD()}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "stepped aside and back") {
		t.Errorf("%v\n%s", err, out)
	}
	if dirs, err := Children(g.Path()); err != nil || len(dirs) != 0 {
		t.Errorf("left below: %v, %v", dirs, err)
	}
}

// TestStepAsideInner is the process of TestStepAsideOnTheKernel; alone it has nothing to do.
func TestStepAsideInner(t *testing.T) {
	controller := os.Getenv("DRUMS_STEP_ASIDE")
	if controller == "" {
		return
	}
	ws, _ := workspace(t)
	o, err := OpenOwner(ws)
	if err != nil {
		t.Fatal(err)
	}
	own := o.at.v2.dir()
	if err := o.delegate([]string{controller}, o.Path()); err != nil {
		t.Fatal(err)
	}
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	if given, _ := read(g.Path(), "cgroup.controllers"); given != controller {
		t.Errorf("the slot's group is given %q", given)
	}
	if pids, _ := directPids(own); len(pids) != 0 {
		t.Errorf("our own group still holds %v", pids)
	}
	if pids, _ := directPids(o.stand.node.path); !slices.Contains(pids, os.Getpid()) {
		t.Errorf("we are not in %s: %v", o.stand.node.path, pids)
	}
	if err := o.Remove(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if pids, _ := directPids(own); !slices.Contains(pids, os.Getpid()) {
		t.Errorf("we are not back: %v", pids)
	}
	if !t.Failed() {
		fmt.Println("stepped aside and back")
	}
}

func setDelegate(dir, value string) error {
	return unix.Setxattr(dir, "trusted.delegate", []byte(value), 0)
}

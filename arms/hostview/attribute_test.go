package hostview

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

func TestClaims(t *testing.T) {
	s := Scope{ID: runID, Paths: []string{"/state/work/" + runID}}
	for path, want := range map[string]bool{
		"/sys/fs/cgroup/a/drums-" + runID: true, "/sys/fs/cgroup/drums-" + runID + "/slot-0": true, "/x/drums-" + runID + "-slot-0": true,
		"/state/work/" + runID: true, "/state/work/" + runID + "/slot-0.0": true,
		"/sys/fs/cgroup/drums-" + runID + "0": false, "/sys/fs/cgroup/drums-" + runID[:11]: false, "/x/sdrums-" + runID: false,
		"/state/work/" + runID + "0": false, "/state/work": false, "": false,
	} {
		if got := s.holdsPath(path); got != want {
			t.Errorf("%q is ours: %v, want %v", path, got, want)
		}
	}
	for name, want := range map[string]bool{
		"drums-" + runID: true, "dr" + runID: true, "dr-" + runID: true, "v" + runID: true, runID + "-x": true,
		"0" + runID: false, runID + "f": false, "0" + runID + " " + runID: true, "eth0": false, "": false,
	} {
		if got := s.bears(name); got != want {
			t.Errorf("%q bears the claim: %v, want %v", name, got, want)
		}
	}
	for _, c := range []struct {
		group, home string
		want        bool
	}{
		{"/drums-ba9876543210/slot-0", "/", true}, {"/user/drums-ba9876543210", "/user", true}, {"/drums-ba9876543210-limits/x", "/", true},
		{"/drums-" + runID, "/", false}, {"/user", "/user", false}, {"/drums-test", "/", false},
		// A run within a run: what is above our own group says nothing.
		{"/drums-ba9876543210", "/drums-ba9876543210", false}, {"/drums-ba9876543210/drums-111111111111", "/drums-ba9876543210", true},
	} {
		if got := s.otherRun(c.group, c.home); got != c.want {
			t.Errorf("a process in %s, seen from %s, is of another run: %v, want %v", c.group, c.home, got, c.want)
		}
	}
}

func TestOverlayOverOurLayers(t *testing.T) {
	ours, elsewhere := t.TempDir(), t.TempDir()
	for _, d := range []string{"upper", "work", "lower"} {
		must(t, os.Mkdir(filepath.Join(ours, d), 0o755))
	}
	point := filepath.Join(elsewhere, "merged")
	must(t, os.Mkdir(point, 0o755))
	s := look(t, Scope{ID: runID, Paths: []string{ours}})
	foreign := look(t, Scope{ID: runID})
	must(t, unix.Mount("drums", point, "overlay", 0, fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", ours, ours, ours)))
	defer unix.Unmount(point, unix.MNT_DETACH)
	findings := compare(t, s)
	expect(t, findings, "mount "+point+" is there and was not overlay")
	requireTold(t, findings)
	find(t, compare(t, foreign), engine.Pass, "mount "+point)
}

// Runs share an image, and so the file behind a loop device.
func TestLoopDeviceByItsName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shared-image")
	must(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
	for id, verdict := range map[string]string{runID: "fail", "ba9876543210": "pass"} {
		s := look(t, Scope{ID: runID})
		loop := attach(t, file, "drums-"+id)
		findings := compare(t, s)
		for _, f := range findings {
			if strings.Contains(f.Have, file) && (string(f.Verdict) != verdict || !strings.Contains(f.Have, "drums-"+id)) {
				t.Errorf("a device of run %s: %+v", id, f)
			}
		}
		if verdict == "fail" {
			find(t, findings, engine.Fail, "loop device "+filepath.Base(loop.Name()))
		}
		must(t, loop.Close()) // which detaches it
		await(t, func() bool { return len(fails(compare(t, s))) == 0 })
	}
}

func attach(t *testing.T, file, name string) *os.File {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	must(t, err)
	defer control.Close()
	backing, err := os.Open(file)
	must(t, err)
	defer backing.Close()
	for range 50 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		must(t, err)
		loop, err := os.Open(fmt.Sprintf("/dev/loop%d", n))
		must(t, err)
		config := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR}}
		copy(config.Info.File_name[:], name)
		if err = unix.IoctlLoopConfigure(int(loop.Fd()), &config); err == nil {
			return loop
		}
		loop.Close()
		if err != unix.EBUSY {
			t.Fatal(err)
		}
	}
	t.Fatal("no loop device is free")
	return nil
}

// sleeper is a child of ours in a network namespace of its own.
func sleeper(t *testing.T, group string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "100")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if group != "" {
		dir, err := os.Open(group)
		must(t, err)
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	must(t, cmd.Start())
	t.Cleanup(func() { end(cmd) })
	return cmd
}

func end(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
}

// A child of this process that another run made is that run's.
func TestAnotherRunInThisProcess(t *testing.T) {
	group := ownCgroup(t, "ba9876543210")
	s := look(t, Scope{ID: runID})
	other := look(t, Scope{ID: "ba9876543210"})
	child := sleeper(t, group)
	name := fmt.Sprintf("process %d", child.Process.Pid)
	findings := compare(t, s)
	expect(t, findings)
	find(t, findings, engine.Pass, "network namespace")
	find(t, compare(t, other), engine.Fail, name)
	// Its end is none of ours either, waited for or not.
	during := look(t, Scope{ID: runID})
	must(t, child.Process.Kill())
	await(t, func() bool { return strings.Contains(stat(child.Process.Pid), ") Z ") })
	expect(t, compare(t, during))
	end(child)
	expect(t, compare(t, during))
}

// An earlier attempt at the same run was swept: its dead processes go when somebody waits for them.
func TestDeadOfAnEarlierAttempt(t *testing.T) {
	group := ownCgroup(t, runID)
	child := sleeper(t, group)
	must(t, child.Process.Kill())
	await(t, func() bool { return strings.Contains(stat(child.Process.Pid), ") Z ") })
	s := look(t, Scope{ID: runID})
	end(child)
	must(t, unix.Rmdir(group))
	expect(t, compare(t, s))
}

// What an earlier attempt at the same run left, and this one goes on in, has to be gone at its end.
func TestSlotOfAnEarlierAttempt(t *testing.T) {
	group := ownCgroup(t, runID)
	child := sleeper(t, group)
	s := look(t, Scope{ID: runID})
	findings := compare(t, s)
	find(t, findings, engine.Fail, fmt.Sprintf("process %d", child.Process.Pid))
	find(t, findings, engine.Fail, "network namespace")
	find(t, findings, engine.Fail, "control group "+group)
	must(t, child.Process.Kill()) // whoever is its parent waits for it in his own time
	await(t, func() bool { return strings.Contains(stat(child.Process.Pid), ") Z ") })
	must(t, unix.Rmdir(group))
	expect(t, compare(t, s))
	end(child)
}

// A namespace that nobody lives in stays while we hold a descriptor of it, or a thread is in it.
func TestNetworkNamespaceThatWeHold(t *testing.T) {
	s := look(t, Scope{ID: runID})
	child := sleeper(t, "")
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", child.Process.Pid))
	must(t, err)
	defer f.Close()
	end(child)
	findings := compare(t, s)
	expect(t, findings, "network namespace ")
	requireTold(t, findings)
	if have := find(t, findings, engine.Fail, "network namespace").Have; have != fmt.Sprintf("held by descriptor %d of this process", f.Fd()) {
		t.Errorf("have %q", have)
	}
	must(t, f.Close())
	expect(t, compare(t, s))

	entered, leave, left := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(left)
		runtime.LockOSThread() // and ends with the goroutine
		entered <- unix.Unshare(unix.CLONE_NEWNET)
		<-leave
	}()
	must(t, <-entered)
	if have := find(t, compare(t, s), engine.Fail, "network namespace").Have; !strings.HasPrefix(have, "held by thread ") {
		t.Errorf("have %q", have)
	}
	close(leave)
	<-left
	await(t, func() bool { return len(fails(compare(t, s))) == 0 })
}

func TestLinks(t *testing.T) {
	ownNetwork(t)
	veth := func(name, peer string) *netlink.Veth {
		return &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer}
	}
	for _, c := range []struct {
		name string
		// plant returns the subject that must fail, empty for a foreign one.
		plant func(t *testing.T) (undo func(), subjects []string)
	}{
		{"named with the claim", func(t *testing.T) (func(), []string) {
			l := veth("dr"+runID, "eth7")
			must(t, netlink.LinkAdd(l))
			return func() { must(t, netlink.LinkDel(l)) }, []string{"link dr" + runID}
		}},
		{"alias", func(t *testing.T) (func(), []string) {
			l := veth("eth7", "eth8")
			must(t, netlink.LinkAdd(l))
			must(t, netlink.LinkSetAlias(l, "drums-"+runID+" slot-0"))
			return func() { must(t, netlink.LinkDel(l)) }, []string{"link eth7"}
		}},
		{"other end with a process of ours", func(t *testing.T) (func(), []string) {
			child := sleeper(t, "")
			must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth7"}, PeerName: "eth0", PeerNamespace: netlink.NsPid(child.Process.Pid)}))
			return func() { end(child) }, []string{fmt.Sprint("process ", child.Process.Pid), "network namespace", "link eth7"}
		}},
		{"similar name", func(t *testing.T) (func(), []string) {
			l := veth("d"+runID+"c", "eth7")
			must(t, netlink.LinkAdd(l))
			return func() { must(t, netlink.LinkDel(l)) }, nil
		}},
	} {
		s := look(t, Scope{ID: runID})
		undo, subjects := c.plant(t)
		findings := compare(t, s)
		expect(t, findings, subjects...)
		requireTold(t, findings)
		if len(subjects) == 0 {
			find(t, findings, engine.Pass, "link")
		}
		undo()
		await(t, func() bool { return len(fails(compare(t, s))) == 0 })
	}
}

// A link of the host that was moved to a slot and not back.
func TestLinkMovedAway(t *testing.T) {
	ownNetwork(t)
	l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth7"}, PeerName: "eth8"}
	must(t, netlink.LinkAdd(l))
	s := look(t, Scope{ID: runID})
	child := sleeper(t, "")
	must(t, netlink.LinkSetNsPid(l, child.Process.Pid))
	findings := compare(t, s)
	expect(t, findings, fmt.Sprint("process ", child.Process.Pid), "network namespace", "link eth7 was there and is not")
	if want := find(t, findings, engine.Fail, "link eth7").Want; !strings.Contains(want, "now in network namespace ") {
		t.Errorf("want %q", want)
	}
	// Once nothing says where it went, it is only listed.
	end(child)
	await(t, func() bool { return len(fails(compare(t, s))) == 0 })
	find(t, compare(t, s), engine.Pass, "link eth7")
}

package drums

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

	"github.com/moby/sys/mountinfo"
	prom "github.com/prometheus/procfs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps"
)

// litterer is the drums arm that leaves something behind once it has released everything.
type litterer struct {
	*Arm
	t      *testing.T
	litter func(t *testing.T, ws *engine.Workspace) (subject string)
	ws     *engine.Workspace
	// subject of the finding that the litter must give.
	subject string
}

func (l *litterer) Mount(ctx context.Context, ws *engine.Workspace, p bench.MountParams) (engine.Root, error) {
	l.ws = ws
	return l.Arm.Mount(ctx, ws, p)
}

func (l *litterer) Release(ctx context.Context) error {
	if err := l.Arm.Release(ctx); err != nil {
		return err
	}
	if l.subject == "" {
		l.subject = l.litter(l.t, l.ws)
	}
	return nil
}

// ownNetwork is set in the copy of this test that has a network namespace to itself.
const ownNetwork = "DRUMS_TEST_OWN_NETWORK"

// inOwnNetwork runs the test again as a process in a network namespace of its
// own, where links and settings can be changed without anybody noticing. It says
// whether this process is the one.
func inOwnNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(ownNetwork) != "" {
		// criu probes the kernel over loopback; a new namespace has it down.
		if err := netns.LoopbackUp(); err != nil {
			t.Fatal(err)
		}
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), ownNetwork+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in a network namespace of its own: %v\n%s", err, out)
	}
	return false
}

// Everything that a run can leave on the host fails the run, by name; the same
// of somebody else's is listed, and the run passes.
func TestLeftovers(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	const another = "ba9876543210"
	for _, c := range []struct {
		name   string
		litter func(t *testing.T, ws *engine.Workspace) string
		want   bench.Verdict
	}{
		{"mount below the scratch directory", func(t *testing.T, ws *engine.Workspace) string {
			point := filepath.Join(ws.Work, "left")
			must(t, os.Mkdir(point, 0o700))
			t.Cleanup(func() { must(t, os.Remove(point)); must(t, os.Remove(ws.Work)) })
			return mountTmpfs(t, point)
		}, engine.Fail},
		{"mount elsewhere", func(t *testing.T, _ *engine.Workspace) string { return mountTmpfs(t, t.TempDir()) }, engine.Pass},

		{"control group", func(t *testing.T, ws *engine.Workspace) string {
			return "control group " + makeGroup(t, "drums-"+ws.ID)
		}, engine.Fail},
		{"control group of limits", func(t *testing.T, ws *engine.Workspace) string {
			return "control group " + makeGroup(t, "drums-"+ws.ID+"-slot-0")
		}, engine.Fail},
		{"control group of another run", func(t *testing.T, _ *engine.Workspace) string {
			return "control group " + makeGroup(t, "drums-"+another)
		}, engine.Pass},

		{"process in the run's control group", func(t *testing.T, ws *engine.Workspace) string {
			return fmt.Sprint("process ", orphan(t, makeGroup(t, "drums-"+ws.ID), 0))
		}, engine.Fail},
		{"process of another run", func(t *testing.T, _ *engine.Workspace) string {
			orphan(t, makeGroup(t, "drums-"+another), 0)
			return "processes"
		}, engine.Pass},
		{"child that was not waited for", func(t *testing.T, _ *engine.Workspace) string {
			cmd := exec.Command("true")
			must(t, cmd.Start())
			t.Cleanup(func() { must(t, cmd.Wait()) })
			return fmt.Sprint("process ", cmd.Process.Pid)
		}, engine.Fail},

		{"loop device on a file of the run's", func(t *testing.T, ws *engine.Workspace) string {
			file := filepath.Join(ws.Run, "left.img")
			must(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
			return loopDevice(t, file, "")
		}, engine.Fail},
		{"loop device of the run's on a shared file", func(t *testing.T, ws *engine.Workspace) string {
			file := filepath.Join(t.TempDir(), "shared.img")
			must(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
			return loopDevice(t, file, "drums-"+ws.ID)
		}, engine.Fail},
		{"loop device of another run on a shared file", func(t *testing.T, ws *engine.Workspace) string {
			file := filepath.Join(t.TempDir(), "shared.img")
			must(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
			return loopDevice(t, file, "drums-"+another)
		}, engine.Pass},

		{"link named with the claim", func(t *testing.T, ws *engine.Workspace) string {
			return addVeth(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "dr" + ws.ID}, PeerName: "eth8"})
		}, engine.Fail},
		{"link into a namespace of ours", func(t *testing.T, ws *engine.Workspace) string {
			pid := orphan(t, makeGroup(t, "drums-"+ws.ID), syscall.CLONE_NEWNET)
			return addVeth(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth7"}, PeerName: "eth0", PeerNamespace: netlink.NsPid(pid)})
		}, engine.Fail},
		{"link of somebody else", func(t *testing.T, _ *engine.Workspace) string {
			return addVeth(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "dr" + another}, PeerName: "eth8"})
		}, engine.Pass},

		{"network namespace of a process", func(t *testing.T, ws *engine.Workspace) string {
			orphan(t, makeGroup(t, "drums-"+ws.ID), syscall.CLONE_NEWNET)
			return "network namespace "
		}, engine.Fail},
		{"network namespace that a descriptor holds", func(t *testing.T, ws *engine.Workspace) string {
			group := makeGroup(t, "drums-"+another)
			pid := orphan(t, group, syscall.CLONE_NEWNET)
			f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
			must(t, err)
			t.Cleanup(func() { must(t, f.Close()) })
			must(t, os.WriteFile(filepath.Join(group, "cgroup.kill"), []byte("1"), 0))
			return "network namespace "
		}, engine.Fail},
		{"network namespace of another run", func(t *testing.T, _ *engine.Workspace) string {
			orphan(t, makeGroup(t, "drums-"+another), syscall.CLONE_NEWNET)
			return "network namespace "
		}, engine.Pass},

		{"changed setting", func(t *testing.T, _ *engine.Workspace) string {
			const file = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
			old, err := os.ReadFile(file)
			must(t, err)
			must(t, os.WriteFile(file, []byte("1000"), 0))
			t.Cleanup(func() { must(t, os.WriteFile(file, old, 0)) })
			return "sysctl net.ipv4.ip_unprivileged_port_start"
		}, engine.Fail},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := manifest(t, "rollouts=1")
			arm := &litterer{Arm: newArm(t, m), t: t, litter: c.litter}
			res := runPlan(t, arm, m, "cold")
			o := outcome(t, res, "gate-cleanup")
			if o.Verdict != c.want {
				t.Errorf("the gate is %s: %+v", o.Verdict, o)
			}
			if want := map[bench.Verdict]bench.RunVerdict{engine.Fail: engine.RunFailed, engine.Pass: engine.RunPassed}[c.want]; res.Verdict != want {
				t.Errorf("the run %s: %s", res.Verdict, res.Reason)
			}
			for _, other := range res.Outcomes {
				// The scratch directory cannot be removed while something is mounted in it.
				if other.Verdict != engine.Pass && other.Step != o.Step && !(other.Step == "release/root" && strings.Contains(arm.subject, arm.ws.Work)) {
					t.Errorf("step %s: %s %+v %+v", other.Step, other.Verdict, other.Error, other.Findings)
				}
			}
			if !slices.ContainsFunc(o.Findings, func(f bench.Finding) bool {
				return f.Verdict == c.want && strings.HasPrefix(f.Subject, arm.subject)
			}) {
				t.Errorf("no finding about %q: %+v", arm.subject, o.Findings)
			}
		})
	}
}

// Runs at the same time, even of one process, are foreign to each other.
func TestRunsAtTheSameTime(t *testing.T) {
	for i, reset := range []string{"restore", "cold", "restore"} {
		t.Run(fmt.Sprint(i, " ", reset), func(t *testing.T) {
			t.Parallel()
			m := manifest(t, "rollouts=4", "slots=2")
			res := runPlan(t, newArm(t, m), m, reset)
			if res.Verdict != engine.RunPassed {
				t.Errorf("%s: %s", res.Verdict, res.Reason)
			}
			if o := outcome(t, res, "gate-cleanup"); o.Verdict != engine.Pass {
				t.Errorf("%+v", o)
			}
		})
	}
}

func runPlan(t *testing.T, arm engine.Arm, m bench.Manifest, reset string) engine.Result {
	t.Helper()
	workload, err := compile.Workload(m)
	must(t, err)
	plan, err := steps.Block(m, workload, reset)
	must(t, err)
	ws, dir := workspace(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	res, err := (&engine.Executor{Plan: plan, Bindings: steps.Bindings(), Arm: arm, Workspace: ws, Sink: dir.Events}).Run(ctx)
	must(t, err)
	for _, o := range res.Outcomes {
		if (o.Step == "survey" || o.Step == "gate-cleanup") && o.Nanoseconds != "" {
			ns, err := strconv.ParseInt(string(o.Nanoseconds), 10, 64)
			must(t, err)
			t.Logf("%s took %s", o.Step, time.Duration(ns).Round(100*time.Microsecond))
		}
	}
	return res
}

func outcome(t *testing.T, r engine.Result, step string) bench.StepOutcome {
	t.Helper()
	i := slices.IndexFunc(r.Outcomes, func(o bench.StepOutcome) bool { return o.Step == step })
	if i < 0 {
		t.Fatalf("the plan has no step %s", step)
	}
	return r.Outcomes[i]
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mountTmpfs(t *testing.T, point string) string {
	t.Helper()
	must(t, unix.Mount("drums", point, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { must(t, unix.Unmount(point, 0)) })
	return "mount " + point
}

// makeGroup makes a group on the v2 hierarchy, below our own.
func makeGroup(t *testing.T, name string) string {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup2"))
	must(t, err)
	self, err := prom.Self()
	must(t, err)
	groups, err := self.Cgroups()
	must(t, err)
	for _, g := range groups {
		if g.HierarchyID != 0 || len(mounts) == 0 {
			continue
		}
		dir := filepath.Join(mounts[0].Mountpoint, strings.TrimPrefix(g.Path, mounts[0].Root), name)
		must(t, os.Mkdir(dir, 0o755))
		t.Cleanup(func() {
			must(t, os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0))
			for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
				if err := os.Remove(dir); err == nil || time.Now().After(end) {
					must(t, err)
					return
				}
			}
		})
		return dir
	}
	t.Fatal("no cgroup2 hierarchy is mounted")
	return ""
}

// orphan starts a process in a group, whose parent has ended, and returns its pid.
func orphan(t *testing.T, group string, flags uintptr) int {
	t.Helper()
	dir, err := os.Open(group)
	must(t, err)
	defer dir.Close()
	cmd := exec.Command("sh", "-c", "sleep 100 >/dev/null 2>&1 & echo $!")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Cloneflags: flags}
	out, err := cmd.Output()
	must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	must(t, err)
	return pid
}

// loopDevice shows a file and bears a name, as whoever made it would leave it.
func loopDevice(t *testing.T, file, name string) string {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	must(t, err)
	defer control.Close()
	backing, err := os.Open(file)
	must(t, err)
	defer backing.Close()
	config := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR}}
	copy(config.Info.File_name[:], name)
	for range 100 { // others take devices, too
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		must(t, err)
		loop, err := os.Open(fmt.Sprintf("/dev/loop%d", n))
		must(t, err)
		if err = unix.IoctlLoopConfigure(int(loop.Fd()), &config); err == nil {
			t.Cleanup(func() { must(t, loop.Close()) }) // which detaches it
			return fmt.Sprintf("loop device loop%d", n)
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			t.Fatal(err)
		}
	}
	t.Fatal("no loop device is free")
	return ""
}

func addVeth(t *testing.T, l *netlink.Veth) string {
	t.Helper()
	must(t, netlink.LinkAdd(l))
	t.Cleanup(func() {
		var gone netlink.LinkNotFoundError // with the namespace of its other end
		if _, err := netlink.LinkByName(l.Name); !errors.As(err, &gone) {
			must(t, netlink.LinkDel(l))
		}
	})
	return "link " + l.Name
}

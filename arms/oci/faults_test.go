package oci

import (
	"context"
	"encoding/binary"
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

	"github.com/checkpoint-restore/go-criu/v7/crit/images/cgroup"
	"github.com/checkpoint-restore/go-criu/v7/magic"
	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/hosttool"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/irregulartest"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps/gate"
)

// world is one run with a mounted image; the test's end releases all of it and
// requires that the ledger is closed.
type world struct {
	t    *testing.T
	m    bench.Manifest
	ws   *engine.Workspace
	dir  *record.Dir
	arm  *Arm
	root engine.Root
	ctx  context.Context
	// places of the run, for a test that fails before it has released them.
	places []engine.Place
	ended  bool
}

func begin(t *testing.T, change func(*bench.OCISettings)) *world {
	t.Helper()
	w := &world{t: t, m: manifest(t)}
	if change != nil {
		change(w.m.Arms.Oci)
	}
	w.ws, w.dir = workspace(t)
	w.arm = newArm(t, w.m)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	w.ctx = ctx
	t.Cleanup(cancel)
	var err error
	if w.root, err = w.arm.Mount(ctx, w.ws, bench.MountParams{Image: w.m.Image}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !w.ended {
			w.end(w.places...)
		}
	})
	return w
}

// end releases a place and what it stands on.
func (w *world) end(places ...engine.Place) {
	w.t.Helper()
	w.ended = true
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, p := range places {
		if err := p.Release(ctx); err != nil {
			w.t.Error(err)
		}
	}
	for _, f := range []func(context.Context) error{w.root.Release, w.arm.Release, w.ws.Release} {
		if err := f(ctx); err != nil {
			w.t.Error(err)
		}
	}
	if open := w.dir.Ledger.Open(); len(open) > 0 {
		w.t.Errorf("the ledger still owns %+v", open)
	}
}

func (w *world) provision(name string) *slot {
	w.t.Helper()
	s, err := w.arm.Provision(w.ctx, w.ws, w.root, nil, bench.ProvisionParams{
		Slot: bench.Name(name), Network: w.m.Network, Guest: w.m.Guest, Resources: w.m.Resources, Policy: *w.m.Checkpoint, Exclude: []string{},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.places = append(w.places, s)
	w.ready(s)
	return s.(*slot)
}

func (w *world) ready(s engine.Slot) guest.Probe {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, 20*time.Second)
	defer cancel()
	for {
		probe, err := guest.New(s.Dial, int(w.m.Guest.Server.Port), guest.DefaultLimits()).Probe(ctx)
		if err == nil && probe.Phase == guest.PhaseRunning {
			return probe
		}
		if ctx.Err() != nil {
			w.t.Fatalf("the guest does not run: %v %+v", err, probe)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (w *world) dump(s *slot) (engine.Checkpoint, engine.Place, error) {
	w.t.Helper()
	probe := w.ready(s)
	return s.Dump(w.ctx, bench.DumpParams{Port: w.m.Guest.Server.Port, Policy: *w.m.Checkpoint, Exclude: []string{}, Canary: w.m.Canary,
		Workload: bench.SHA256(strings.Repeat("0", 64))}, engine.GuestReference{Live: probe.Live, Canary: "x"})
}

func (w *world) restore(cp engine.Checkpoint, place engine.Place, r bench.Resources) (engine.Stopped, error) {
	return w.arm.Restore(w.ctx, w.ws, w.root, cp, place, bench.RestoreParams{Slot: "slot-0", Resources: r, Policy: *w.m.Checkpoint, Exclude: []string{}})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		for _, e := range engine.Within(err) {
			if b, rerr := os.ReadFile(e.Log); rerr == nil {
				t.Log(string(b[max(0, len(b)-3000):]))
			}
		}
		t.Fatal(err)
	}
}

// refused requires a refusal with a finding that names the subject.
func refused(t *testing.T, err error, subject string) {
	t.Helper()
	if !errors.Is(err, engine.ErrRefused) {
		t.Fatalf("%v, want a refusal", err)
	}
	for _, e := range engine.Within(err) {
		for _, f := range e.Findings {
			if strings.Contains(f.Subject+" "+f.Text, subject) {
				return
			}
		}
	}
	t.Errorf("no finding about %q in %v", subject, err)
}

// The controls of manifests/locks: as runc ships it a held lock refuses the dump;
// with CRIU's own flag the locks on mapped files are lost, and the gate names them.
func TestLockSettings(t *testing.T) {
	t.Run("refuse", func(t *testing.T) {
		w := begin(t, func(s *bench.OCISettings) { s.Locks = "refuse" })
		s := w.provision("slot-0")
		before := w.ready(s)
		_, _, err := w.dump(s)
		refused(t, err, "lock")
		if w.ready(s).Live.Token != before.Live.Token {
			t.Error("the slot did not run on")
		}
		w.end(s)
	})
	t.Run("criu", func(t *testing.T) {
		w := begin(t, func(s *bench.OCISettings) { s.Locks = "criu" })
		cp, place, err := w.dump(w.provision("slot-0"))
		must(t, err)
		s, err := w.restore(cp, place, w.m.Resources)
		must(t, err)
		j := gate.JudgeLocks(cp.Handle.Locks, s.Observe(w.ctx, engine.AspectLocks).Locks)
		if j.Verdict() != engine.Fail || !strings.Contains(fmt.Sprint(j.Findings), "/var/lib/locks/mapped") {
			t.Errorf("%s: %+v", j.Verdict(), j.Findings)
		}
		w.end(s)
	})
	t.Run("the plan", func(t *testing.T) {
		for locks, step := range map[string]string{"refuse": "base/gate-enclosed-enclosure", "criu": "r0/gate-stopped-locks"} {
			m := manifest(t, "rollouts=1")
			m.Arms.Oci.Locks = locks
			res, by, _ := execute(t, newArm(t, m), m, "restore")
			if res.Verdict != engine.RunFailed || by[step].Verdict != engine.Fail {
				t.Errorf("locks %s: the run %s, %s %+v", locks, res.Verdict, step, by[step])
			}
		}
	})
}

// The holder outlives twenty resets; without it nothing that destroys is begun.
func TestHolder(t *testing.T) {
	w := begin(t, nil)
	cp, place, err := w.dump(w.provision("slot-0"))
	must(t, err)
	var inode uint64
	for i := range 20 {
		s, err := w.restore(cp, place, w.m.Resources)
		must(t, err)
		slot, err := s.Resume(w.ctx)
		must(t, err)
		w.ready(slot)
		o := slot.Observe(w.ctx, engine.AspectNetwork)
		if j := gate.JudgeNetwork(cp.Handle.Reference.Network, o.Network); j.Verdict() != engine.Pass {
			t.Fatalf("reset %d: %+v", i, j.Findings)
		}
		ns, err := procfs.NamespaceOf(as0(t, slot).now.Pid, "net")
		must(t, err)
		if inode != 0 && ns.Ino != inode {
			t.Fatalf("reset %d is in network namespace %d, the one before was in %d", i, ns.Ino, inode)
		}
		inode, place = ns.Ino, slot
	}
	p := as0(t, place)
	ownStdio(t, p.now.Pid)
	m, ok := place.(engine.Slot).Observe(w.ctx, engine.AspectMemory).Memory.Get()
	if !ok || m.Harness <= 0 || m.HarnessCPU <= 0 || m.HarnessLife <= m.HarnessCPU {
		t.Errorf("memory %+v, want the holder's in it", m)
	}

	// A restore that fails keeps it, and can be tried again.
	small := w.m.Resources
	small.Memory = "1MiB"
	// Which of its processes the kernel ends is its affair: where criu waits for one that is gone, time ends it.
	short, cancel := context.WithTimeout(w.ctx, 20*time.Second)
	defer cancel()
	tight := *w
	tight.ctx = short
	if _, err := tight.restore(cp, place, small); err == nil {
		t.Fatal("a slot was restored into 1 MiB")
	}
	must(t, p.holder.Verify())
	s, err := w.restore(cp, place, w.m.Resources)
	must(t, err)
	slot, err := s.Resume(w.ctx)
	must(t, err)
	w.ready(slot)

	must(t, procfs.Kill(w.ctx, p.holder.Identity()))
	_, err = w.restore(cp, slot, w.m.Resources)
	if !errors.Is(err, engine.ErrRefused) {
		t.Errorf("restore without the holder: %v, want a refusal", err)
	}
	w.ready(slot) // the tree of before runs on
	w.end(slot)
}

func as0(t *testing.T, p engine.Place) *place {
	t.Helper()
	out, err := as(p)
	must(t, err)
	return out
}

// Where runc makes the network namespace, the restored one has lo down, and the gate says so.
func TestNamespaceOfRunc(t *testing.T) {
	w := begin(t, func(s *bench.OCISettings) { s.Namespace = "runc" })
	s := w.provision("slot-0")
	if j := gate.JudgeNetworkUp(s.Observe(w.ctx, engine.AspectNetwork).Network); j.Verdict() != engine.Pass {
		t.Errorf("cold: %+v", j.Findings)
	}
	cp, place, err := w.dump(s)
	must(t, err)
	st, err := w.restore(cp, place, w.m.Resources)
	must(t, err)
	back, err := st.Resume(w.ctx)
	must(t, err)
	o := back.Observe(w.ctx, engine.AspectNetwork)
	up, equal := gate.JudgeNetworkUp(o.Network), gate.JudgeNetwork(cp.Handle.Reference.Network, o.Network)
	if up.Verdict() != engine.Fail || len(up.Findings) == 0 || up.Findings[0].Have != "DOWN" {
		t.Errorf("lo is judged %s: %+v", up.Verdict(), up.Findings)
	}
	if equal.Verdict() != engine.Fail {
		t.Errorf("the network is judged %s: %+v", equal.Verdict(), equal.Findings)
	}
	w.end(back)

	m := manifest(t, "rollouts=1")
	m.Arms.Oci.Namespace = "runc"
	res, by, _ := execute(t, newArm(t, m), m, "restore")
	network := by["r0/gate-stopped-network"]
	if said := fmt.Sprintf("%+v", network.Findings); res.Verdict != engine.RunFailed || network.Verdict != engine.Fail || !strings.Contains(said, "lo") || !strings.Contains(said, "DOWN") {
		t.Errorf("the run %s: %+v", res.Verdict, network)
	}
}

// ownStdio: the first process's stdio are files of the slot's own mounts; the
// enclosure gate refuses the dump of whatever else is open.
func ownStdio(t *testing.T, pid int) {
	t.Helper()
	host, err := os.Stat(os.DevNull)
	must(t, err)
	for fd := range 3 {
		path := fmt.Sprintf("/proc/%d/fd/%d", pid, fd)
		have, err := os.Stat(path)
		must(t, err)
		own, err := os.Stat(fmt.Sprintf("/proc/%d/root/dev/null", pid))
		must(t, err)
		if os.SameFile(have, host) || !os.SameFile(have, own) {
			link, _ := os.Readlink(path)
			t.Errorf("descriptor %d of the first process is %s, and not the slot's /dev/null", fd, link)
		}
	}
}

// A process that runc exec left, and any other in the container's groups that is
// not in its tree, refuses the dump; the slot runs on.
func TestStrays(t *testing.T) {
	w := begin(t, nil)
	s := w.provision("slot-0")
	ownStdio(t, s.now.Pid)
	c := s.container(s.now)
	pidFile := filepath.Join(t.TempDir(), "pid")
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must(t, err)
	defer null.Close()
	cmd := exec.Command(w.arm.runcTool.Path, "--root", c.runcRoot(), "exec", "-d", "--pid-file", pidFile, c.ID, "/bin/busybox", "sleep", "600")
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.env(filepath.Dir(c.CRIU.Path)), null, null, null
	must(t, cmd.Run())
	_, _, err = w.dump(s)
	refused(t, err, "")
	text, err := os.ReadFile(pidFile)
	must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	must(t, err)
	id, err := procfs.Identity(pid)
	must(t, err)
	must(t, procfs.Kill(w.ctx, id))
	for range 500 { // its parent is the host's first process, which reaps it
		if _, err := procfs.Identity(pid); errors.Is(err, engine.ErrDead) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}

	// One that shares nothing with the slot but a control group.
	other := exec.Command("sleep", "600")
	// No Pdeathsig: it comes with the end of the thread that started it, and threads of ours end.
	other.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: s.group.FD()}
	must(t, other.Start())
	_, _, err = w.dump(s)
	refused(t, err, fmt.Sprintf("process %d (sleep)", other.Process.Pid))
	must(t, other.Process.Kill())
	other.Wait()

	for range 100 { // the dead are nobody's strays
		if found, err := s.strays(s.now); err == nil && len(found) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	_, place, err := w.dump(s)
	must(t, err)
	w.end(place)
}

// What a manifest pins must be what is there.
func TestPins(t *testing.T) {
	m := manifest(t)
	tool, err := criu.Locate(t.Context(), stateDir())
	must(t, err)
	runc, err := Locate(t.Context(), stateDir())
	must(t, err)
	settings := *m.Arms.Oci
	settings.Runc = bench.SHA256(runc.SHA256)
	if _, err := New(settings, runc, tool, nil); err != nil {
		t.Error(err)
	}
	settings.Runc = bench.SHA256(strings.Repeat("ab", 32))
	_, err = New(settings, runc, tool, nil)
	refused(t, err, "runc")

	// An operator's program is used before the system's, and only as it was recorded.
	state := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(state, "runc"), 0o755))
	record := func(sum string) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(state, recordFile), []byte(fmt.Sprintf(`{"runc": {"path": %q, "sha256": %q}}`, runc.Path, sum)), 0o644))
	}
	record(runc.SHA256)
	if got, err := Locate(t.Context(), state); err != nil || got.Origin != "operator" || got.Path != runc.Path {
		t.Errorf("%+v, %v", got, err)
	}
	record(strings.Repeat("cd", 32))
	if _, err := Locate(t.Context(), state); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("a program that is not the recorded one: %v", err)
	}
}

// A seccomp profile is applied, and refused where it is not the pinned one.
func TestSeccomp(t *testing.T) {
	folder := t.TempDir()
	text := []byte(`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["swapon"], "action": "SCMP_ACT_ERRNO"}]}`)
	must(t, os.WriteFile(filepath.Join(folder, "profile.json"), text, 0o644))
	pin := &bench.PinnedFile{File: "profile.json", Sha256: bench.SHA256(strings.Repeat("ab", 32))}
	if _, err := profile(folder, pin); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("another profile than the pinned one: %v", err)
	}
	sum, err := hosttool.Digest(filepath.Join(folder, "profile.json"))
	must(t, err)
	pin.Sha256 = bench.SHA256(sum)
	w := begin(t, func(s *bench.OCISettings) { s.Seccomp = pin })
	w.ws.Manifest = folder
	s := w.provision("slot-0")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.now.Pid))
	must(t, err)
	if !strings.Contains(string(status), "Seccomp:\t2\n") {
		t.Errorf("the slot's first process runs without a filter: %s", status)
	}
	cp, place, err := w.dump(s)
	must(t, err)
	back, err := w.restore(cp, place, w.m.Resources)
	must(t, err)
	if status, err = os.ReadFile(fmt.Sprintf("/proc/%d/status", as0(t, back).now.Pid)); err != nil || !strings.Contains(string(status), "Seccomp:\t2\n") {
		t.Errorf("the restored one runs without a filter: %v", err)
	}
	w.end(back)
}

// Of the host's control groups the images keep the slot's own at the most, and nothing else passes.
func TestHarmless(t *testing.T) {
	w := begin(t, nil)
	s := w.provision("slot-0")
	own := s.container(s.now).own()
	cp, place, err := w.dump(s)
	must(t, err)
	img := criu.OpenImages(filepath.Join(cp.Dir, tree.ImagesDir))
	must(t, harmless(img, own))
	// Under the slot's limits criu sees no other group than its own, and keeps none.
	if groups, err := img.ControlGroups(); err != nil || len(groups) > 1 || len(groups) == 1 && cgroups.Mode() != cgroups.Unified {
		t.Errorf("the images keep %+v, %v", groups, err)
	}
	for name, passes := range map[string]bool{own: true, "drums-somebody-else": false} {
		planted := t.TempDir()
		b, err := proto.MarshalOptions{AllowPartial: true}.Marshal(&cgroup.CgroupEntry{Controllers: []*cgroup.CgControllerEntry{{
			Cnames: []string{dumpedController}, Dirs: []*cgroup.CgroupDirEntry{{DirName: proto.String(name)}}}}})
		must(t, err)
		text := binary.LittleEndian.AppendUint32(nil, uint32(magic.LoadMagic().ByName["IMG_COMMON"]))
		text = binary.LittleEndian.AppendUint32(text, uint32(magic.LoadMagic().ByName["CGROUP"]))
		text = append(binary.LittleEndian.AppendUint32(text, uint32(len(b))), b...)
		must(t, os.WriteFile(filepath.Join(planted, "cgroup.img"), text, 0o600))
		err = harmless(criu.OpenImages(planted), own)
		if (err == nil) != passes || !passes && !errors.Is(err, engine.ErrRefused) {
			t.Errorf("settings of %s: %v, passes: %v", name, err, passes)
		}
	}
	w.end(place)
}

// runc sees the hierarchies that a slot is bounded by; nothing changes for anybody else.
func TestHideCgroups(t *testing.T) {
	before, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	must(t, tree.Apart(0, func() error {
		if err := hideCgroups(); err != nil {
			return err
		}
		b, err := os.ReadFile("/proc/thread-self/mountinfo")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, " cgroup2 ") && strings.Contains(string(b), " - cgroup ") {
				return fmt.Errorf("v2 is seen beside v1: %s", line)
			}
			if strings.Contains(line, "rw,freezer") {
				return fmt.Errorf("the freezer is seen: %s", line)
			}
		}
		return nil
	}))
	after, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || string(after) != string(before) {
		t.Errorf("the process's own mounts changed: %v", err)
	}
}

// A tree that was halted and not dumped runs on, but for what the guest itself had stopped.
func TestHalt(t *testing.T) {
	w := begin(t, nil)
	s := w.provision("slot-0")
	tasks, err := procfs.Tasks(s.now.Pid)
	must(t, err)
	last := tasks[len(tasks)-1]
	must(t, unix.Kill(last.Pid, unix.SIGSTOP))
	for deadline := time.Now().Add(10 * time.Second); last.Status.State != 'T'; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("pid %d does not stop", last.Inner)
		}
		tasks, err := procfs.Tasks(s.now.Pid)
		must(t, err)
		i := slices.IndexFunc(tasks, func(task procfs.Task) bool { return task.Pid == last.Pid })
		if i < 0 {
			t.Fatalf("pid %d has ended", last.Inner)
		}
		last = tasks[i]
	}
	// One that fails before anything was signalled touches no task: the guest's own stays stopped.
	guests := func(when string) {
		t.Helper()
		tasks, err := procfs.Tasks(s.now.Pid)
		must(t, err)
		for _, task := range tasks {
			if (task.Status.State == 'T') != (task.Pid == last.Pid) {
				t.Errorf("%s, pid %d is in state %c", when, task.Inner, task.Status.State)
			}
		}
	}
	over, cancel := context.WithCancel(w.ctx)
	cancel()
	if _, err := s.halt(over, s.now); err == nil {
		t.Error("halted although the time was up")
	}
	guests("not halted")
	must(t, s.unhalt(w.ctx, s.now, halted{}))
	guests("unhalted without a signal")

	h, err := s.halt(w.ctx, s.now)
	must(t, err)
	if len(h.stopped) != 1 || !h.stopped[last.Inner] || h.signalled[last.Inner] || len(h.signalled) == 0 {
		t.Errorf("the guest had stopped %v and we %v, want pid %d", h.stopped, h.signalled, last.Inner)
	}
	states := func() (all string) {
		tasks, err := procfs.Tasks(s.now.Pid)
		must(t, err)
		for _, task := range tasks {
			if task.Inner != last.Inner {
				all += string(task.Status.State)
			}
		}
		return all
	}
	if all := states(); strings.Trim(all, "T") != "" {
		t.Errorf("halted, the tasks are in states %s", all)
	}
	must(t, s.unhalt(w.ctx, s.now, h))
	if all := states(); strings.Contains(all, "T") {
		t.Errorf("continued, the tasks are in states %s", all)
	}
	guests("continued")
	must(t, unix.Kill(last.Pid, unix.SIGCONT))
	w.end(s)
}

// A task that does not stop, as one that somebody traces, ends the wait: the
// failure names it and is transient, and the tree runs on.
func TestHaltIsBounded(t *testing.T) {
	w := begin(t, nil)
	s := w.provision("slot-0")
	tasks, err := procfs.Tasks(s.now.Pid)
	must(t, err)
	last := tasks[len(tasks)-1]
	must(t, thread.Run(func() error {
		if err := unix.PtraceSeize(last.Pid); err != nil {
			return err
		}
		begun := time.Now()
		_, err := s.halt(w.ctx, s.now)
		if !errors.Is(err, criu.ErrTransient) || errors.Is(err, engine.ErrDeadline) || !strings.Contains(err.Error(), fmt.Sprintf("task %d is in state t", last.Pid)) {
			t.Errorf("halt of a traced task: %v", err)
		}
		if took := time.Since(begun); took > 3*haltTime {
			t.Errorf("it took %v", took)
		}
		return unix.PtraceDetach(last.Pid)
	}))
	w.ready(s)
	h, err := s.halt(w.ctx, s.now)
	must(t, err)
	must(t, s.unhalt(w.ctx, s.now, h))
	w.end(s)
}

// Once the tree is gone no failure says that the slot runs on or can be dumped again.
func TestLost(t *testing.T) {
	refusal := &engine.Error{Op: "look at images", Err: fmt.Errorf("%w: another group", engine.ErrRefused), Hint: "a hint"}
	for _, err := range []error{refusal, fmt.Errorf("wrapped: %w", criu.ErrTransient), errors.New("plain")} {
		got := lost(err)
		if !errors.Is(got, engine.ErrDead) || errors.Is(got, engine.ErrRefused) || errors.Is(got, criu.ErrTransient) || !strings.Contains(got.Error(), err.Error()) {
			t.Errorf("%v became %v", err, got)
		}
	}
	if f := engine.Failure(lost(refusal)); f.Cause != engine.CauseDead || f.Hint != refusal.Hint {
		t.Errorf("%+v", f)
	}
	if lost(nil) != nil || !errors.Is(lost(context.Canceled), context.Canceled) {
		t.Error("nothing, or a cancellation, was changed")
	}
}

// A process that has no number here is unknown, not left out.
func TestNamelessMember(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cgroup.procs")
	must(t, os.WriteFile(file, []byte("12\n0\n"), 0o600))
	pids, err := members(file)
	must(t, err)
	if err := named(pids); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("members %v: %v", pids, err)
	}
	must(t, named([]int{12}))
}

// A checkpoint may be somebody else's: what stands in it for the list of stopped tasks is read as a file or not at all.
func TestStoppedIsARegularFile(t *testing.T) {
	cp := engine.Checkpoint{Dir: t.TempDir()}
	path := filepath.Join(cp.Dir, stoppedFile)
	must(t, os.WriteFile(path, []byte("[7]"), 0o600))
	irregulartest.Each(t, path, func() error { _, err := stoppedIn(cp); return err })
	if pids, err := stoppedIn(cp); err != nil || !pids[7] {
		t.Errorf("%v, %v", pids, err)
	}
}

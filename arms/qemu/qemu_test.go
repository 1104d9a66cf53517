package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/sweep"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps/gate"
)

var methods = []string{MethodFile, MethodInPlace, MethodLoadVM}

// made is a slot that one arm made.
type made struct {
	m    bench.Manifest
	ws   *engine.Workspace
	arm  *Arm
	root engine.Root
	slot engine.Slot
}

// makeSlotOf provisions a slot of a manifest; everything is released with the test.
func makeSlotOf(t testing.TB, method string, m bench.Manifest) made {
	t.Helper()
	return makeSlotOn(t, newArm(t, method), m)
}

func makeSlotOn(t testing.TB, arm *Arm, m bench.Manifest) made {
	t.Helper()
	s := made{m: m, arm: arm}
	s.ws, _ = workspace(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if s.root != nil {
			if err := s.root.Release(ctx); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(s.arm.Release(ctx), s.ws.Release(ctx)); err != nil {
			t.Error(err)
		}
	})
	var err error
	if s.root, err = s.arm.Mount(ctx, s.ws, bench.MountParams{Image: s.m.Image}); err != nil {
		t.Fatal(describe(err))
	}
	s.slot, err = s.arm.Provision(ctx, s.ws, s.root, nil, bench.ProvisionParams{
		Slot: "slot-0", Network: s.m.Network, Guest: s.m.Guest, Resources: s.m.Resources, Policy: *s.m.Checkpoint, Exclude: []string{},
	})
	if err != nil {
		t.Fatal(describe(err))
	}
	s.release(t, s.slot)
	return s
}

// release has a place be released with the test.
func (s made) release(t testing.TB, p engine.Place) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := p.Release(ctx); err != nil {
			t.Error(err)
		}
	})
}

func describe(err error) string {
	if err == nil {
		return "no error"
	}
	text := err.Error()
	for _, e := range engine.Within(err) {
		if e.Log != "" {
			b, _ := os.ReadFile(e.Log)
			text += "\n" + string(b)
		}
	}
	return text
}

func (s made) client(slot engine.Slot) *guest.Client {
	return guest.New(slot.Dial, int(s.m.Guest.Server.Port), guest.Limits{})
}

func (s made) ready(t testing.TB, slot engine.Slot) guest.Probe {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		probe, err := s.client(slot).Probe(ctx)
		if err == nil && probe.Phase == guest.PhaseRunning {
			return probe
		}
		if ctx.Err() != nil {
			t.Fatalf("the guest does not run: %v %+v", err, probe)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s made) dump(t testing.TB) (engine.Checkpoint, engine.Place) {
	t.Helper()
	return s.dumpOf(t, s.slot)
}

func (s made) dumpOf(t testing.TB, slot engine.Slot) (engine.Checkpoint, engine.Place) {
	t.Helper()
	p := s.ready(t, slot)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cp, place, err := slot.Dump(ctx, bench.DumpParams{Port: s.m.Guest.Server.Port, Policy: *s.m.Checkpoint, Exclude: []string{}, Canary: s.m.Canary,
		Workload: "0000000000000000000000000000000000000000000000000000000000000000"}, engine.GuestReference{Live: p.Live, Canary: "x"})
	if err != nil {
		t.Fatal(describe(err))
	}
	return cp, place
}

func (s made) restore(t testing.TB, cp engine.Checkpoint, place engine.Place, name string) engine.Slot {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stopped, err := s.arm.Restore(ctx, s.ws, s.root, cp, place, bench.RestoreParams{Slot: bench.Name(name), Resources: s.m.Resources, Policy: *s.m.Checkpoint, Exclude: []string{}})
	if err != nil {
		t.Fatal(describe(err))
	}
	if place == nil {
		s.release(t, stopped)
	}
	slot, err := stopped.Resume(ctx)
	if err != nil {
		t.Fatal(describe(err))
	}
	return slot
}

// stopped restores a checkpoint and leaves it held.
func (s made) stopped(t testing.TB, cp engine.Checkpoint, place engine.Place, name string) (engine.Stopped, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.arm.Restore(ctx, s.ws, s.root, cp, place, bench.RestoreParams{Slot: bench.Name(name), Resources: s.m.Resources, Policy: *s.m.Checkpoint, Exclude: []string{}})
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// Each method on one machine that is booted and dumped once: a boot takes longer
// than all else. Tests of this file run beside each other: a machine has one vcpu.
func TestMethods(t *testing.T) {
	t.Parallel()
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			s := makeSlotOf(t, method, light(t))
			token := s.ready(t, s.slot).Live.Token
			cp, place := s.dump(t)
			t.Run("resets", func(t *testing.T) { place = s.resets(t, cp, place, token) })
			switch {
			case t.Failed():
				return
			case method == MethodFile:
				t.Run("siblings", func(t *testing.T) { s.siblings(t, cp, place) })
			case method == MethodLoadVM:
				t.Run("enclosure", func(t *testing.T) { s.enclosure(t, place.(engine.Slot)) })
			}
			t.Run("branch", func(t *testing.T) { place = s.branch(t, cp, place) })
			if method == MethodLoadVM {
				t.Run("not frozen", func(t *testing.T) { place = s.notFrozen(t, cp, place) })
			}
			t.Run("failed load", func(t *testing.T) { s.failedLoad(t, method, cp, place) })
		})
	}
}

// The same with a QEMU that has mapped-ram.
func TestNewer(t *testing.T) {
	t.Parallel()
	tool, accel := newer(t)
	for _, method := range []string{MethodFile, MethodInPlace} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			s := makeSlotOn(t, armOf(tool, accel, method), light(t))
			if !hasFact(s.slot.(engine.Telling).Facts(), "qemu.capability."+mappedRAM, "true") {
				t.Errorf("%+v", s.slot.(engine.Telling).Facts())
			}
			cp, place := s.dump(t)
			if !hasFact(cp.Handle.Facts, factVersion, tool.Version) || !hasFact(cp.Handle.Facts, factSHA256, tool.SHA256) {
				t.Errorf("%+v", cp.Handle.Facts)
			}
			last := s.branch(t, cp, place)
			if method != MethodFile {
				return
			}
			// It opens the memory that siblings share for reading alone.
			objects, err := procfs.ProcessObjects(slotOf(last).now.pid)
			if err != nil || slices.ContainsFunc(objects, func(o engine.Object) bool { return strings.HasSuffix(o.Holder, "/"+memoryFile) }) {
				t.Errorf("%+v %v", objects, err)
			}
		})
	}
}

// Twenty resets: the guest is the one that was dumped, its clock is the host's,
// nothing piles up, and the slot's disk does not grow.
func (s made) resets(t *testing.T, cp engine.Checkpoint, place engine.Place, token string) engine.Place {
	var first int64
	var took []time.Duration
	for i := range 20 {
		begin := time.Now()
		slot := s.restore(t, cp, place, "slot-0")
		took = append(took, time.Since(begin))
		p := s.ready(t, slot)
		if p.Live.Token != token {
			t.Fatalf("reset %d: another guest", i)
		}
		// As right as the time that setting it took, and that of asking.
		asked := time.Now()
		p = s.ready(t, slot)
		nanos, err := strconv.ParseInt(string(p.Clock), 10, 64)
		bound := time.Since(asked) + clockErrorOf(t, slot) + 10*time.Millisecond
		if skew := time.Since(time.Unix(0, nanos)); err != nil || skew.Abs() > bound {
			t.Errorf("reset %d: the clock is off by %v, more than %v (%v)", i, skew, bound, err)
		}
		c := s.client(slot)
		if _, err := c.ReadFile(t.Context(), "/root/dirt", 10<<20); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("reset %d: what the last life wrote is there: %v", i, err)
		}
		r, err := c.Execute(t.Context(), []string{"sh", "-c", "head -c 4194304 /dev/urandom > /root/dirt && sync"}, time.Minute)
		if err != nil || r.Exit != 0 {
			t.Fatalf("reset %d: %+v %v", i, r, err)
		}
		info, err := os.Stat(slotOf(slot).now.file(diskFile))
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			first = info.Size()
		} else if i > 1 && info.Size() > first+2<<20 {
			t.Errorf("reset %d: the disk has %d bytes, it had %d", i, info.Size(), first)
		}
		if left := names(t, s.ws.Work); len(left) != 1 {
			t.Errorf("reset %d: the scratch directory holds %q", i, left)
		}
		place = slot
	}
	slices.Sort(took)
	t.Logf("restore: median %v, fastest %v, slowest %v; disk %d bytes", took[len(took)/2], took[0], took[len(took)-1], first)
	if _, err := checkpoint.Verify(t.Context(), cp); err != nil {
		t.Error(err)
	}
	return place
}

// clockErrorOf is how wrong the slot says that its clock may be.
func clockErrorOf(t testing.TB, s engine.Slot) time.Duration {
	t.Helper()
	for _, f := range s.(engine.Telling).Facts() {
		if f.Name == "clock-error-ns" {
			n, err := strconv.ParseInt(f.Value, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return time.Duration(n)
		}
	}
	t.Fatal("the slot does not say how right its clock is")
	return 0
}

func slotOf(p engine.Place) *place {
	pl, _ := placeOf(p)
	return pl
}

// Siblings map one memory file copy-on-write: what one more costs is far below the machine's size.
func (s made) siblings(t *testing.T, cp engine.Checkpoint, place engine.Place) {
	info, err := os.Stat(in(cp, memoryFile))
	if err != nil {
		t.Fatal(err)
	}
	used := info.Sys().(*syscall.Stat_t).Blocks * 512
	t.Logf("machine of %d MiB; memory file %d MiB on disk", info.Size()>>20, used>>20)
	if used > info.Size()*9/10 {
		t.Errorf("the memory file is not sparse: %d of %d bytes", used, info.Size())
	}
	var pipe [2]int // as whoever started the engine may have left it one
	if err := unix.Pipe2(pipe[:], 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	drawn, held := map[string]string{}, map[string]string{}
	for i, name := range []string{"slot-0", "slot-1", "slot-2"} {
		var old engine.Place
		if i == 0 {
			old = place
		}
		slot := s.restore(t, cp, old, name)
		// What the guest's kernel draws is not what its siblings' draw, whose memory is the same.
		r, err := s.client(slot).Execute(t.Context(), []string{"cat", "/proc/sys/kernel/random/uuid"}, time.Minute)
		if other, twice := drawn[string(r.Stdout)]; err != nil || r.Exit != 0 || twice {
			t.Errorf("%s drew %s, as %s: %v", name, r.Stdout, other, err)
		}
		drawn[string(r.Stdout)] = name
		// Nor do they share a thing of the host's that holds something.
		objects, known := slot.Observe(t.Context(), engine.AspectObjects).Objects.Get()
		if !known || len(objects) < 5 {
			t.Errorf("%s: %+v", name, objects)
		}
		for _, o := range objects {
			key := string(o.Kind) + " " + o.ID
			if other, twice := held[key]; twice && (o.Kind != engine.ObjectDevice || !strings.HasPrefix(o.ID, "/dev/")) {
				t.Errorf("%s shares with %s: %s, %s", name, other, key, o.Holder)
			}
			held[key] = name
		}
		s.ready(t, slot)
		m, known := slot.Observe(t.Context(), engine.AspectMemory).Memory.Get()
		t.Logf("%s: private dirty %d MiB, pss %d MiB", name, m.PrivateDirty>>20, m.Pss>>20)
		if !known || m.PrivateDirty > info.Size()/2 {
			t.Errorf("%s has %d bytes of its own, the machine %d", name, m.PrivateDirty, info.Size())
		}
	}
	if _, err := checkpoint.Verify(t.Context(), cp); err != nil {
		t.Errorf("a sibling wrote to the checkpoint: %v", err)
	}
}

// A checkpoint of a slot that was restored is one as any other: it has what was
// there, needs no other checkpoint, and its siblings share their memory.
func (s made) branch(t *testing.T, cp engine.Checkpoint, place engine.Place) engine.Place {
	method, root := s.arm.settings.Snapshot, cp
	does := func(slot engine.Slot, script, want string) {
		t.Helper()
		r, err := s.client(slot).Execute(t.Context(), []string{"sh", "-c", script}, time.Minute)
		if err != nil || r.Exit != 0 || string(r.Stdout) != want {
			t.Errorf("%s: %+v %v, want %q", script, r, err, want)
		}
	}
	for i, text := range []string{"first", "second"} { // a branch of a branch
		slot := s.restore(t, cp, place, "slot-0")
		token := s.ready(t, slot).Live.Token
		if i > 0 {
			does(slot, "cat /root/first /dev/shm/first", "firstfirst")
		}
		does(slot, fmt.Sprintf("printf %s | tee /root/%[1]s > /dev/shm/%[1]s; sync", text), "")
		saved, loaded := []string{"snapshot-save-ns"}, "snapshot-load-ns"
		if method == MethodFile {
			saved, loaded = []string{"carry-ns", "carry-bytes", "load-ns", "save-ns", "save-bytes"}, "load-ns"
		}
		own(t, slot.(engine.Telling).Facts(), loaded)
		parent := cp
		cp, place = s.dumpOf(t, slot)
		for _, name := range saved {
			own(t, cp.Handle.Facts, name)
		}
		if s.arm.tool.since(9, 0) && method == MethodFile != hasFact(cp.Handle.Facts, factCarried, mappedRAM) ||
			!s.arm.tool.since(9, 0) && method == MethodFile != hasFact(cp.Handle.Facts, factCarried, "stream") {
			t.Errorf("how it was carried: %+v", cp.Handle.Facts)
		}
		if n, err := checkpoint.Verify(t.Context(), parent); n != 0 || err != nil {
			t.Errorf("the checkpoint below: %d files were hashed again, %v", n, err)
		}
		if want, have := names(t, parent.Dir), names(t, cp.Dir); !slices.Equal(want, have) {
			t.Errorf("the checkpoint holds %q, the one below %q", have, want)
		}
		back := s.restore(t, cp, place, "slot-0")
		if have := s.ready(t, back).Live.Token; have != token {
			t.Errorf("another guest")
		}
		does(back, fmt.Sprintf("cat /root/%s /dev/shm/%[1]s", text), text+text)
		place = back
	}
	// Without those below it; what it was dumped from is untouched by what runs now.
	sibling := s.restore(t, cp, nil, "slot-1")
	s.ready(t, sibling)
	does(sibling, "cat /root/first /dev/shm/second", "firstsecond")
	m, known := sibling.Observe(t.Context(), engine.AspectMemory).Memory.Get()
	if method == MethodFile && (!known || m.PrivateDirty > slotOf(sibling).now.shape.Memory/2) {
		t.Errorf("a sibling has %d bytes of its own, the machine %d", m.PrivateDirty, slotOf(sibling).now.shape.Memory)
	}
	first := s.restore(t, root, place, "slot-0")
	s.ready(t, first)
	does(first, "ls /root/first /root/second 2>/dev/null || echo none", "none\n")
	return first
}

// What was saved while its tree ran is refused: that tree runs before anybody judged it.
func (s made) notFrozen(t *testing.T, cp engine.Checkpoint, place engine.Place) engine.Place {
	sl := place.(*slot)
	i := slices.IndexFunc(cp.Handle.Facts, func(f bench.Fact) bool { return f.Name == factFreezer })
	tenancy := sl.now
	if err := tenancy.attach(t.Context()); err != nil {
		t.Fatal(err)
	}
	ran, err := sl.write(t.Context(), bench.DumpParams{Policy: *s.m.Checkpoint, Workload: cp.Handle.Workload}, census{freezer: cp.Handle.Facts[i].Value}, engine.GuestReference{})
	tenancy.detach()
	if err != nil {
		t.Fatal(describe(err))
	}
	if _, err := s.stopped(t, ran, place, "slot-0"); !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), "frozen 0") || engine.Failure(err).Hint == "" {
		t.Errorf("a tree that ran: %v", err)
	}
	for name, fact := range map[string]bench.Fact{
		"not there": {Name: factFreezer, Known: true, Value: "/proc/self/fd/3000/cgroup.events"}, "not named": {Name: "other"},
	} {
		other := cp
		other.Handle.Facts = slices.Clone(cp.Handle.Facts)
		other.Handle.Facts[i] = fact
		if _, err := s.stopped(t, other, place, "slot-0"); err == nil {
			t.Errorf("a freezer that is %s: no error", name)
		} else {
			t.Log(err)
		}
	}
	if pids, err := sl.group.Pids(); err != nil || len(pids) > 0 {
		t.Errorf("left: %v %v", pids, err)
	}
	return s.restore(t, cp, place, "slot-0")
}

// own requires that QEMU's own word on what it saved or loaded is known, once, and above 0.
func own(t *testing.T, facts []bench.Fact, name string) {
	t.Helper()
	n := 0
	for _, f := range facts {
		if f.Name != "tool.qemu."+name {
			continue
		}
		n++
		if v, err := strconv.ParseInt(f.Value, 10, 64); !f.Known || err != nil || v <= 0 {
			t.Errorf("%+v", f)
		}
	}
	if n != 1 {
		t.Errorf("%d facts tool.qemu.%s", n, name)
	}
}

func hasFact(facts []bench.Fact, name, value string) bool {
	return slices.ContainsFunc(facts, func(f bench.Fact) bool { return f.Name == name && f.Known && f.Value == value })
}

// What was asked for and does not run is refused, by what QEMU itself says.
func TestAcceleratorIsReadBack(t *testing.T) {
	tool, tcg := located(t)
	for name, accel := range map[string]engine.Reading[string]{
		"does not start": engine.Unknown[string]("Could not access KVM kernel module", engine.ViewHost), "falls back": tcg,
	} {
		arm := New(bench.QEMUSettings{Accel: "kvm", Snapshot: MethodFile, Headroom: "512MiB"}, tool, accel, nil)
		ws, _ := workspace(t)
		_, err := arm.Mount(t.Context(), ws, bench.MountParams{Image: manifest(t).Image})
		if !errors.Is(err, engine.ErrRefused) || engine.Failure(err).Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
		if err := errors.Join(arm.Release(t.Context()), ws.Release(t.Context())); err != nil {
			t.Error(err)
		}
	}
	if have, known := tool.Accelerator(t.Context(), "no-such-accelerator").Get(); known {
		t.Errorf("an accelerator that is none is %q", have)
	}
}

// A state that cannot be loaded is an error, nothing of the machine is left, and
// the place serves again.
func (s made) failedLoad(t *testing.T, method string, cp engine.Checkpoint, place engine.Place) {
	work := names(t, s.ws.Work)
	damaged := cp
	switch method {
	case MethodFile: // sealed damaged: the loader itself has to refuse it
		if err := errors.Join(os.Chmod(in(cp, machineFile), 0o600), os.Truncate(in(cp, machineFile), 20_000)); err != nil {
			t.Fatal(err)
		}
		var err error
		if damaged, err = checkpoint.Seal(t.Context(), cp.Dir, cp.Handle); err != nil {
			t.Fatal(err)
		}
	case MethodInPlace: // the process's own disk loses it
		if err := slotOf(place).now.attach(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer slotOf(place).now.detach()
		if err := slotOf(place).now.execute(t.Context(), "blockdev-snapshot-delete-internal-sync", map[string]any{"device": "disk", "name": tag}, nil); err != nil {
			t.Fatal(err)
		}
	case MethodLoadVM:
		if _, err := s.arm.qemuImg(t.Context(), nil, "snapshot", "-q", "-d", tag, in(cp, diskFile)); err != nil {
			t.Fatal(err)
		}
		var err error
		if damaged, err = checkpoint.Seal(t.Context(), cp.Dir, cp.Handle); err != nil {
			t.Fatal(err)
		}
	}
	stopped, err := s.stopped(t, damaged, place, "slot-0")
	if err == nil {
		stopped.Vacate(t.Context())
		t.Fatal("it was restored")
	}
	var e *engine.Error
	if !errors.As(err, &e) {
		t.Errorf("not typed: %v", err)
	}
	t.Log(err)
	if pids, err := slotOf(place).group.Pids(); err != nil || len(pids) > 0 {
		t.Errorf("left: %v %v", pids, err)
	}
	if left := names(t, s.ws.Work); len(left) != len(work)-1 {
		t.Errorf("the scratch directory holds %q, it held %q", left, work)
	}
	if method == MethodInPlace { // in a new process, from the checkpoint
		s.ready(t, s.restore(t, cp, place, "slot-0"))
	}
}

// A machine keeps its locks, those on mapped files too, without any repair: the
// case that every CRIU restore loses (EXP-009).
func TestLocksAreKept(t *testing.T) {
	t.Parallel()
	s := makeSlotOf(t, MethodFile, manifest(t))
	s.ready(t, s.slot)
	cp, place := s.dump(t)
	for _, want := range []string{
		"POSIX READ lock on /var/lib/locks/plain bytes 100-199", "POSIX READ lock on /var/lib/locks/mapped bytes 4096-4607",
		"POSIX WRITE lock on /var/lib/locks/tail bytes 64-EOF", "POSIX READ lock on /var/lib/locks/wal.db-shm bytes 128-128",
	} {
		if !slices.ContainsFunc(cp.Handle.Locks, func(l bench.Lock) bool { return strings.HasSuffix(engine.LockSubject(l), want) }) {
			t.Errorf("the checkpoint lacks %q; it has %v", want, cp.Handle.Locks)
		}
	}
	stopped, err := s.stopped(t, cp, place, "slot-0")
	if err != nil {
		t.Fatal(describe(err))
	}
	o := stopped.Observe(t.Context(), engine.AspectLocks, engine.AspectProcesses)
	if j := gate.JudgeLocks(cp.Handle.Locks, o.Locks); j.Verdict() != engine.Pass {
		t.Errorf("%+v", j.Findings)
	}
	if j := gate.JudgeProcesses(cp.Handle.Reference.Processes, o.Processes); j.Verdict() != engine.Pass {
		t.Errorf("%+v", j.Findings)
	}
}

// The whole plan, with a pool: every gate passes, the record says how the machine
// ran, and what it took to make a slot ready, which is in no clock.
func TestPlan(t *testing.T) {
	if !alone(t) {
		return
	}
	m := light(t)
	m.Experiment.Rollouts, m.Experiment.Pool = 2, 1
	m.Task.Oracle = []bench.Command{{Exec: []string{"/usr/bin/touch", "/root/done"}, Timeout: "30s"}}
	m.Checker.Exec = []string{"/usr/bin/test", "-e", "/root/done"}
	m.Checker.Failure.Exit = 1
	res, by, r := execute(t, newArm(t, MethodFile), m, "restore")
	if res.Verdict != engine.RunPassed {
		for id, o := range by {
			if o.Verdict != engine.Pass && o.Verdict != engine.NotRun {
				t.Logf("%s: %s %+v %+v", id, o.Verdict, o.Error, o.Findings)
			}
		}
		t.Fatalf("%s: %s", res.Verdict, res.Reason)
	}
	if !slices.ContainsFunc(r.Facts, func(f bench.Fact) bool { return f.Name == engine.Accelerator && f.Value == "tcg" }) {
		t.Errorf("the record does not say how the machine ran: %+v", r.Facts)
	}
	slots := map[string]bool{}
	for _, o := range r.Rollouts {
		t.Logf("rollout %d in %s: %s %+v %v, prepared %s", o.Index, o.Slot, o.Class, o.Clocks, o.Spans, o.Prepared)
		if (o.Prepared == "") != (o.Control != "") || o.Control == "" && (o.Class != record.Success || o.Memory == nil) {
			t.Errorf("rollout %d: %+v", o.Index, o)
		}
		slots[o.Slot] = true
	}
	if len(slots) != 2 {
		t.Errorf("slots %v, want the one that acts and that of the pool", slots)
	}
}

// When nobody is there any more to release a machine, a sweep ends it by what the ledger says.
func TestSweep(t *testing.T) {
	t.Parallel()
	m := light(t)
	ws, dir := workspace(t)
	arm := newArm(t, MethodFile)
	root, err := arm.Mount(t.Context(), ws, bench.MountParams{Image: m.Image})
	if err != nil {
		t.Fatal(describe(err))
	}
	slot, err := arm.Provision(t.Context(), ws, root, nil, bench.ProvisionParams{
		Slot: "slot-0", Network: m.Network, Guest: m.Guest, Resources: m.Resources, Policy: *m.Checkpoint, Exclude: []string{},
	})
	if err != nil {
		t.Fatal(describe(err))
	}
	tenancy := slotOf(slot).now
	defer func() { // also where the sweep failed: nothing of the test's stays
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(slotOf(slot).group.Kill(ctx), tenancy.reap(ctx), tenancy.net.Close(), root.Release(ctx)); err != nil {
			t.Error(err)
		}
	}()
	// Nobody else's QEMU goes on with it, as after an upgrade of the host's.
	handle, err := slot.(engine.Lasting).Handle()
	if err != nil {
		t.Fatal(err)
	}
	params := bench.AdoptParams{Image: m.Image, Place: handle}
	for _, o := range dir.Ledger.Open() {
		params.Owned = append(params.Owned, bench.OwnedThing{Id: o.ID, Kind: o.Kind, Claim: o.Claim, Identity: o.Identity})
	}
	other := armOf(func() (Tool, engine.Reading[string], string) { tool, accel := newer(t); return tool, accel, MethodFile }())
	if _, _, err := other.Adopt(t.Context(), ws, params); !errors.Is(err, engine.ErrRefused) || engine.Failure(err).Hint == "" ||
		!strings.Contains(err.Error(), arm.tool.SHA256) || !strings.Contains(err.Error(), other.tool.SHA256) {
		t.Errorf("another QEMU took the machine over: %v", err)
	}
	if err := slot.(engine.Mortal).Alive(); err != nil {
		t.Errorf("a refused adoption: %v", err)
	}
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	report, err := sweep.Sweep(t.Context(), sweep.Options{RunDir: dir.Path, State: stateDir()})
	if err != nil {
		t.Fatal(err)
	}
	for _, thing := range report.Things {
		if thing.Outcome != sweep.Taken && thing.Outcome != sweep.Absent {
			t.Errorf("%+v", thing)
		}
	}
	if ended, err := tenancy.ended(); err != nil || !ended {
		t.Errorf("the machine ended: %v, %v", ended, err)
	}
	if err := tenancy.reap(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(ws.Work); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the scratch directory: %v", err)
	}
}

// What ties a machine to the outside is found: each of these is planted.
func (s made) enclosure(t *testing.T, slot engine.Slot) {
	subjects := func() (list []string) {
		t.Helper()
		found, known := slot.Observe(t.Context(), engine.AspectEnclosure).Enclosure.Get()
		if !known {
			t.Fatal("the enclosure is unknown")
		}
		for _, f := range found {
			list = append(list, f.Subject)
		}
		return list
	}
	if found := subjects(); len(found) > 0 {
		t.Errorf("nothing was planted: %q", found)
	}
	tenancy := slotOf(slot).now
	if err := tenancy.attach(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer tenancy.detach()
	for _, c := range []struct {
		command string
		args    map[string]any
	}{
		{"blockdev-add", map[string]any{"driver": "null-co", "node-name": "stranger", "size": 4096}},
		{"chardev-add", map[string]any{"id": "stranger", "backend": map[string]any{"type": "null", "data": map[string]any{}}}},
	} {
		if err := tenancy.execute(t.Context(), c.command, c.args, nil); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := slot.Dial(t.Context(), int(s.m.Guest.Server.Port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	found := subjects()
	for _, want := range []string{"block node stranger", "channel stranger", "TCP connection to 10.0.2.15:5000"} {
		if !slices.Contains(found, want) {
			t.Errorf("%s was not found among %q", want, found)
		}
	}
	if info, err := os.Stat(tenancy.dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder with the socket: %v %v", info.Mode(), err)
	}
}

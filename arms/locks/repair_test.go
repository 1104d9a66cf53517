package locks_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/locks"
	"github.com/drumsbench/drumsbench/arms/procfs/slottest"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func s(n int64) string { return strconv.FormatInt(n, 10) }

// open opens a file in an agent.
func open(a *slottest.Agent, path string, flags int) string {
	return a.Call("open", path, s(int64(flags)))
}

// take takes a lock; length 0 is to the end.
func take(a *slottest.Agent, fd string, command int, kind int16, start, length int64) {
	a.Call("lock", fd, s(int64(command)), s(int64(kind)), s(start), s(length))
}

func census(t *testing.T, slot *slottest.Slot) []bench.Lock {
	t.Helper()
	ls, holders, err := locks.Census(slot.Init)
	if err != nil {
		t.Fatal(err)
	}
	if len(holders) != len(ls) {
		t.Fatalf("%d locks with %d holders", len(ls), len(holders))
	}
	for i, h := range holders {
		if len(h) == 0 || int64(h[0].Inner) != ls[i].Pid {
			t.Fatalf("%+v held by %+v", ls[i], h)
		}
	}
	return ls
}

// heldFor asks from another process, this one, who keeps it from taking a lock.
func heldFor(t *testing.T, slot *slottest.Slot, path string, kind int16, at int64) bool {
	t.Helper()
	f, err := os.OpenFile(slot.Path(path), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lk := unix.Flock_t{Type: kind, Start: at, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lk); err != nil {
		t.Fatal(err)
	}
	return lk.Type != unix.F_UNLCK
}

func lock(pid int, path, kind, mode string, start, end int64, mapped bool) bench.Lock {
	return bench.Lock{Path: path, Pid: int64(pid), Type: kind, Mode: mode, Start: bench.Int64(s(start)), End: bench.Int64(s(end)), Mapped: mapped}
}

func same(t *testing.T, have []bench.Lock, want ...bench.Lock) {
	t.Helper()
	if !slices.Equal(have, want) {
		t.Errorf("have %+v\nwant %+v", have, want)
	}
}

func TestCensus(t *testing.T) {
	slot := slottest.Start(t)
	same(t, census(t, slot))
	a, b := slot.Spawn("a"), slot.Spawn("b")
	apid, bpid := a.Pid(), b.Pid()
	// One lock that shows on two descriptors, of a mapped file on the overlay.
	fd := open(a, "/root/db-shm", unix.O_RDWR)
	a.Call("dup", fd)
	open(a, "/root/db-shm", unix.O_RDONLY)
	a.Call("map", fd)
	take(a, fd, unix.F_SETLK, unix.F_RDLCK, 128, 1)
	take(a, fd, unix.F_SETLK, unix.F_WRLCK, 1<<40, 0)
	// Two owners of one range.
	fdb := open(b, "/root/db-shm", unix.O_RDWR)
	take(b, fdb, unix.F_SETLK, unix.F_RDLCK, 128, 1)
	// An open file description that a and a child share, and the child's parent is not the lowest but a is.
	ofd := open(b, "/run/ofd", unix.O_RDWR)
	take(b, ofd, unix.F_OFD_SETLK, unix.F_WRLCK, 0, 10)
	child, _ := strconv.Atoi(b.Call("child-with", ofd))
	// Two descriptions of one file with equal flocks in one process, and one in another.
	for range 2 {
		a.Call("flock", open(a, "/run/flocked", unix.O_RDONLY))
	}
	b.Call("flock", open(b, "/run/flocked", unix.O_RDONLY))
	want := []bench.Lock{
		lock(apid, "/root/db-shm", "POSIX", "READ", 128, 128, true),
		lock(apid, "/root/db-shm", "POSIX", "WRITE", 1<<40, -1, true),
		lock(apid, "/run/flocked", "FLOCK", "READ", 0, -1, false),
		lock(apid, "/run/flocked", "FLOCK", "READ", 0, -1, false),
		lock(bpid, "/root/db-shm", "POSIX", "READ", 128, 128, false),
		lock(bpid, "/run/flocked", "FLOCK", "READ", 0, -1, false),
		lock(bpid, "/run/ofd", "OFDLCK", "WRITE", 0, 9, false),
	}
	same(t, census(t, slot), want...)
	slot.Stop()
	ls, holders, err := locks.Census(slot.Init)
	if err != nil {
		t.Fatal(err)
	}
	same(t, ls, want...)
	if len(holders[0]) != 2 || len(holders[6]) < 2 || holders[6][1].Inner != child {
		t.Errorf("holders %+v", holders)
	}
}

func TestDiff(t *testing.T) {
	a := lock(1, "/a", "POSIX", "READ", 0, 9, true)
	unmapped := a
	unmapped.Mapped = false
	f := lock(1, "/f", "FLOCK", "READ", 0, -1, false)
	w := lock(1, "/a", "POSIX", "WRITE", 0, 9, true)
	for _, c := range []struct{ wanted, have, missing, extra []bench.Lock }{
		{nil, nil, []bench.Lock{}, []bench.Lock{}},
		{[]bench.Lock{a}, []bench.Lock{unmapped}, []bench.Lock{}, []bench.Lock{}},
		{[]bench.Lock{a, f, f}, []bench.Lock{f}, []bench.Lock{a, f}, []bench.Lock{}},
		{[]bench.Lock{f}, []bench.Lock{f, f, a}, []bench.Lock{}, []bench.Lock{a, f}},
		{[]bench.Lock{a}, []bench.Lock{w}, []bench.Lock{a}, []bench.Lock{w}},
	} {
		missing, extra := locks.Diff(c.wanted, c.have)
		if !slices.Equal(missing, c.missing) || !slices.Equal(extra, c.extra) {
			t.Errorf("%+v: missing %+v extra %+v", c, missing, extra)
		}
	}
}

// lose stops a slot and returns what is missing of the wanted locks.
func lose(t *testing.T, slot *slottest.Slot, wanted []bench.Lock) []bench.Lock {
	t.Helper()
	slot.Stop()
	missing, extra := locks.Diff(wanted, census(t, slot))
	if len(missing) == 0 || len(extra) != 0 {
		t.Fatalf("missing %+v, extra %+v", missing, extra)
	}
	return missing
}

func repair(t *testing.T, slot *slottest.Slot, missing []bench.Lock) locks.Report {
	t.Helper()
	report, err := locks.Repair(context.Background(), slot.Init, missing)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Restored) != len(missing) || report.Duration <= 0 {
		t.Fatalf("%+v", report)
	}
	if states := strings.Trim(slot.States(), "TZ"); states != "" {
		t.Fatalf("the tree is not stopped after the repair: %s", slot.States())
	}
	return report
}

// TestRepair loses many locks of several owners and gets them back.
func TestRepair(t *testing.T) {
	slot := slottest.Start(t)
	a, b := slot.Spawn("a"), slot.Spawn("b")
	a.Call("threads", "8")
	shm := open(a, "/root/db-shm", unix.O_RDWR)
	a.Call("map", shm)
	take(a, shm, unix.F_SETLK, unix.F_RDLCK, 128, 1)
	db := open(a, "/root/db", unix.O_RDWR)
	take(a, db, unix.F_SETLK, unix.F_RDLCK, 1073741826, 510)
	take(a, db, unix.F_SETLK, unix.F_WRLCK, 1<<62, 0)
	// The first descriptors of the file do not fit the locks.
	open(b, "/root/mixed", unix.O_RDONLY)
	open(b, "/root/mixed", unix.O_PATH)
	mixed := open(b, "/root/mixed", unix.O_WRONLY)
	take(b, mixed, unix.F_SETLK, unix.F_WRLCK, 7, 1)
	bshm := open(b, "/root/db-shm", unix.O_RDONLY)
	take(b, bshm, unix.F_SETLK, unix.F_RDLCK, 128, 1)
	kept := open(b, "/run/kept", unix.O_RDWR)
	take(b, kept, unix.F_SETLK, unix.F_WRLCK, 0, 1)

	wanted := census(t, slot)
	if len(wanted) != 6 {
		t.Fatalf("%+v", wanted)
	}
	a.Call("drop", "/root/db-shm")
	a.Call("drop", "/root/db")
	b.Call("drop", "/root/mixed")
	b.Call("drop", "/root/db-shm")
	missing := lose(t, slot, wanted)
	if len(missing) != 5 {
		t.Fatalf("%+v", missing)
	}
	report := repair(t, slot, missing)
	for _, r := range report.Restored {
		t.Logf("%s by fd %d: %v", locks.Describe(r.Lock), r.FD, r.Duration)
	}
	t.Logf("all: %v", report.Duration)
	same(t, census(t, slot), wanted...)
	slot.Continue()
	if !heldFor(t, slot, "/root/db-shm", unix.F_WRLCK, 128) || heldFor(t, slot, "/root/db-shm", unix.F_RDLCK, 128) ||
		!heldFor(t, slot, "/root/db", unix.F_RDLCK, 1<<62+1<<61) || !heldFor(t, slot, "/root/db", unix.F_WRLCK, 1073742335) ||
		heldFor(t, slot, "/root/db", unix.F_WRLCK, 1073742336) || !heldFor(t, slot, "/root/mixed", unix.F_RDLCK, 7) {
		t.Error("another process could take a lock that was restored")
	}
	// The owners are alive and can give up what they hold.
	take(a, shm, unix.F_SETLK, unix.F_UNLCK, 0, 0)
	b.Call("drop", "/root/db-shm")
	if heldFor(t, slot, "/root/db-shm", unix.F_WRLCK, 128) {
		t.Error("a restored lock cannot be given up")
	}
}

// locked is a slot with one agent whose one lock is lost, and what is missing.
func locked(t *testing.T, prepare func(a *slottest.Agent)) (*slottest.Slot, *slottest.Agent, func() []bench.Lock) {
	t.Helper()
	slot := slottest.Start(t)
	a := slot.Spawn("a")
	if prepare != nil {
		prepare(a)
	}
	take(a, open(a, "/root/shm", unix.O_RDWR), unix.F_SETLK, unix.F_WRLCK, 128, 1)
	wanted := census(t, slot)
	a.Call("drop", "/root/shm")
	return slot, a, func() []bench.Lock { return lose(t, slot, wanted) }
}

// TestRepairLeavesSystemCallsAlone stops the very thread that is used inside a system call.
func TestRepairLeavesSystemCallsAlone(t *testing.T) {
	const length, pause = 1500, 700
	for _, c := range []struct {
		command string
		check   func(answer string) bool
	}{
		// A sleep that started anew would take pause and length.
		{"main:sleep", func(s string) bool { n, err := strconv.Atoi(s); return err == nil && n >= length && n < length+pause/2 }},
		{"main:read", func(s string) bool { return s == "words" }},
		// Undisturbed, epoll_pwait ends with EINTR after a stop.
		{"main:poll", func(s string) bool { return s == "interrupted" }},
	} {
		t.Run(c.command, func(t *testing.T) {
			slot, a, missing := locked(t, nil)
			wait := a.Go(c.command, s(length))
			time.Sleep(pause * time.Millisecond)
			repair(t, slot, missing())
			slot.Continue()
			if answer := wait(); !c.check(answer) {
				t.Errorf("%s: %s", c.command, answer)
			}
			if !heldFor(t, slot, "/root/shm", unix.F_RDLCK, 128) {
				t.Error("not held")
			}
		})
	}
}

func TestRepairLosesNoSignal(t *testing.T) {
	slot, a, missing := locked(t, func(a *slottest.Agent) {
		a.Call("catch")
		a.Call("ignore-trap")
		a.Call("main:block", s(1<<(int64(unix.SIGUSR2)-1)|1<<(int64(unix.SIGTRAP)-1)))
	})
	lost := missing()
	pid := hostPid(t, slot, a)
	signals := func() (lines []string) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "SigPnd") || strings.HasPrefix(line, "SigBlk") || strings.HasPrefix(line, "SigIgn") || strings.HasPrefix(line, "SigCgt") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	if err := unix.Kill(pid, unix.SIGUSR1); err != nil { // pending while it is stopped
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	before := signals()
	repair(t, slot, lost)
	// What whoever started this test ignores, such as nohup, is ignored in the slot too.
	trapIgnored := func(line string) bool {
		mask, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(line, "SigIgn:")), 16, 64)
		return strings.HasPrefix(line, "SigIgn:") && err == nil && mask&(1<<(uint(unix.SIGTRAP)-1)) != 0
	}
	if after := signals(); !slices.Equal(before, after) || !slices.Contains(after, "SigBlk:\t0000000000000810\n") || !slices.ContainsFunc(after, trapIgnored) {
		t.Errorf("before %q\nafter %q", before, after)
	}
	slot.Continue()
	deadline := time.Now().Add(10 * time.Second)
	for a.Call("caught") != "1" {
		if time.Now().After(deadline) {
			t.Fatal("the pending signal was lost")
		}
	}
}

func hostPid(t *testing.T, slot *slottest.Slot, a *slottest.Agent) int {
	t.Helper()
	for _, pid := range slot.Pids() {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.HasPrefix(string(text), "agent\x00a") {
			return pid
		}
	}
	t.Fatal("no such agent")
	return 0
}

func TestRepairInSpiteOfSeccomp(t *testing.T) {
	slot, a, missing := locked(t, nil)
	a.Call("seccomp")
	repair(t, slot, missing())
	slot.Continue()
	if a.Call("fcntl-forbidden") != "true" {
		t.Error("the filter is gone")
	}
	if !heldFor(t, slot, "/root/shm", unix.F_RDLCK, 128) {
		t.Error("not held")
	}
}

func TestRepairOfAConflictFails(t *testing.T) {
	slot, _, missing := locked(t, nil)
	b := slot.Spawn("b")
	take(b, open(b, "/root/shm", unix.O_RDWR), unix.F_SETLK, unix.F_RDLCK, 0, 0)
	slot.Stop()
	theirs := census(t, slot)
	slot.Continue()
	b.Call("drop", "/root/shm")
	lost := missing()
	slot.Continue()
	take(b, open(b, "/root/shm", unix.O_RDWR), unix.F_SETLK, unix.F_RDLCK, 0, 0)
	slot.Stop()
	report, err := locks.Repair(context.Background(), slot.Init, lost)
	if !errors.Is(err, unix.EAGAIN) || !strings.Contains(err.Error(), "/root/shm") || len(report.Restored) != 0 {
		t.Errorf("%+v, %v", report, err)
	}
	if states := strings.Trim(slot.States(), "TZ"); states != "" {
		t.Errorf("the tree runs: %s", states)
	}
	same(t, census(t, slot), theirs...)
	slot.Continue()
	b.Call("pid")
}

func TestRepairRefuses(t *testing.T) {
	slot, a, missing := locked(t, nil)
	lost := missing()
	refused := func(what string, locksWanted ...bench.Lock) {
		t.Helper()
		before := census(t, slot)
		_, err := locks.Repair(context.Background(), slot.Init, locksWanted)
		if !errors.Is(err, engine.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
		same(t, census(t, slot), before...)
	}
	l := lost[0]
	other := func(change func(*bench.Lock)) bench.Lock { c := l; change(&c); return c }
	refused("no such pid", other(func(c *bench.Lock) { c.Pid = 4000 }))
	refused("no such file", other(func(c *bench.Lock) { c.Path = "/root/none" }))
	refused("bad range", other(func(c *bench.Lock) { c.Start, c.End = "9", "8" }))
	refused("bad mode", other(func(c *bench.Lock) { c.Mode = "BOTH" }))
	refused("other type", other(func(c *bench.Lock) { c.Type = "FLOCK" }))
	slot.Continue()
	refused("a running tree", l)
	a.Call("pid")
	// One of two types can be repaired: it is, and the other is still refused.
	slot.Stop()
	report, err := locks.Repair(context.Background(), slot.Init, []bench.Lock{l, other(func(c *bench.Lock) { c.Type = "OFDLCK" })})
	if !errors.Is(err, engine.ErrRefused) || len(report.Restored) != 1 || len(report.NotRepairable) != 1 {
		t.Errorf("%+v, %v", report, err)
	}
}

// program32 is an ELF file for i386 that calls pause for ever.
func program32() []byte {
	const base = 0x08048000
	code := []byte{0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7} // mov eax, pause; int 0x80; jmp back
	h := append([]byte("\x7fELF\x01\x01\x01"), make([]byte, 9)...)
	le := binary.LittleEndian
	for _, v := range []uint16{2, 3} {
		h = le.AppendUint16(h, v)
	}
	for _, v := range []uint32{1, base + 0x54, 0x34, 0, 0} {
		h = le.AppendUint32(h, v)
	}
	for _, v := range []uint16{0x34, 0x20, 1, 0, 0, 0} {
		h = le.AppendUint16(h, v)
	}
	size := uint32(0x54 + len(code))
	for _, v := range []uint32{1, 0, base, base, size, size, 5, 0x1000} {
		h = le.AppendUint32(h, v)
	}
	return append(h, code...)
}

func TestRepairRefuses32BitPrograms(t *testing.T) {
	slot := slottest.Start(t)
	if err := os.WriteFile(slot.Path("/root/old"), program32(), 0o755); err != nil {
		t.Fatal(err)
	}
	pid, _ := strconv.Atoi(slot.Call("start", "/root/old", open(slot.Agent, "/root/shm", unix.O_RDWR)))
	slot.Stop()
	_, err := locks.Repair(context.Background(), slot.Init, []bench.Lock{lock(pid, "/root/shm", "POSIX", "READ", 0, 0, false)})
	if !errors.Is(err, engine.ErrRefused) || !strings.Contains(fmt.Sprint(err), "32-bit") || !strings.Contains(fmt.Sprint(err), "(old)") {
		t.Error(err)
	}
	same(t, census(t, slot))
}

func TestRepairEndsWithItsContext(t *testing.T) {
	slot, a, missing := locked(t, nil)
	lost := missing()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := locks.Repair(ctx, slot.Init, lost); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	repair(t, slot, lost)
	slot.Continue()
	a.Call("pid")
}

// TestRepairUnderStress stops, loses, repairs and continues a program whose used thread watches its own registers.
func TestRepairUnderStress(t *testing.T) {
	const rounds = 200
	slot := slottest.Start(t)
	a := slot.Spawn("a")
	a.Call("threads", "3")
	fd := open(a, "/root/shm", unix.O_RDWR)
	finished := a.Go("main:registers")
	var wanted []bench.Lock
	var spent time.Duration
	for range rounds {
		take(a, fd, unix.F_SETLK, unix.F_RDLCK, 128, 1)
		take(a, fd, unix.F_SETLK, unix.F_WRLCK, 1<<33, 0)
		if wanted == nil {
			wanted = census(t, slot)
		}
		a.Call("drop", "/root/shm")
		report := repair(t, slot, lose(t, slot, wanted))
		spent += report.Duration
		same(t, census(t, slot), wanted...)
		slot.Continue()
	}
	if err := os.WriteFile(slot.Path("/run/enough"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(finished())
	if err != nil || n < 10 {
		t.Errorf("%d rounds of the program, %v", n, err)
	}
	t.Logf("%d repairs of two locks, %v each with their census, %d rounds of the program", rounds, spent/rounds, n)
}

// Restore sets what is lacking of the wanted locks, and leaves what is held alone.
func TestRestore(t *testing.T) {
	slot := slottest.Start(t)
	a := slot.Spawn("a")
	fd := open(a, "/root/shm", unix.O_RDWR)
	take(a, fd, unix.F_SETLK, unix.F_WRLCK, 0, 10)
	wanted, _, err := locks.Census(slot.Init)
	if err != nil || len(wanted) != 1 {
		t.Fatal(wanted, err)
	}
	slot.Stop()
	if report, err := locks.Restore(t.Context(), slot.Init, wanted); err != nil || len(report.Restored) != 0 {
		t.Errorf("nothing is lacking: %+v, %v", report, err)
	}
	lost := wanted[0]
	lost.Start, lost.End = "500", "509"
	report, err := locks.Restore(t.Context(), slot.Init, append(wanted, lost))
	if err != nil || len(report.Restored) != 1 || report.Restored[0].Lock.Start != "500" {
		t.Errorf("one is lacking: %+v, %v", report, err)
	}
	if have, _, err := locks.Census(slot.Init); err != nil || len(have) != 2 {
		t.Errorf("held afterwards: %v, %v", have, err)
	}
}

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/arms/locks"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// holder takes locks of every kind that two processes can share, each with a
// twin that must not be counted, and says when it has them.
const holder = `
import fcntl, mmap, os, struct, sys, time
def lock(f, kind, cmd, start, length): fcntl.fcntl(f, cmd, struct.pack("hhqqi4x", kind, 0, start, length, 0))
d = sys.argv[1]
a = open(d + "/mapped", "w+b"); a.truncate(4096); m = mmap.mmap(a.fileno(), 4096)
lock(a, fcntl.F_WRLCK, fcntl.F_SETLK, 128, 8)
os.dup(a.fileno())
b = open(d + "/plain", "w+b"); lock(b, fcntl.F_RDLCK, fcntl.F_SETLK, 0, 0)
F_OFD_SETLK = 37
o = open(d + "/ofd", "w+b"); lock(o, fcntl.F_WRLCK, F_OFD_SETLK, 5, 1)
f = open(d + "/flocked", "w"); fcntl.flock(f, fcntl.LOCK_SH)
g = open(d + "/flocked"); fcntl.flock(g, fcntl.LOCK_SH)
child = os.fork()
if child == 0:
    time.sleep(1000)
open(d + "/ready", "w").close()
time.sleep(1000)
`

// The guest's own view of locks and processes is the host's, lock for lock.
func TestObserveIsTheHostsView(t *testing.T) {
	dir := t.TempDir()
	s := start(t, guest.PhaseRunning, bench.Service{Name: "holder", Exec: []string{"/usr/bin/python3", "-c", holder, dir}, Ready: bench.GuestPath(filepath.Join(dir, "ready"))})
	o, err := s.client.Observe(t.Context(), []string{proto.AspectLocks, proto.AspectProcesses, proto.AspectMounts, proto.AspectNetwork}, nil)
	if err != nil || len(o.Unknown) > 0 {
		t.Fatal(err, o.Unknown)
	}
	want, _, err := locks.Census(s.pid)
	if err != nil {
		t.Fatal(err)
	}
	if len(want) != 5 {
		t.Errorf("the host sees %+v", want)
	}
	if diff := cmp.Diff(want, *o.Locks); diff != "" {
		t.Error(diff)
	}
	processes, _, err := procfs.Processes(s.pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]bench.Process{processes, *o.Processes} {
		list[0].Threads = 0 // guestd's own come and go
	}
	if diff := cmp.Diff(processes, *o.Processes); diff != "" {
		t.Error(diff)
	}
	p, err := s.client.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p.Mounts, *o.Mounts); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(p.Network, *o.Network); diff != "" {
		t.Error(diff)
	}
}

// What a guest does not know has a reason, and what is the host's is refused.
func TestObserveOutsideAMachine(t *testing.T) {
	if _, err := os.Lstat(observe.ListingPath); err == nil {
		t.Fatalf("this host is an image of ours: it has %s", observe.ListingPath)
	}
	s := start(t, guest.PhaseRunning)
	o, err := s.client.Observe(t.Context(), []string{proto.AspectLimits, proto.AspectState, "weather"}, []string{"/tmp"})
	if err != nil {
		t.Fatal(err)
	}
	for aspect, why := range map[string]string{proto.AspectLimits: errNoMachine.Error(), proto.AspectState: "no listing", "weather": "no aspect"} {
		if !strings.Contains(o.Unknown[aspect], why) {
			t.Errorf("%s: %q", aspect, o.Unknown[aspect])
		}
	}
	if _, err := s.client.Observe(t.Context(), []string{proto.AspectState}, []string{"tmp"}); !errors.Is(err, guest.ErrProtocol) {
		t.Errorf("a relative path: %v", err)
	}
	before := time.Now()
	if _, err := s.client.SetClock(t.Context(), before.Add(-time.Hour)); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("clock: %v", err)
	}
	if now := time.Now(); now.Round(0).Before(before.Round(0)) {
		t.Fatal("the host's clock was set")
	}
	if err := s.client.Freeze(t.Context(), true); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("freeze: %v", err)
	}
	if err := s.client.Thaw(t.Context()); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("thaw: %v", err)
	}
}

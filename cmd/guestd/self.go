package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// self is what a process knows of itself since its start.
type self struct {
	sha256  bench.SHA256
	started int64 // CLOCK_MONOTONIC in nanoseconds
}

func newSelf() (*self, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("read own program: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, fmt.Errorf("read own program: %w", err)
	}
	now, err := monotonic()
	if err != nil {
		return nil, err
	}
	return &self{sha256: bench.SHA256(hex.EncodeToString(h.Sum(nil))), started: now}, nil
}

func monotonic() (int64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	return ts.Nano(), nil
}

// view reads what a process sees of its slot. A part that cannot be read is an
// error of the whole: half a probe would look like a slot that lacks the rest.
func (s *self) view() (proto.Probe, error) {
	p := proto.Probe{Version: proto.Version, ServerSHA256: s.sha256, Pid: os.Getpid()}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return p, err
	}
	p.Mounts, err = observe.ParseMounts(f)
	f.Close()
	if err != nil {
		return p, err
	}
	// The socket lives for this reading only: no netlink socket is there to be dumped.
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return p, fmt.Errorf("open a route socket: %w", err)
	}
	p.Network, err = observe.ReadNetwork(h)
	h.Close()
	if err != nil {
		return p, err
	}
	if p.Hostname, err = os.Hostname(); err != nil {
		return p, err
	}
	now, err := monotonic()
	if err != nil {
		return p, err
	}
	p.Uptime = number(now - s.started)
	p.Clock = number(time.Now().UnixNano())
	return p, nil
}

func number(n int64) bench.Int64 { return bench.Int64(strconv.FormatInt(n, 10)) }

// live is memory that exists nowhere else: a slot that gives the token of
// another one has its memory, and one whose counter stands still does not run.
type live struct {
	token   string
	counter atomic.Uint64
}

func newLive() *live {
	var b [16]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return &live{token: hex.EncodeToString(b[:])}
}

// tick advances the counter for ever. It sleeps in the kernel for a relative
// time: a timer of the Go runtime is due at a reading of CLOCK_MONOTONIC, and
// would stand still for days after a restore on a host that has started anew.
func (l *live) tick() {
	period := unix.NsecToTimespec(proto.TickPeriod.Nanoseconds())
	for {
		unix.Nanosleep(&period, nil) // a signal only makes this tick shorter
		l.counter.Add(1)
	}
}

// state advances the counter too, so that two probes never give the same.
func (l *live) state() bench.LiveState {
	return bench.LiveState{Token: l.token, Counter: bench.Int64(strconv.FormatUint(l.counter.Add(1), 10))}
}

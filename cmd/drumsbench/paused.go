//go:build linux && !elsewhere

package main

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// asleep is a sleep of the host that counts; two readings of clocks differ by less.
const asleep = 500 * time.Millisecond

// watchPauses notices that this process did not run for a while: it was stopped by a
// signal, which the SIGCONT that ended it tells, or the host slept, which the clock
// that goes on meanwhile tells (clock_gettime(2), CLOCK_BOOTTIME). A machine that is
// only slow does neither. paused says which, empty for none; stop takes the handler back.
func watchPauses() (paused func() string, stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCONT)
	var mu sync.Mutex
	var said string
	began, known := slept()
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		if said != "" {
			return said
		}
		select {
		case <-signals:
			said = "the engine was stopped by a signal, and went on by SIGCONT: what ran meanwhile was not measured"
		default:
			if now, ok := slept(); known && ok && now-began > asleep {
				said = fmt.Sprintf("the host slept for %s: what ran meanwhile was not measured", (now - began).Round(time.Millisecond))
			}
		}
		return said
	}, func() { signal.Stop(signals) }
}

// slept is how long the host has slept since its start, or a little less.
func slept() (time.Duration, bool) {
	var boot, running unix.Timespec
	// In this order: a pause between the two makes it less, never more.
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &running) != nil {
		return 0, false
	}
	return time.Duration(boot.Nano() - running.Nano()), true
}

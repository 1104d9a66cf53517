// Package thread runs work that changes an OS thread for good: its namespaces,
// its root, what it traces.
//
// Always holds: such a thread ends with its work and never runs anything else;
// it is never the main one, which cannot end, so that Go would park it for ever
// where the work left it, and /proc/PID would show the process there.
package thread

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on a thread of its own and returns its error.
func Run(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- Run(f) // while this goroutine keeps the main thread busy
			runtime.UnlockOSThread()
			return
		}
		done <- f() // without UnlockOSThread: the thread ends here
	}()
	return <-done
}

// Apart runs f as Run does, in a mount namespace of its own whose mounts are
// private, and in other new namespaces that flags (CLONE_NEW…) name.
func Apart(flags int, f func() error) error {
	return Run(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | flags); err != nil {
			return fmt.Errorf("unshare namespaces: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		return f()
	})
}

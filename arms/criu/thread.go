package criu

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// withPrivateRun runs f where /run is an empty tmpfs that nobody else sees, for
// f itself and for what it starts. Without it CRIU litters the host's /run.
func withPrivateRun(f func() error) error {
	return onLostThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := MountRun("/run"); err != nil {
			return err
		}
		return f()
	})
}

// MountRun puts an empty tmpfs over CRIU's /run. The caller is in a mount
// namespace of its own whose mounts are private.
func MountRun(dir string) error {
	if err := unix.Mount("drums-run", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4m,mode=0755"); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", dir, err)
	}
	return nil
}

// onLostThread runs f on a thread that ends with it, and with the thread the
// mount namespace that f moved it to. The process's main thread cannot end and
// is what /proc/self shows, so it is never taken.
func onLostThread(f func() error) error {
	done := make(chan error, 1)
	var run func()
	run = func() {
		runtime.LockOSThread()
		if unix.Gettid() != os.Getpid() {
			done <- f()
			return // without UnlockOSThread
		}
		other := make(chan struct{})
		go func() { defer close(other); run() }() // elsewhere, since this thread is taken
		<-other
		runtime.UnlockOSThread()
	}
	go run()
	return <-done
}

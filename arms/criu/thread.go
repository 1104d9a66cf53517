package criu

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/thread"
)

// withPrivateRun runs f where /run is an empty tmpfs that nobody else sees, for
// f itself and for what it starts. Without it CRIU litters the host's /run.
func withPrivateRun(f func() error) error {
	return thread.Apart(0, func() error {
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

package overlay

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain runs the tests in a mount namespace of their own. Whoever makes a
// mount namespace on the host meanwhile would take a copy of our overlays along,
// which keeps their upper directories in use (EBUSY) after we unmounted them;
// and what a failed test leaves mounted goes away with the namespace.
func TestMain(m *testing.M) {
	const inside = "DRUMS_OVERLAY_TEST_NAMESPACE"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], os.Args[1:]...)
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		err := cmd.Run()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			os.Exit(exit.ExitCode())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "overlay tests need root, to make a mount namespace:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Fprintln(os.Stderr, "make mounts private:", err)
		os.Exit(1)
	}
	flag.Parse()
	checks := false
	flag.Visit(func(f *flag.Flag) { checks = checks || f.Name == "rapid.checks" })
	if !checks { // each case mounts up to six overlays
		flag.Set("rapid.checks", "40")
	}
	os.Exit(m.Run())
}

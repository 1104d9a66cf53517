package qemu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
)

// The tool's program is told from another by what it is, not by its name.
func TestRuns(t *testing.T) {
	digested, err := digest("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	sum := string(digested)
	if err := (Tool{SHA256: sum}).runs(os.Getpid()); err != nil {
		t.Error(err)
	}
	err = Tool{Path: "/proc/self/exe", SHA256: strings.Repeat("ab", 32)}.runs(os.Getpid())
	if !errors.Is(err, engine.ErrRefused) || engine.Failure(err).Hint == "" || !strings.Contains(err.Error(), sum) {
		t.Errorf("another program: %v", err)
	}
	if err := (Tool{SHA256: sum}).runs(1 << 30); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("a process that is none: %v", err)
	}
}

// probed names, in a copy of this test, the program to try an accelerator with.
const probed = "DRUMS_TEST_PROBED"

// A QEMU that an accelerator is tried with dies with us, whatever ends us.
func TestProbeDiesWithUs(t *testing.T) {
	if path := os.Getenv(probed); path != "" {
		Tool{Path: path}.Accelerator(t.Context(), "tcg")
		return
	}
	dir := t.TempDir()
	program, noted := filepath.Join(dir, "drums-qemu"), filepath.Join(dir, "pid")
	script := fmt.Sprintf("#!/bin/sh\necho $$ > %s.new && mv %[1]s.new %[1]s\nexec sleep 60\n", noted)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	us := exec.Command(os.Args[0], "-test.run=^TestProbeDiesWithUs$")
	us.Env = append(os.Environ(), probed+"="+program)
	if err := us.Start(); err != nil {
		t.Fatal(err)
	}
	var text []byte
	for deadline := time.Now().Add(15 * time.Second); len(text) == 0 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		text, _ = os.ReadFile(noted) // not there yet
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		us.Process.Kill()
		us.Wait()
		t.Fatalf("nothing was started: %v", err)
	}
	id, err := procfs.Identity(pid)
	us.Process.Kill()
	us.Wait()
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		alive, err := procfs.Alive(id)
		if err == nil && !alive {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("pid %d outlives us: %t, %v", pid, alive, procfs.Kill(t.Context(), id))
			return
		}
	}
}

package qemu

import (
	"bytes"
	"context"
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
	"github.com/drumsbench/drumsbench/schemas/bench"
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

// The probe is what its source says.
func TestProbeIsItsSource(t *testing.T) {
	dir := t.TempDir()
	object, program, page := filepath.Join(dir, "o"), filepath.Join(dir, "elf"), filepath.Join(dir, "page")
	run(t, "as", "--64", "testdata/probe/probe.s", "-o", object)
	run(t, "ld", "-e", "0", "-Ttext", "0", object, "-o", program)
	run(t, "objcopy", "-O", "binary", "-j", ".text", program, page)
	if !bytes.Equal(read(t, page), probe) {
		t.Error("probe.bin is of another source: make it again")
	}
}

// A machine whose guest does not run is no accelerator, whatever QEMU says of it.
func TestGuestIsTried(t *testing.T) {
	tool, _ := located(t)
	for _, c := range []struct {
		name, does, want string
		tool             Tool
	}{
		{"runs", "", "", tool},
		{"runs in a newer one", "", "", func() Tool { n, _ := newer(t); return n }()},
		{"hangs", "hlt", "-", tool}, // a busy machine may not even have started QEMU by then
		{"ends otherwise", "out", "ends it with 3", tool},
	} {
		t.Run(c.name, func(t *testing.T) {
			sound := probe
			defer func() { probe = sound }()
			probe = bytes.Clone(sound)
			switch c.does {
			case "hlt": // at the first instruction
				copy(probe[0xff0:], []byte{0xfa, 0xf4, 0xeb, 0xfd})
			case "out": // mov $1, %al; mov $0xf4, %dx; out %al, %dx
				copy(probe[0xff0:], []byte{0xb0, 1, 0xba, 0xf4, 0, 0xee, 0xf4})
			}
			ctx := t.Context()
			if c.does == "hlt" {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 3*time.Second)
				defer cancel()
			}
			have := c.tool.Accelerator(ctx, "tcg")
			text, known := have.Get()
			if known != (c.want == "") || known && text != "tcg" || !strings.Contains(have.Reason(), c.want) && c.does != "hlt" {
				t.Errorf("%q %v %s", text, known, have.Reason())
			}
		})
	}
}

// A kernel counts as started once it said so and ended the machine, and nothing else does.
func TestKernelIsTried(t *testing.T) {
	t.Parallel()
	tool, _ := located(t)
	state := t.TempDir()
	dir := filepath.Join(state, "cache", Kind)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if have := Kernel(state); have != "" {
		t.Errorf("no kernel is %s", have)
	}
	for i, name := range []string{"b", "a"} {
		path := filepath.Join(dir, name+".kernel")
		at := time.Unix(int64(1000+i), 0)
		if err := errors.Join(os.WriteFile(path, []byte("no kernel"), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	none := Kernel(state)
	if filepath.Base(none) != "a.kernel" {
		t.Errorf("the newest is %s", none)
	}
	if err := tool.Boots(t.Context(), "tcg", none); err == nil {
		t.Error("a file that is no kernel starts")
	}
	s := newArm(t, MethodFile)
	ws, _ := workspace(t)
	root, err := s.Mount(t.Context(), ws, bench.MountParams{Image: manifest(t).Image}) // takes its kernel out
	if err != nil {
		t.Fatal(describe(err))
	}
	if err := errors.Join(root.Release(t.Context()), s.Release(t.Context()), ws.Release(t.Context())); err != nil {
		t.Error(err)
	}
	if err := tool.Boots(t.Context(), "tcg", Kernel(stateDir())); err != nil {
		t.Errorf("the image's kernel: %v", err)
	}
	for does, wants := range map[string]string{"exec sleep 60": "does not get to its root", "echo 'Linux version 6'": "ends before", "echo 'VFS: Unable to mount root fs'; exit 3": "exit status 3"} {
		ctx := t.Context()
		if strings.HasPrefix(does, "exec") {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
		}
		path := filepath.Join(t.TempDir(), "qemu")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+does+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := (Tool{Path: path}).Boots(ctx, "kvm", none); err == nil || !strings.Contains(err.Error(), wants) {
			t.Errorf("%s: %v, want %q", does, err, wants)
		}
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

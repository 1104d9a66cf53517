package criu

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test program is started again as a stage that executes CRIU, and as a fake CRIU.
const (
	stageVariable = "DRUMS_CRIU_STAGE"
	fakeVariable  = "DRUMS_CRIU_FAKE"
)

var (
	tool      Tool
	guestFile string
)

func TestMain(m *testing.M) {
	if spec, ok := os.LookupEnv(stageVariable); ok {
		fmt.Fprintln(os.Stderr, "stage:", stage(spec))
		os.Exit(9)
	}
	if mode, ok := os.LookupEnv(fakeVariable); ok {
		fake(mode)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	state := os.Getenv("DRUMSBENCH_STATE")
	if state == "" {
		state = "/var/lib/drumsbench"
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if tool, err = Locate(ctx, state); err != nil {
		fmt.Fprintln(os.Stderr, "these tests need root and CRIU; scripts/setup brings it:", err)
		return 1
	}
	dir, err := os.MkdirTemp("", "drums-criu-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	guestFile = filepath.Join(dir, "guest")
	if err := buildGuest(guestFile); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func buildGuest(file string, env ...string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-o", file, "./testdata/guest")
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build guest: %w: %s", err, out)
	}
	return nil
}

// stageSpec is what a stage does before it executes CRIU: a private /run, and for a restore a fresh overlay.
type stageSpec struct {
	Criu          string
	Kdat          string
	Layers, Upper string
	Work, Root    string
	Fail          string
	Env           []string
}

func stage(text string) error {
	var s stageSpec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := MountRun("/run"); err != nil {
		return err
	}
	if s.Kdat != "" {
		if err := (Kdat{File: s.Kdat}).Prefill("/run"); err != nil {
			return err
		}
	}
	if s.Root != "" {
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,uuid=null", s.Layers, s.Upper, s.Work)
		if err := unix.Mount("overlay", s.Root, "overlay", 0, options); err != nil {
			return fmt.Errorf("mount overlay: %w", err)
		}
	}
	if s.Fail != "" {
		return fmt.Errorf("%s", s.Fail)
	}
	return unix.Exec(s.Criu, append([]string{"criu"}, Args()...), append(Env(), s.Env...))
}

package oci

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
)

// scripts/runc-pinned installs what has the digest and the signature that the
// operator asks for, and nothing else; what it installed is what Locate finds.
// The signature and its key, of testdata, were made for this test and nothing else.
func TestRuncPinned(t *testing.T) {
	state := t.TempDir()
	fixture := func(name string) string { return filepath.Join("testdata", "pinned", name) }
	good, err := os.ReadFile(fixture("runc"))
	must(t, err)
	digest := func(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }
	other := filepath.Join(t.TempDir(), "runc")
	must(t, os.WriteFile(other, append(good, '\n'), 0o755))
	mute := filepath.Join(t.TempDir(), "runc")
	must(t, os.WriteFile(mute, []byte("#!/bin/sh\n"), 0o755))
	run := func(args ...string) (string, error) {
		cmd := exec.Command("../../scripts/runc-pinned", args...)
		cmd.Env = append(os.Environ(), "DRUMSBENCH_STATE="+state)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, c := range []struct {
		name, says string
		args       []string
	}{
		{"another digest", "has digest " + digest(good), []string{fixture("runc"), digest([]byte("other"))}},
		{"another program under the signature", "does not hold", []string{other, digest(append(good, '\n')), fixture("runc.sig"), fixture("keys.gpg")}},
		{"no such key", "does not hold", []string{fixture("runc"), digest(good), fixture("runc.sig"), os.DevNull}},
		{"no runc", "says no version", []string{mute, digest([]byte("#!/bin/sh\n"))}},
	} {
		if out, err := run(c.args...); err == nil || !strings.Contains(out, c.says) || !strings.Contains(out, "remedy: ") {
			t.Errorf("%s: %v, %s", c.name, err, out)
		}
		if got, err := Locate(t.Context(), state); err != nil || got.Origin != "system" {
			t.Fatalf("%s: %+v, %v is used", c.name, got, err)
		}
	}
	for _, signed := range [][]string{nil, {fixture("runc.sig"), fixture("keys.gpg")}} {
		out, err := run(append([]string{fixture("runc"), digest(good)}, signed...)...)
		if err != nil || strings.Contains(out, "signed by") != (signed != nil) {
			t.Fatalf("%v, %s", err, out)
		}
		got, err := Locate(t.Context(), state)
		if err != nil || got.Origin != "operator" || got.Version != "9.8.7" || got.SHA256 != digest(good) || !strings.HasPrefix(got.Path, state) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	// What was installed is what runs: a byte more, and it is refused.
	installed, err := Locate(t.Context(), state)
	must(t, err)
	must(t, os.WriteFile(installed.Path, append(good, '\n'), 0o755))
	if _, err := Locate(t.Context(), state); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("a program that was changed: %v", err)
	}
	if out, err := run("--remove"); err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	if got, err := Locate(t.Context(), state); err != nil || got.Origin != "system" {
		t.Errorf("%+v, %v", got, err)
	}
}

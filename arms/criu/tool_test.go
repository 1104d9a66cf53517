package criu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func writeRecord(t *testing.T, name, text string) (state string) {
	t.Helper()
	state = t.TempDir()
	file := filepath.Join(state, "criu", name)
	makeDirs(t, filepath.Dir(file))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return state
}

func TestLocateRefuses(t *testing.T) {
	old := filepath.Join(t.TempDir(), "criu")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(old, []byte("#!/bin/sh\nexec env "+fakeVariable+"=version "+self+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	zeros := strings.Repeat("0", 64)
	tests := []struct{ name, file, text, want string }{
		{"nothing there", "unrelated", "", "no such file"},
		{"damaged record", "operator.json", "{", "parse"},
		{"no path", "operator.json", "{}", "names no absolute path"},
		{"no program", "operator.json", `{"path": "/nonexistent/criu"}`, "no such file"},
		{"too old", "operator.json", fmt.Sprintf(`{"path": %q}`, old), "is version 4.1.1, 4.2 or newer is needed"},
		{"another operator's program", "operator.json", fmt.Sprintf(`{"criu": {"path": %q, "sha256": %q}}`, tool.Path, zeros), "has digest"},
		{"another program", "current/closure.json", fmt.Sprintf(`{"criu": {"path": %q, "sha256": %q}}`, tool.Path, zeros), "has digest"},
		{"no digest", "current/closure.json", fmt.Sprintf(`{"criu": {"path": %q}}`, tool.Path), "holds no digest"},
		{"missing library", "current/closure.json", fmt.Sprintf(`{"criu": {"path": %q, "sha256": %q}, "libraries": [{"name": "libc.so.6", "sha256": %q}]}`,
			tool.Path, tool.SHA256, zeros), "libc.so.6"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Locate(t.Context(), writeRecord(t, test.file, test.text))
			var e *engine.Error
			if !errors.Is(err, engine.ErrRefused) || !errors.As(err, &e) || !strings.Contains(e.Hint, "scripts/setup") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestLocate(t *testing.T) {
	state := writeRecord(t, "operator.json", fmt.Sprintf(`{"criu": {"path": %q, "version": "99.0", "sha256": %q}}`, tool.Path, tool.SHA256))
	got, err := Locate(t.Context(), state)
	if err != nil {
		t.Fatal(err)
	}
	if got.Origin != "operator" || got.Version != tool.Version || got.SHA256 != tool.SHA256 || got.Path != tool.Path {
		t.Errorf("tool %+v", got)
	}
	facts := map[string]string{}
	for _, f := range tool.Facts() {
		if f.Known {
			facts[f.Name] = f.Value
		}
	}
	if facts["criu.version"] != tool.Version || len(facts["criu.sha256"]) != 64 || facts["criu.path"] != tool.Path {
		t.Errorf("facts %v", facts)
	}
	unknown := false
	for _, f := range got.Facts() {
		unknown = unknown || f.Name == "criu.packages" && !f.Known && f.Reason != ""
	}
	if !unknown {
		t.Error("an operator's libraries are not said to be unknown")
	}
}

func TestCheck(t *testing.T) {
	leaksNothing(t)
	littersNothing(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := tool.Check(ctx, t.TempDir()); err != nil {
		t.Error(err)
	}
}

// A manifest may pin the program; another one is refused, with both digests.
func TestPinned(t *testing.T) {
	tool := Tool{Path: "/usr/sbin/criu", SHA256: strings.Repeat("ab", 32)}
	for _, pin := range []bench.SHA256{"", bench.SHA256(tool.SHA256)} {
		if err := tool.Pinned(pin); err != nil {
			t.Errorf("pin %q: %v", pin, err)
		}
	}
	other := bench.SHA256(strings.Repeat("cd", 32))
	var e *engine.Error
	if err := tool.Pinned(other); !errors.Is(err, engine.ErrRefused) || !errors.As(err, &e) || e.Hint == "" || len(e.Findings) != 1 || e.Findings[0].Want != string(other) {
		t.Errorf("another program: %v", err)
	}
}

// A configuration of the host does not reach CRIU.
func TestConfigDoesNotLeak(t *testing.T) {
	home := t.TempDir()
	makeDirs(t, filepath.Join(home, ".criu"))
	for _, file := range []string{filepath.Join(home, ".criu/default.conf"), filepath.Join(home, "env.conf")} {
		if err := os.WriteFile(file, []byte("leave-running\nfile-locks\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := startSlot(t, "lock")
	o := DumpOptions{Pid: s.pid, ImagesDir: filepath.Join(s.dir, "i"), WorkDir: filepath.Join(s.dir, "i")}
	makeDirs(t, o.ImagesDir)
	cmd := stageCommand(t, stageSpec{Kdat: kdatFile(t), Env: []string{"HOME=" + home, "CRIU_CONFIG_FILE=" + home + "/env.conf"}})
	var f *Failure
	if err := Dump(t.Context(), cmd, o, nil); !errors.As(err, &f) || f.Kind != KindLocks {
		t.Errorf("the host's file-locks was obeyed: %v", err)
	}
}

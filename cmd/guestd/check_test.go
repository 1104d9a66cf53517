package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

func (s *testSlot) check(q guest.Check) guest.Checked {
	s.t.Helper()
	if q.Timeout == 0 {
		q.Timeout = 20 * time.Second
	}
	r, err := s.client.Check(s.t.Context(), q)
	if err != nil {
		s.t.Fatalf("check %q: %v", q.Exec, err)
	}
	return r
}

func entry(list []guest.ClosureEntry, path string) (guest.ClosureEntry, bool) {
	for _, e := range list {
		if e.Path == path {
			return e, true
		}
	}
	return guest.ClosureEntry{}, false
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// A copy runs from a folder that was not there before and is not there after; it is
// the one that was sent.
func TestCheckRunsTheCopy(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	text := []byte("#!/bin/sh\necho \"$0\"; stat -c '%a %U' \"$0\" \"$(dirname \"$0\")\"; pwd; exit 4\n")
	r := s.check(guest.Check{Exec: []string{guest.ProgramPlace, "a b"}, Name: "check.sh", Program: text})
	lines := strings.Split(strings.TrimSpace(string(r.Stdout)), "\n")
	if r.Exit != 4 || len(lines) != 4 || lines[1] != "555 root" || lines[2] != "555 root" || lines[3] != "/root" {
		t.Fatalf("%+v\n%s%s", r.Result, r.Stdout, r.Stderr)
	}
	if _, err := os.Lstat(filepath.Dir(lines[0])); !errors.Is(err, os.ErrNotExist) { // the test's slot shares the host's files
		t.Errorf("%s is still there: %v", lines[0], err)
	}
	if r.Resolved != guest.ProgramPlace+"/check.sh" {
		t.Errorf("it ran %s", r.Resolved)
	}
	if e, ok := entry(r.Before, r.Resolved); !ok || string(e.Sha256) != sum(text) || e.Mode != "0555" {
		t.Errorf("%+v", e)
	}
	again := s.check(guest.Check{Exec: []string{guest.ProgramPlace, "a b"}, Name: "check.sh", Program: text})
	if bytes.Equal(again.Stdout, r.Stdout) {
		t.Errorf("two checks ran from one path: %s", again.Stdout)
	}
	if diff := cmp.Diff(r.Before, again.Before); diff != "" {
		t.Errorf("two checks of one program stand on different things:\n%s", diff)
	}
	// A program that time takes is ended, with its tree, and its copy goes as well.
	slow := s.check(guest.Check{Exec: []string{guest.ProgramPlace}, Name: "slow", Program: []byte("#!/bin/sh\necho \"$0\"\nsleep 60\n"), Timeout: 200 * time.Millisecond})
	if !slow.TimedOut || len(slow.Before) == 0 {
		t.Errorf("%+v", slow.Result)
	}
	if _, err := os.Lstat(strings.TrimSpace(string(slow.Stdout))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", slow.Stdout, err)
	}
	if left, err := filepath.Glob("/.drums-*"); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// The copy is root's, and who runs it can read and run it and nothing else.
func TestCheckKeepsTheCopyRoots(t *testing.T) {
	folder, path, err := putProgram("check", []byte("#!/bin/sh\nexit 4\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	for _, p := range []string{folder, path} {
		info, err := os.Lstat(p)
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 0 || st.Gid != 0 || info.Mode().Perm() != 0o555 {
			t.Errorf("%s: %s of %d:%d", p, info.Mode(), st.Uid, st.Gid)
		}
	}
	as := func(argv ...string) int {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if err := cmd.Run(); cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode()
	}
	if code := as(path); code != 4 {
		t.Errorf("another user runs it: %d", code)
	}
	if as("/bin/mv", path, path+".x") == 0 || as("/bin/cp", "/bin/true", path) == 0 || as("/bin/chmod", "0777", path) == 0 {
		t.Error("another user changed it")
	}
}

// A copy that was put away while it ran is seen, also where it was put back.
func TestCheckSeesASwappedCopy(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	for name, text := range map[string]string{
		"the file":   "mv \"$0\" \"$0.x\"; mv \"$0.x\" \"$0\"",
		"the folder": "d=$(dirname \"$0\"); mv \"$d\" \"$d.x\"; mv \"$d.x\" \"$d\"",
		"its rights": "chmod 0755 \"$0\"; chmod 0555 \"$0\"",
	} {
		r, err := s.client.Check(t.Context(), guest.Check{Exec: []string{guest.ProgramPlace}, Name: "check", Program: []byte("#!/bin/sh\n" + text + "\n"), Timeout: 20 * time.Second})
		if !errors.Is(err, guest.ErrExecute) || !strings.Contains(err.Error(), errCopyChanged.Error()) {
			t.Errorf("%s: %+v, %v", name, r.Result, err)
		}
	}
	if left, err := filepath.Glob("/.drums-*"); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// What a program stands on: its file, loader and libraries, what is always there or not.
func TestClosureOfAProgram(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	r := s.check(guest.Check{Exec: []string{"test", "-d", "/"}})
	if r.Exit != 0 || r.Resolved != "/usr/bin/test" {
		t.Fatalf("%+v", r)
	}
	has := func(kind, path string) {
		t.Helper()
		if e, ok := entry(r.Before, path); !ok || e.Kind != kind {
			t.Errorf("%s: %+v, want a %s", path, e, kind)
		}
	}
	has(proto.EntryFile, "/usr/bin/test")
	has(proto.EntryAbsent, "/etc/ld.so.preload")
	has(proto.EntryFile, "/etc/ld.so.cache")
	has(proto.EntryFile, program(t))
	libc := false
	for _, e := range r.Before {
		libc = libc || filepath.Base(e.Path) == "libc.so.6" && e.Kind == proto.EntryFile
	}
	if !libc {
		t.Errorf("no libc in %+v", r.Before)
	}
	text, err := os.ReadFile("/usr/bin/test")
	if err != nil {
		t.Fatal(err)
	}
	if e, _ := entry(r.Before, "/usr/bin/test"); string(e.Sha256) != sum(text) {
		t.Errorf("%+v, want %s", e, sum(text))
	}
	own, err := os.ReadFile(program(t))
	if err != nil || string(r.Server) != sum(own) {
		t.Errorf("server %s, want %s (%v)", r.Server, sum(own), err)
	}
}

// Each thing that an agent can put in a checker's way changes the list.
func TestClosureSeesChanges(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	home := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	python, err := filepath.EvalSymlinks("/usr/bin/python3")
	if err != nil {
		t.Fatal(err)
	}
	write("lib/check.py", "import helper\nprint(helper.answer)\n")
	write("lib/helper.py", "answer = 1\n")
	write("lib/run.sh", "exec grep -q x "+home+"/answers\n")
	write("tool", "#!"+home+"/interpreter\n")
	write("interpreter", "not a program")
	at := func(name string) string { return filepath.Join(home, name) }
	for _, c := range []struct {
		name   string
		exec   []string
		paths  []string
		change func()
		file   string
	}{
		{"a module beside the script", []string{"python3", "-B", at("lib/check.py")}, nil, func() { write("lib/helper.py", "answer = 2\n") }, at("lib/helper.py")},
		{"a module that comes first", []string{"python3", "-B", at("lib/check.py")}, nil, func() { write("lib/os.py", "") }, at("lib/os.py")},
		{"a package that comes first", []string{"python3", "-B", at("lib/check.py")}, nil, func() { write("lib/json/__init__.py", "") }, at("lib/json/__init__.py")},
		{"the script", []string{"python3", at("lib/check.py")}, nil, func() { write("lib/check.py", "print(1)\n") }, at("lib/check.py")},
		{"the script of a shell", []string{"sh", at("lib/run.sh")}, nil, func() { write("lib/run.sh", "exit 0\n") }, at("lib/run.sh")},
		{"an interpreter by its script", []string{"sh", "-c", "exec " + at("tool") + " || true"}, []string{at("tool")}, func() { write("tool", "#!/bin/true\n") }, at("tool")},
		{"a file that was asked for", []string{"true"}, []string{at("answers")}, func() { write("answers", "x") }, at("answers")},
		{"a folder that was asked for", []string{"true"}, []string{at("folder")}, func() { write("folder/below/x", "x") }, at("folder/below/x")},
	} {
		before := s.check(guest.Check{Exec: c.exec, Paths: c.paths})
		c.change()
		after := s.check(guest.Check{Exec: c.exec, Paths: c.paths})
		was, had := entry(before.Before, c.file)
		is, has := entry(after.Before, c.file)
		if had == has && was == is {
			t.Errorf("%s: %s does not show: %+v, %+v", c.name, c.file, was, is)
		}
	}
	// python itself and its library are there, and what a shell's text names.
	r := s.check(guest.Check{Exec: []string{"python3", "-I", "-c", "pass"}})
	for _, path := range []string{"/usr/bin/python3", filepath.Join("/usr/lib", filepath.Base(python), "os.py")} {
		if e, ok := entry(r.Before, path); !ok || e.Kind != proto.EntryFile {
			t.Errorf("%s: %+v", path, e)
		}
	}
	r = s.check(guest.Check{Exec: []string{"sh", "-c", "echo x | grep -q x; no-such-program-of-drums"}})
	if e, ok := entry(r.Before, "/usr/bin/grep"); !ok || !e.Named || e.Kind != proto.EntryFile {
		t.Errorf("grep: %+v", e)
	}
	r = s.check(guest.Check{Exec: []string{"env", "-i", "A=b", "grep", "-q", "root", "/etc/passwd"}})
	if e, ok := entry(r.Before, "/usr/bin/grep"); !ok || e.Named || r.Exit != 0 {
		t.Errorf("grep by env: %+v, %+v", e, r.Result)
	}
}

// A checker that changes what it stands on while it runs is seen too.
func TestCheckReadsAgain(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	file := filepath.Join(t.TempDir(), "answers")
	r := s.check(guest.Check{Exec: []string{"sh", "-c", "echo 1 > " + file}, Paths: []string{file}})
	before, _ := entry(r.Before, file)
	after, _ := entry(r.After, file)
	if before.Kind != proto.EntryAbsent || after.Kind != proto.EntryFile {
		t.Errorf("%+v, %+v", before, after)
	}
}

func TestCheckRefuses(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	r := s.check(guest.Check{Exec: []string{"no-such-program-of-drums"}})
	if r.Resolved != "" || len(r.Before) == 0 {
		t.Errorf("%+v", r)
	}
	for name, q := range map[string]guest.Check{
		"a name with a folder":   {Exec: []string{"true"}, Name: "../x", Program: []byte("x")},
		"a name without content": {Exec: []string{"true"}, Name: "x"},
		"a relative path":        {Exec: []string{"true"}, Paths: []string{"x"}},
	} {
		q.Timeout = time.Second
		if r, err := s.client.Check(t.Context(), q); !errors.Is(err, guest.ErrExecute) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	// Who asks and goes away stops the reading of a large guest.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.client.Check(ctx, guest.Check{Exec: []string{"true"}, Paths: []string{"/usr"}, Timeout: time.Second}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	// More than is bearable is an error, and never a part.
	if _, err := s.client.Check(t.Context(), guest.Check{Exec: []string{"true"}, Paths: []string{"/usr/share", "/usr/lib", "/usr/local"}, Timeout: time.Second}); err == nil || !strings.Contains(err.Error(), "stands on more than") {
		t.Errorf("%v", err)
	}
	s.wait(guest.PhaseRunning)
}

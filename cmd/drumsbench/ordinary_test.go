//go:build linux && !elsewhere

package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/drumsbench/drumsbench/arms/fake"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
)

// ordinary is a user of the host without any right, and the user's folder.
type ordinary struct {
	t    *testing.T
	home string
}

const nobody = 65534

// newOrdinary copies the program to where the user reaches it.
func newOrdinary(t *testing.T, program string) ordinary {
	t.Helper()
	home, err := os.MkdirTemp("", "drums-ordinary-") // t.TempDir is root's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	err = errors.Join(os.Chmod(home, 0o755), copyFile(program, filepath.Join(home, "drumsbench")), os.Chmod(filepath.Join(home, "drumsbench"), 0o755),
		os.Mkdir(filepath.Join(home, "own"), 0o755), os.Chown(filepath.Join(home, "own"), nobody, nobody))
	if err != nil {
		t.Fatal(err)
	}
	return ordinary{t, home}
}

// give copies a folder to the user: to keep, or one that can only be read.
func (o ordinary) give(from, name string, keep bool) string {
	o.t.Helper()
	to := filepath.Join(o.home, name)
	err := os.CopyFS(to, os.DirFS(from))
	err = errors.Join(err, filepath.WalkDir(to, func(path string, d fs.DirEntry, err error) error {
		mode := fs.FileMode(0o444)
		switch {
		case err != nil:
			return err
		case keep:
			return os.Chown(path, nobody, nobody)
		case d.IsDir():
			mode = 0o555
		}
		return os.Chmod(path, mode)
	}))
	if err != nil {
		o.t.Fatal(err)
	}
	return to
}

// call runs the program as the user, with a state directory that is not there.
func (o ordinary) call(args ...string) (code int, out string) {
	o.t.Helper()
	cmd := exec.Command(filepath.Join(o.home, "drumsbench"), args...)
	cmd.Dir = filepath.Join(o.home, "own")
	cmd.Env = []string{"DRUMSBENCH_STATE=" + filepath.Join(o.home, "no", "state"), "PATH=/nowhere", "HOME=/nonexistent"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	return exitOf(o.t, cmd.Run()), b.String()
}

// wants requires the exit code, and that the words are in what is said.
func (o ordinary) wants(code int, words string, args ...string) {
	o.t.Helper()
	got, out := o.call(args...)
	if got != code || !strings.Contains(out, words) {
		o.t.Errorf("drumsbench %s: exit code %d, want %d and %q:\n%s", strings.Join(args, " "), got, code, words, out[:min(len(out), 2000)])
	}
}

// What only reads manifests and runs needs no right: not root's, not that to write
// where they lie, and no state directory.
func TestOrdinaryUser(t *testing.T) {
	program, err := exec.LookPath("drumsbench")
	if err != nil {
		t.Fatal(err)
	}
	o := newOrdinary(t, program)
	fakes := fakeCrash(t, t.TempDir())
	runs := filepath.Join(t.TempDir(), "runs")
	cmd := exec.Command("drumsbench", append([]string{"--state", fakes.State, "run", "--out", runs}, fakes.Run...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	waits := filepath.Join(t.TempDir(), "waits")
	recordtest.Run{Gate: "live", Verdict: engine.Review, Rollouts: 1}.Make(t, waits)

	checkout := o.give("../../manifests", "manifests", false)
	o.give("../../schemas", "schemas", false)
	locks := filepath.Join(checkout, "locks")
	own := filepath.Join(o.home, "own")
	o.wants(0, "locks: ok", "vet", locks)
	o.wants(0, "restore", "plan", locks)
	o.wants(0, `"reset":"cold"`, "plan", "-o", "json", "--reset", "cold", locks)
	o.wants(2, "it has no bars", "register", "--state", filepath.Join(own, "state"), locks)
	o.wants(0, "drumsbench", "version")
	for _, keep := range []bool{true, false} {
		name := map[bool]string{true: "kept", false: "readonly"}[keep]
		folder := o.give(runs, name, keep)
		run := filepath.Join(folder, "fake-restore")
		o.wants(0, ": sound: ", "verify", folder)
		o.wants(0, "passed", "show", folder)
		o.wants(0, "allowed", "compare", run, run)
		o.wants(0, "passed", "ls", folder)
		o.wants(0, "0 failed", "report", "--out", filepath.Join(own, "site-"+name), folder)
		o.wants(0, "no step of it asked", "review", run)
		o.wants(4, ": waits", "review", o.give(waits, name+"-waits", keep))
	}
	o.wants(1, "0 of 1 step wait", "review", filepath.Join(o.home, "kept-waits"), "--decide", "fail", "--by", "A. Person", "--reason", "looked")
	o.wants(1, "permission denied", "review", filepath.Join(o.home, "readonly-waits"), "--decide", "fail", "--by", "A. Person", "--reason", "looked")
	// A run of somebody else that the user may not read is an error, not a run without faults.
	closed := o.give(runs, "closed", false)
	if err := os.Chmod(filepath.Join(closed, "fake-restore", "events.jsonl"), 0); err != nil {
		t.Fatal(err)
	}
	o.wants(1, "permission denied", "verify", closed)
	// What needs the host says what it lacks.
	if code, out := o.call("run", "-t", "server="+string(fake.ServerSHA256()), locks); code == 0 {
		t.Errorf("a run without rights: %s", out)
	}
}

// The program of other systems, which the tag elsewhere makes on this one, reads
// what was made here, and says of all else where it runs.
func TestElsewhere(t *testing.T) {
	program := filepath.Join(t.TempDir(), "drumsbench")
	if out, err := exec.Command("go", "build", "-tags", "elsewhere", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	o := newOrdinary(t, program)
	run := filepath.Join(t.TempDir(), "run")
	recordtest.Run{Rollouts: 2}.Make(t, run)
	run = o.give(run, "run", false)
	o.give("../../schemas", "schemas", false)
	locks := filepath.Join(o.give("../../manifests", "manifests", false), "locks")
	o.wants(0, "locks: ok", "vet", locks)
	o.wants(0, "restore", "plan", locks)
	o.wants(0, "passed", "show", run)
	o.wants(0, "1 run", "report", "--out", filepath.Join(o.home, "own", "site"), run)
	for _, args := range [][]string{{"run", "--arm", "drums", locks}, {"slot", "provision", locks}, {"slot"}, {"sweep", "--all"}, {"doctor"}, {"probe", "network"}, {"image", "build", "x.cue"}} {
		o.wants(1, "this command runs on Linux hosts", args...)
	}
	o.wants(0, "This command runs on Linux hosts", "run", "--help")
	o.wants(2, "see: drumsbench vet --help", "vet", "--arm", "drums", locks)
}

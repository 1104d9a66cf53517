package image

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// lockWorld runs the programs of the lock workload outside of a slot.
type lockWorld struct {
	t          *testing.T
	env        []string
	state, run string
	reader     *exec.Cmd
	said       bytes.Buffer
}

func startReader(t *testing.T, args ...string) *lockWorld {
	t.Helper()
	w := &lockWorld{t: t, state: t.TempDir(), run: t.TempDir()}
	w.env = append(os.Environ(), "LOCKS_STATE="+w.state, "LOCKS_RUN="+w.run)
	w.reader = w.program("reader.py", args...)
	w.reader.Stderr = &w.said
	if err := w.reader.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.stopReader)
	for range 500 {
		if _, err := os.Stat(filepath.Join(w.run, "ready")); err == nil {
			return w
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("the reader is not ready: %s", w.said.String())
	return nil
}

func (w *lockWorld) stopReader() {
	if w.reader.ProcessState == nil {
		w.reader.Process.Kill()
		w.reader.Wait()
	}
}

func (w *lockWorld) program(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("python3", append([]string{filepath.Join("../../manifests/images/locks", name)}, args...)...)
	cmd.Env = w.env
	return cmd
}

// status runs a program and returns its exit status and what it said.
func (w *lockWorld) status(name string) (int, string) {
	w.t.Helper()
	cmd := w.program(name)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		w.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func (w *lockWorld) want(name string, status int, words ...string) {
	w.t.Helper()
	have, said := w.status(name)
	if have != status {
		w.t.Errorf("%s: exit status %d, wanted %d: %s", name, have, status, said)
	}
	for _, word := range words {
		if !strings.Contains(said, word) {
			w.t.Errorf("%s does not say %q: %s", name, word, said)
		}
	}
}

// ask asks the reader itself.
func (w *lockWorld) ask() map[string]any {
	w.t.Helper()
	c, err := net.Dial("unix", filepath.Join(w.run, "reader.sock"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	text, err := io.ReadAll(c)
	if err != nil {
		w.t.Fatal(err)
	}
	var answer map[string]any
	if err := json.Unmarshal(text, &answer); err != nil {
		w.t.Fatal(err)
	}
	return answer
}

// census is the locks of /proc/locks on files of the world, as "file kind range", sorted.
func (w *lockWorld) census() []string {
	w.t.Helper()
	names := map[string]string{}
	files, err := filepath.Glob(filepath.Join(w.state, "*"))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, file := range files {
		identity, err := pathIdentity(file)
		if err != nil {
			w.t.Fatal(err)
		}
		names[string(identity.Ino)] = filepath.Base(file)
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	var locks []string
	for s := bufio.NewScanner(f); s.Scan(); {
		// 1: POSIX  ADVISORY  READ 123 fe:00:456 0 EOF
		l := strings.Fields(s.Text())
		if len(l) != 8 {
			continue
		}
		owner := "child"
		if l[4] == fmt.Sprint(w.reader.Process.Pid) {
			owner = "reader"
		}
		if name := names[l[5][strings.LastIndex(l[5], ":")+1:]]; name != "" {
			locks = append(locks, strings.Join([]string{name, owner, l[1], l[3], l[6], l[7]}, " "))
		}
	}
	slices.Sort(locks)
	return locks
}

func TestLockWorkload(t *testing.T) {
	w := startReader(t)
	want := []string{
		"mapped reader POSIX READ 4096 4607",
		"plain reader POSIX READ 100 199",
		"tail child POSIX WRITE 64 EOF",
		"wal.db reader POSIX READ 1073741826 1073742335",
		"wal.db-shm reader POSIX READ 124 124",
		"wal.db-shm reader POSIX READ 128 128",
	}
	if have := w.census(); !slices.Equal(have, want) {
		t.Errorf("locks\n%s\nwanted\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	before := w.ask()
	w.want("check.py", 4, "score 0")
	w.want("check.py", 4, "score 0") // asking changes nothing
	w.want("write.py", 0, "busy=1")
	w.want("check.py", 0, "score 1")
	w.want("check.py", 0, "score 1")
	after := w.ask()
	if after["count"] != before["count"] || after["checksum"] != before["checksum"] || before["checksum"] == nil {
		t.Errorf("the snapshot was %v, is %v", before, after)
	}
	if after["questions"].(float64) <= before["questions"].(float64) {
		t.Errorf("the counter was %v, is %v", before["questions"], after["questions"])
	}
	if have := w.census(); !slices.Equal(have, want) {
		t.Errorf("locks afterwards\n%s", strings.Join(have, "\n"))
	}
	w.stopReader()
	w.want("check.py", 3, "no score")
}

// The planted fault of EXP-009: without the locks the isolation breaks for
// real, the checker sees it, and never calls it a 0.
func TestLockWorkloadSeesLostLocks(t *testing.T) {
	w := startReader(t, "--drop-mapped-locks")
	want := []string{"plain reader POSIX READ 100 199", "wal.db reader POSIX READ 1073741826 1073742335"}
	if have := w.census(); !slices.Equal(have, want) {
		t.Errorf("locks\n%s\nwanted\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	before := w.ask()
	w.want("check.py", 3, "mapped file", "tail of the child's file", "-shm")
	w.want("write.py", 0, "busy=0")
	after := w.ask()
	if after["checksum"] == before["checksum"] && after["error"] == nil {
		t.Errorf("the snapshot survived the loss, so it proves nothing: %v", after)
	}
	w.want("check.py", 3, "snapshot")
}

// Worlds that are broken in other ways have no score either.
func TestLockWorkloadIsBroken(t *testing.T) {
	t.Run("nothing there", func(t *testing.T) {
		w := &lockWorld{t: t}
		w.env = append(os.Environ(), "LOCKS_STATE="+t.TempDir(), "LOCKS_RUN="+t.TempDir())
		w.want("check.py", 3, "no score")
		if status, _ := w.status("write.py"); status == 0 {
			t.Error("the writer wrote nowhere")
		}
	})
	t.Run("rows written, no outcome", func(t *testing.T) {
		w := startReader(t)
		w.sql("UPDATE rows SET text='x' WHERE number=1")
		w.want("check.py", 3, "neither the old nor the new")
	})
	t.Run("outcome lost", func(t *testing.T) {
		w := startReader(t)
		w.want("write.py", 0)
		w.sql("DELETE FROM outcome")
		w.want("check.py", 3, "outcomes")
	})
	t.Run("checkpoint not held off", func(t *testing.T) {
		w := startReader(t)
		w.want("write.py", 0)
		w.sql("UPDATE outcome SET busy=0")
		w.want("check.py", 3, "hold the checkpoint off")
	})
	t.Run("child dead", func(t *testing.T) {
		w := startReader(t)
		child := strings.TrimSpace(childrenOf(t, w.reader.Process.Pid))
		if out, err := exec.Command("kill", "-9", child).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := w.reader.Wait(); err == nil {
			t.Error("the reader outlived its child with status 0")
		}
		w.want("check.py", 3, "no score")
	})
	t.Run("reader hangs", func(t *testing.T) {
		w := startReader(t)
		if out, err := exec.Command("kill", "-STOP", fmt.Sprint(w.reader.Process.Pid)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		w.want("check.py", 3, "no score")
	})
	t.Run("shared module missing", func(t *testing.T) {
		dir := t.TempDir()
		text, err := os.ReadFile("../../manifests/images/locks/check.py")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "check.py"), text, 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("python3", filepath.Join(dir, "check.py"))
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 3 {
			t.Errorf("exit status %d: %s", cmd.ProcessState.ExitCode(), out)
		}
	})
}

func (w *lockWorld) sql(statement string) {
	w.t.Helper()
	cmd := exec.Command("python3", "-c", `import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute("PRAGMA wal_autocheckpoint=0"); c.execute(sys.argv[2])`, filepath.Join(w.state, "wal.db"), statement)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
}

func childrenOf(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

package hostexec

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The program gets what it was given, PATH, and nothing else of ours.
func TestInheritsNothing(t *testing.T) {
	t.Setenv("DRUMS_TEST_SECRET", "leak")
	leak, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, leak.Fd(), syscall.F_SETFD, 0); errno != 0 { // as if we had inherited it
		t.Fatal(errno)
	}
	ws, _ := workspace(t)
	r, err := run(t, t.Context(), ws, script(t, ws, `tr '\0' '\n' </proc/$$/environ; echo --; for f in /proc/$$/fd/*; do readlink $f; done; echo --; pwd; ls -A; echo --; cat /proc/$$/cgroup`+"\n"), "DRUMS_X=a b")
	if err != nil || r.Exit != 0 || len(r.Stderr) > 0 {
		t.Fatalf("%+v %v\n%s", r, err, r.Stderr)
	}
	parts := strings.Split(string(r.Stdout), "--\n")
	if want := searchPath + "\nDRUMS_X=a b\n"; parts[0] != want {
		t.Errorf("environment %q, want %q", parts[0], want)
	}
	for i, f := range strings.Fields(parts[1]) {
		// The shell keeps the script open on a descriptor of its own, which is the copy.
		if !strings.HasPrefix(f, "pipe:") && f != "/dev/null" && !strings.HasSuffix(f, "/agent-slot-0/agent") {
			t.Errorf("descriptor %d is %s", i, f)
		}
	}
	dir, rest, _ := strings.Cut(strings.Join(parts[2:], "--\n"), "\n")
	if dir != filepath.Join(ws.Work, "agent-slot-0", "cwd") {
		t.Errorf("it runs in %s", dir)
	}
	if folder, groups, _ := strings.Cut(rest, "--\n"); folder != "" || !strings.Contains(groups, "/drums-"+ws.ID+"/agent-slot-0\n") {
		t.Errorf("its folder holds %q, it is in %q", folder, groups)
	}
	requireAbsent(t, filepath.Join(ws.Work, "agent-slot-0"))
}

// However it ends is a result.
func TestEnds(t *testing.T) {
	for _, c := range []struct {
		text string
		exit int
	}{{"exit 0", 0}, {"exit 7", 7}, {"kill -9 $$", -9}, {"kill -15 $$", -15}} {
		ws, _ := workspace(t)
		if r, err := run(t, t.Context(), ws, script(t, ws, c.text+"\n")); err != nil || r.Exit != c.exit || r.Ended != 0 {
			t.Errorf("%s: %+v %v", c.text, r, err)
		}
	}
}

// A program that is not the pinned one is refused, and nothing has run.
func TestRefusesAnotherProgram(t *testing.T) {
	ws, _ := workspace(t)
	mark := filepath.Join(ws.Manifest, "mark")
	p := script(t, ws, "touch "+mark+"\n")
	f, err := os.OpenFile(filepath.Join(ws.Manifest, "agent"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString("# one more line\n")
	f.Close()
	for name, call := range map[string]func() error{
		"verify": func() error { return Verify(p) },
		"load":   func() error { _, err := New(ws, nil).Load(t.Context(), p); return err },
	} {
		err := call()
		if !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), string(p.SHA256)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	requireAbsent(t, mark)
	requireAbsent(t, filepath.Join(ws.Work, "agent-slot-0"))
}

func TestRefusesWhatIsNoFile(t *testing.T) {
	ws, _ := workspace(t)
	p := script(t, ws, "exit 0\n")
	fifo := filepath.Join(ws.Manifest, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"./nothing", "./fifo", ".", "/dev/null"} {
		p.Exec = []string{path}
		if err := Verify(p); !errors.Is(err, engine.ErrRefused) {
			t.Errorf("%s: %v", path, err)
		}
	}
	p.Exec, p.Dir = []string{"./agent"}, ""
	if err := Verify(p); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("without the manifest's folder: %v", err)
	}
}

// What runs is what was compared, whatever becomes of the file in between.
func TestRunsTheCopy(t *testing.T) {
	ws, _ := workspace(t)
	p := script(t, ws, "echo pinned\n")
	l, err := New(ws, nil).Load(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release(context.Background())
	script(t, ws, "echo swapped\n")
	r, err := l.Run(t.Context(), nil)
	if err != nil || string(r.Stdout) != "pinned\n" {
		t.Errorf("%q %v", r.Stdout, err)
	}
	if _, err := l.Run(t.Context(), nil); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("a second run: %v", err)
	}
}

// Case 22: forks, a session of its own, deaf to SIGTERM, outputs held open.
func forking(mark string) string {
	return `trap '' TERM HUP INT
setsid sh -c 'trap "" TERM HUP; while :; do sleep 0.1; done' ` + mark + ` &
(while :; do sleep 0.1; done) &
touch started
echo said before
while :; do sleep 0.1; done
`
}

func TestDeadlineEndsTheTree(t *testing.T) {
	ws, _ := workspace(t)
	mark := "drums-fork-" + ws.ID
	cause := fmt.Errorf("%w: up", engine.ErrDeadline)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 700*time.Millisecond, cause)
	defer cancel()
	begin := time.Now()
	r, err := run(t, ctx, ws, script(t, ws, forking(mark)))
	if !errors.Is(err, engine.ErrDeadline) {
		t.Errorf("%v, want the deadline", err)
	}
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("it took %s", took)
	}
	if r.Exit != -int(syscall.SIGKILL) || r.Ended < 3 || string(r.Stdout) != "said before\n" || len(r.Files) != 1 || r.Files[0].Name != "started" {
		t.Errorf("%+v", r)
	}
	if pids := alive(t, mark); len(pids) > 0 {
		t.Errorf("still there: %v", pids)
	}
}

func TestCancelEndsTheTree(t *testing.T) {
	ws, _ := workspace(t)
	mark := "drums-fork-" + ws.ID
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(500*time.Millisecond, cancel)
	if _, err := run(t, ctx, ws, script(t, ws, forking(mark))); !errors.Is(err, context.Canceled) || errors.Is(err, engine.ErrDeadline) {
		t.Errorf("%v, want the cancellation", err)
	}
	if pids := alive(t, mark); len(pids) > 0 {
		t.Errorf("still there: %v", pids)
	}
}

// What a program leaves behind when it has ended by itself is ended too.
func TestEndsWhatIsLeft(t *testing.T) {
	ws, _ := workspace(t)
	mark := "drums-left-" + ws.ID
	r, err := run(t, t.Context(), ws, script(t, ws, `setsid sh -c 'trap "" TERM; while :; do sleep 0.1; done' `+mark+" &\nsleep 0.2\nexit 3\n"))
	if err != nil || r.Exit != 3 || r.Ended < 1 {
		t.Errorf("%+v %v", r, err)
	}
	if pids := alive(t, mark); len(pids) > 0 {
		t.Errorf("still there: %v", pids)
	}
}

// Output and files have limits; what is beyond is said to be missing.
func TestLimits(t *testing.T) {
	ws, _ := workspace(t)
	r, err := run(t, t.Context(), ws, script(t, ws, fmt.Sprintf(`head -c %d /dev/zero
head -c 3 /dev/zero >&2
head -c %d /dev/zero >large
printf small >small
: >empty
mkdir folder; ln -s /etc/passwd link; mkfifo fifo
`, 3*outputLimit, fileLimit+1)))
	if err != nil || r.Exit != 0 {
		t.Fatalf("%v %s", err, r.Stderr)
	}
	if len(r.Stdout) != outputLimit || len(r.Stderr) != 3 || !r.Truncated {
		t.Errorf("%d and %d bytes, truncated %t", len(r.Stdout), len(r.Stderr), r.Truncated)
	}
	var names []string
	for _, f := range r.Files {
		names = append(names, f.Name)
	}
	if !slices.Equal(names, []string{"empty", "small"}) || string(r.Files[1].Data) != "small" || r.FilesLeftOut != 4 {
		t.Errorf("kept %v, left out %d", names, r.FilesLeftOut)
	}
}

// Root can leave its group. Who does and still holds the output is noticed.
func TestNoticesWhoLeavesTheGroup(t *testing.T) {
	ws, _ := workspace(t)
	outside, err := cgroup.OpenOwner(func() *engine.Workspace { w := *ws; w.ID = "f" + ws.ID[1:]; return &w }())
	if err != nil {
		t.Fatal(err)
	}
	group, err := outside.Group("fugitive")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(group.Kill(context.Background()), group.Remove(context.Background()), outside.Remove(context.Background())); err != nil {
			t.Error(err)
		}
	}()
	text := `sh -c 'echo $$ >"$1" && sleep 60' drums-fugitive ` + group.Path() + "/cgroup.procs &\nsleep 0.3\n"
	r, err := run(t, t.Context(), ws, script(t, ws, text))
	if !errors.Is(err, engine.ErrUnknown) || !strings.Contains(err.Error(), "left the group") {
		t.Errorf("%+v %v", r, err)
	}
	pids, err := group.Pids()
	if err != nil || len(pids) == 0 {
		t.Errorf("the fugitive is in no group: %v %v", pids, err)
	}
}

// What cannot be started leaves nothing.
func TestCannotStart(t *testing.T) {
	ws, _ := workspace(t)
	p := script(t, ws, "")
	text := "#!/nonexistent/interpreter\n"
	if err := os.WriteFile(filepath.Join(ws.Manifest, "agent"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(text))
	p.SHA256 = bench.SHA256(hex.EncodeToString(sum[:]))
	if _, err := run(t, t.Context(), ws, p); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

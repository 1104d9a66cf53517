package cgroup

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// book is a ledger in memory that knows what is still owned.
type book struct {
	mu    sync.Mutex
	lines []bench.LedgerLine
	open  map[int64]bench.Claim
}

func (b *book) Intend(kind string, claim bench.Claim) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := int64(len(b.lines))
	b.lines = append(b.lines, bench.LedgerLine{Op: "intent", Id: id, Kind: kind, Claim: claim})
	b.open[id] = claim
	return id, nil
}

func (b *book) Bind(id int64, identity bench.Identity) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, bench.LedgerLine{Op: "bind", Id: id, Identity: &identity})
	return nil
}

func (b *book) Gone(id int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, id)
	return nil
}

// workspace gives a test a run of its own; nothing may be owned once the test has cleaned up.
func workspace(t testing.TB) (*engine.Workspace, *book) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("cgroup tests need root")
	}
	var id [6]byte
	if _, err := rand.Read(id[:]); err != nil {
		t.Fatal(err)
	}
	b := &book{open: map[int64]bench.Claim{}}
	ws := &engine.Workspace{
		Work: t.TempDir(), ID: hex.EncodeToString(id[:]), Ledger: b,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	t.Cleanup(func() {
		for _, claim := range b.open {
			t.Errorf("still owned after clean-up: %+v", claim)
		}
	})
	return ws, b
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func owner(t testing.TB, ws *engine.Workspace) *Owner {
	t.Helper()
	o, err := OpenOwner(ws)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(o.Kill(ctx), o.Remove(ctx)); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(o.Path()); !os.IsNotExist(err) {
			t.Errorf("%s is still there", o.Path())
		}
	})
	return o
}

// start starts a shell inside g and reaps it in the end.
func start(t testing.TB, g *Group, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: g.FD()}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never came true: " + what)
		}
	}
}

func TestGroupHoldsListsAndKills(t *testing.T) {
	ws, ledger := workspace(t)
	o := owner(t, ws)
	if base := filepath.Base(o.Path()); base != "drums-"+ws.ID {
		t.Errorf("owner is named %s", base)
	}
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := o.Group("slot-a"); err != nil || again != g {
		t.Errorf("the same name gives another group: %v, %v", again, err)
	}
	other, err := o.Group("tools")
	if err != nil {
		t.Fatal(err)
	}
	bystander := start(t, other, "exec sleep 100")
	// A tree that ignores TERM and forks on, in a session of its own.
	cmd := start(t, g, "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 0.01 & done' & while :; do sleep 0.01 & done")
	eventually(t, "some processes", func() bool {
		pids, err := g.Pids()
		return err == nil && len(pids) > 5 && slices.Contains(pids, cmd.Process.Pid)
	})
	begin := time.Now()
	if err := g.Kill(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	t.Logf("kill of a forking tree: %v", time.Since(begin))
	if pids, err := g.Pids(); err != nil || len(pids) != 0 {
		t.Errorf("after the kill: %v, %v", pids, err)
	}
	if pids, err := other.Pids(); err != nil || !slices.Equal(pids, []int{bystander.Process.Pid}) {
		t.Errorf("the other group holds %v, %v", pids, err)
	}
	if err := g.Kill(within(t, time.Second)); err != nil {
		t.Errorf("second kill: %v", err)
	}
	// The killed shell is a zombie still; the group can be removed all the same.
	if err := g.Remove(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(within(t, time.Second)); err != nil {
		t.Errorf("second removal: %v", err)
	}
	if err := g.Kill(within(t, time.Second)); err != nil {
		t.Errorf("kill of a group that is gone: %v", err)
	}
	// Intent before, bind with device and inode after.
	var ops []string
	for _, l := range ledger.lines {
		ops = append(ops, l.Op)
		if l.Op == "bind" && (l.Identity.Dev == "" || l.Identity.Ino == "") {
			t.Errorf("bound without an identity: %+v", l)
		}
	}
	if want := []string{"intent", "bind", "intent", "bind", "intent", "bind", "intent", "bind"}; !slices.Equal(ops, want) {
		t.Errorf("ledger: %v", ops)
	}
}

// On Linux 6.14 and later whatever is cloned into a group that was killed dies at once.
func TestGroupIsUsableAfterAKill(t *testing.T) {
	ws, ledger := workspace(t)
	o := owner(t, ws)
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		start(t, g, "exec sleep 100")
		before := g.node.ino
		if err := g.Kill(within(t, 5*time.Second)); err != nil {
			t.Fatal(err)
		}
		if g.node.ino == before || len(ledger.open) != 2 {
			t.Errorf("inode %d after %d, owned %v", g.node.ino, before, ledger.open)
		}
		if cmd := start(t, g, "exit 7"); cmd.Wait() == nil || cmd.ProcessState.ExitCode() != 7 {
			t.Errorf("a process started after a kill: %v", cmd.ProcessState)
		}
	}
	// A kill that was not waited for is one, too.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 5 {
		start(t, g, "exec sleep 100")
		if err := g.Kill(ended); err != nil && !errors.Is(err, engine.ErrDeadline) {
			t.Fatal(err)
		}
		eventually(t, "nobody is left", func() bool {
			pids, err := g.Pids()
			return err == nil && len(pids) == 0
		})
		if err := g.Kill(within(t, 5*time.Second)); err != nil {
			t.Fatal(err)
		}
		if cmd := start(t, g, "exit 7"); cmd.Wait() == nil || cmd.ProcessState.ExitCode() != 7 {
			t.Errorf("a process started after a kill that was not waited for: %v", cmd.ProcessState)
		}
	}
	// One that is taken over may have been killed by whoever had it, who ended before making it anew.
	if err := write(filepath.Join(g.Path(), "cgroup.kill"), "1"); err != nil {
		t.Fatal(err)
	}
	taken, err := o.AdoptGroup("slot-a", known(g.node))
	if err != nil {
		t.Fatal(err)
	}
	if err := taken.Kill(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if cmd := start(t, taken, "exit 7"); cmd.Wait() == nil || cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("a process started in a group that was taken over killed: %v", cmd.ProcessState)
	}
	g.node = taken.node // for the owner's end: the same group
	if err := o.Kill(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Group("slot-b"); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("a group of a killed owner: %v", err)
	}
}

func TestKillWithoutTheKernelsKillFile(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	start(t, g, "trap '' TERM; for i in 1 2 3 4 5 6 7 8; do sleep 100 & done; wait")
	eventually(t, "nine processes", func() bool { pids, _ := g.Pids(); return len(pids) == 9 })
	if err := awaitEmpty(within(t, 5*time.Second), g.node, true); err != nil {
		t.Fatal(err)
	}
	if pids, err := g.Pids(); err != nil || len(pids) != 0 {
		t.Errorf("left: %v, %v", pids, err)
	}
}

func TestKillMemberSparesAProcessThatLeft(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := o.Group("tools")
	if err != nil {
		t.Fatal(err)
	}
	cmd := start(t, other, "exec sleep 100")
	if err := killMember(cmd.Process.Pid, g.Path()); err != nil {
		t.Fatal(err)
	}
	if pids, _ := other.Pids(); len(pids) != 1 {
		t.Errorf("the process of another group is gone: %v", pids)
	}
}

func TestFreezeReadsBack(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "count")
	start(t, g, "while :; do echo x >> "+file+"; done")
	size := func() int64 { st, _ := os.Stat(file); return st.Size() }
	eventually(t, "a first line", func() bool { _, err := os.Stat(file); return err == nil })
	if err := g.Freeze(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	before := size()
	time.Sleep(20 * time.Millisecond)
	if size() != before {
		t.Error("a frozen process went on")
	}
	if err := g.Thaw(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the thawed process to go on", func() bool { return size() > before })
	// A frozen group dies without being thawed.
	if err := g.Freeze(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := g.Kill(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
}

func TestRemoveWaitsForItsDeadline(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	cmd := start(t, g, "exec sleep 100")
	begin := time.Now()
	err = g.Remove(within(t, 50*time.Millisecond))
	if !errors.Is(err, engine.ErrDeadline) || !strings.Contains(err.Error(), strconv.Itoa(cmd.Process.Pid)) {
		t.Errorf("removal of a busy group: %v", err)
	}
	if d := time.Since(begin); d < 50*time.Millisecond || d > 2*time.Second {
		t.Errorf("took %v", d)
	}
	// It ends meanwhile: the removal goes through.
	time.AfterFunc(30*time.Millisecond, func() { cmd.Process.Kill() })
	if err := g.Remove(within(t, 5*time.Second)); err != nil {
		t.Error(err)
	}
}

func TestRemoveLeavesAForeignGroupOfTheSameName(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	// Somebody takes ours away and makes another one in its place.
	if err := os.Remove(g.Path()); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(g.Path(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(within(t, time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(g.Path()); err != nil {
		t.Errorf("the foreign group was removed: %v", err)
	}
	if err := os.Remove(g.Path()); err != nil {
		t.Fatal(err)
	}
}

func TestOwnerOfATakenNameIsRefused(t *testing.T) {
	ws, ledger := workspace(t)
	owner(t, ws)
	if _, err := OpenOwner(ws); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("second owner of one id: %v", err)
	}
	// The intent stays open for sweep, by design; it is the test's to close.
	for id := range ledger.open {
		if id > 0 {
			ledger.Gone(id)
		}
	}
	if _, err := (&Owner{limits: map[string]int{}}).Group("../escape"); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("a name with slashes: %v", err)
	}
}

// A pure v1 host mounts no cgroup2, but its kernel has the hierarchy.
func TestOwnerOnAHostWithoutAV2Mount(t *testing.T) {
	ws, _ := workspace(t)
	at, err := discover()
	if err != nil {
		t.Fatal(err)
	}
	at.v2 = nil
	o, err := openOwner(ws, at, os.Mkdir)
	if err != nil {
		t.Fatal(err)
	}
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	start(t, g, "sleep 100 & wait")
	if err := g.Kill(within(t, 5*time.Second)); err != nil {
		t.Error(err)
	}
	if err := o.Remove(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := o.Remove(within(t, 5*time.Second)); err != nil {
		t.Errorf("second removal: %v", err)
	}
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[bench.Bytes]int64{
		"0": 0, "1KiB": 1024, "512MiB": 512 << 20, "1GiB": 1 << 30, "3TiB": 3 << 40,
	} {
		if have, err := parseBytes(in); err != nil || have != want {
			t.Errorf("%s: %d, %v", in, have, err)
		}
	}
	for _, in := range []bench.Bytes{"", "4GB", "4", "-1MiB", "+1MiB", "1.5GiB", "0MiB", "01MiB", "1 GiB", "1gib", "8388608TiB", "99999999999999999999KiB"} {
		if have, err := parseBytes(in); !errors.Is(err, engine.ErrUsage) {
			t.Errorf("%q passes as %d, %v", in, have, err)
		}
	}
}

func BenchmarkKillOneProcess(b *testing.B) {
	ws, _ := workspace(b)
	o := owner(b, ws)
	g, err := o.Group("slot-a")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		cmd := exec.Command("sleep", "100")
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: g.FD()}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := g.Kill(context.Background()); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		cmd.Wait()
		b.StartTimer()
	}
}

func TestBelow(t *testing.T) {
	for _, c := range []struct{ root, path, want string }{
		{"/", "/", "/"},
		{"/", "/a/b", "/a/b"},
		{"/docker/x", "/docker/x", "/"},
		{"/docker/x", "/docker/x/y", "/y"},
	} {
		if have, err := below(c.root, c.path); err != nil || have != c.want {
			t.Errorf("%+v: %s, %v", c, have, err)
		}
	}
	if have, err := below("/docker/x", "/docker/xy"); err == nil {
		t.Errorf("outside of the mount: %s", have)
	}
}

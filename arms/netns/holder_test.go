package netns

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/armtest"
	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/sweep"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// within bounds a test's calls.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// group makes a run and a group in it; finish takes both away and requires that the ledger is empty.
func group(t *testing.T) (ws *engine.Workspace, g *cgroup.Group, finish func()) {
	t.Helper()
	dir := t.TempDir()
	ws, done := armtest.Workspace(t, dir, dir)
	owner, err := cgroup.OpenOwner(ws)
	must(t, err)
	g, err = owner.Group("tools")
	must(t, err)
	return ws, g, func() {
		t.Helper()
		must(t, owner.Remove(within(t)))
		must(t, ws.Release(within(t)))
		must(t, done())
		if open, _, err := record.ReadLedger(filepath.Join(ws.Run, record.LedgerFile)); err != nil || len(open) > 0 {
			t.Errorf("the ledger owns %+v, %v", open, err)
		}
	}
}

// holder starts one.
func holder(t *testing.T, ws *engine.Workspace, g *cgroup.Group) *Holder {
	t.Helper()
	h, err := StartHolder(within(t), ws.Ledger, g.FD(), g.Path())
	must(t, err)
	t.Cleanup(func() {
		if err := h.Release(within(t)); err != nil {
			t.Error(err)
		}
	})
	return h
}

// wantRefused requires a refusal that says what to do.
func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	f := engine.Failure(err)
	if !errors.Is(err, engine.ErrRefused) || f.Hint == "" {
		t.Errorf("%s: %v (%+v), want a refusal with a hint", what, err, f)
	}
}

func TestHolder(t *testing.T) {
	ws, g, finish := group(t)
	// A descriptor that any child inherits, planted.
	leak, err := unix.Open(os.DevNull, unix.O_RDONLY, 0)
	must(t, err)
	defer unix.Close(leak)
	mine, err := os.Readlink("/proc/self/ns/net")
	must(t, err)

	begin := time.Now()
	h := holder(t, ws, g)
	must(t, h.Verify())
	if theirs, err := os.Readlink(h.Path()); err != nil || theirs == mine {
		t.Errorf("it holds %s, ours is %s, %v", theirs, mine, err)
	}
	if pids, err := g.Pids(); err != nil || !slices.Equal(pids, []int{h.Pid()}) {
		t.Errorf("the group holds %v, %v, want %d", pids, err, h.Pid())
	}
	open, _, err := record.ReadLedger(filepath.Join(ws.Run, record.LedgerFile))
	must(t, err)
	i := slices.IndexFunc(open, func(o record.Owned) bool { return o.Kind == "process" })
	if i < 0 || open[i].ID != h.Owned() || open[i].Identity == nil || *open[i].Identity != h.Identity() || open[i].Claim.Cgroup != g.Path() {
		t.Errorf("the ledger has %+v", open)
	}

	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", h.Pid()))
	must(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err != nil || to != os.DevNull {
			t.Errorf("it has %s open as %s, %v", to, fd, err)
		}
	}
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", h.Pid())); err != nil || len(env) > 0 {
		t.Errorf("its environment is %q, %v", env, err)
	}

	// The thread that it was born of is gone for long; lo stays as it is.
	first := network(t, h)
	if !strings.Contains(strings.Join(first.Addresses, "\n"), "lo 127.0.0.1/8") || !slices.ContainsFunc(first.Links, func(l bench.Link) bool { return l.Name == "lo" && l.Up }) {
		t.Errorf("lo is not up: %+v", first)
	}
	var dirty int64
	var before, after time.Duration
	for range 50 { // it may still be loading its library
		_, before, err = h.Memory()
		must(t, err)
		time.Sleep(300 * time.Millisecond)
		dirty, after, err = h.Memory()
		must(t, err)
		if after == before {
			break
		}
	}
	t.Logf("a holder costs %d KiB of private dirty memory, %v of CPU time to begin with and %v in 300 ms", dirty>>10, before, after-before)
	const tick = 10 * time.Millisecond
	if life, err := h.Life(); err != nil || life < 300*time.Millisecond || life > time.Since(begin)+tick {
		t.Errorf("it is %v old, %v", life, err)
	}
	if dirty <= 0 || dirty > 1<<20 || after != before {
		t.Errorf("that is not a small process that does nothing")
	}
	if now := network(t, h); fmt.Sprint(now) != fmt.Sprint(first) {
		t.Errorf("the namespace changed: %+v, was %+v", now, first)
	}

	// A later process takes it over, and ends it.
	other, err := AdoptHolder(ws.Ledger, h.Owned(), h.Identity())
	must(t, err)
	if fmt.Sprint(network(t, other)) != fmt.Sprint(first) {
		t.Error("the adopted holder has another network")
	}
	must(t, other.Release(within(t)))
	must(t, other.Release(within(t)))
	wantRefused(t, "a holder that was released", h.Verify())
	must(t, h.Release(within(t))) // who made it finds it gone
	if alive, err := procfs.Alive(h.Identity()); err != nil || alive {
		t.Errorf("alive %v, %v", alive, err)
	}
	finish()
}

func network(t *testing.T, h *Holder) bench.Network {
	t.Helper()
	ns, err := h.Open()
	must(t, err)
	defer ns.Close()
	n, err := ns.Network()
	must(t, err)
	return n
}

// Whatever is not the holder that was bound is refused, and not ended either.
func TestHolderIsAnother(t *testing.T) {
	ws, g, finish := group(t)
	h := holder(t, ws, g)

	for what, change := range map[string]func(*bench.Identity){
		"another start time":    func(id *bench.Identity) { id.StartTicks += "0" },
		"another pid":           func(id *bench.Identity) { id.Pid = int64(os.Getpid()) },
		"another namespace":     func(id *bench.Identity) { id.Ino += "0" },
		"another file system":   func(id *bench.Identity) { id.Dev += "0" },
		"no namespace":          func(id *bench.Identity) { id.Ino = "" },
		"no start time":         func(id *bench.Identity) { id.StartTicks = "" },
		"a pid that nobody has": func(id *bench.Identity) { id.Pid = 1 << 22 },
	} {
		id := h.Identity()
		change(&id)
		if _, err := AdoptHolder(ws.Ledger, h.Owned(), id); !errors.Is(err, engine.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
	}

	// Its pid is somebody else's: neither verified nor killed.
	stranger := exec.Command(sleeper, "infinity")
	must(t, stranger.Start())
	defer func() { stranger.Process.Kill(); stranger.Wait() }()
	swapped := &Holder{ledger: deaf{}, identity: h.identity, ns: h.ns}
	swapped.identity.Pid = int64(stranger.Process.Pid)
	swapped.identity.StartTicks = "1"
	wantRefused(t, "a swapped pid", swapped.Verify())
	if _, _, err := swapped.Memory(); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("memory of a swapped pid: %v", err)
	}
	must(t, swapped.Release(within(t)))
	if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a stranger with the holder's pid was ended: %v", err)
	}

	// Somebody kills it.
	must(t, h.Verify())
	must(t, procfs.Kill(within(t), h.Identity()))
	wantRefused(t, "a killed holder", h.Verify())
	if _, err := h.Open(); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("open of a killed holder: %v", err)
	}
	must(t, h.Release(within(t)))
	must(t, h.Release(within(t)))
	finish()
}

// deaf is a ledger for what no ledger has.
type deaf struct{}

func (deaf) Intend(string, bench.Claim) (int64, error) { return 0, nil }
func (deaf) Bind(int64, bench.Identity) error          { return nil }
func (deaf) Gone(int64) error                          { return nil }

// The same process in another namespace is no holder any more.
func TestHolderMoves(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"DRUMS_TEST_WANDERER=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	said := make([]byte, 1)
	_, err = io.ReadFull(out, said)
	must(t, err)
	id, err := procfs.Identity(cmd.Process.Pid)
	must(t, err)
	ns, err := procfs.NamespaceOf(cmd.Process.Pid, "net")
	must(t, err)
	id.Dev, id.Ino = bench.Int64(strconv.FormatUint(ns.Dev, 10)), bench.Int64(strconv.FormatUint(ns.Ino, 10))
	h, err := AdoptHolder(deaf{}, 0, id)
	must(t, err)
	_, err = in.Write([]byte("x"))
	must(t, err)
	_, err = io.ReadFull(out, said)
	must(t, err)
	wantRefused(t, "a changed namespace", h.Verify())
}

// wander moves the whole process, which has one thread that counts, to another
// network namespace when it is told to.
func wander() {
	os.Stdout.WriteString("1")
	io.ReadFull(os.Stdin, make([]byte, 1))
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		panic(err)
	}
	os.Stdout.WriteString("2")
	io.ReadFull(os.Stdin, make([]byte, 1))
}

// unbound is a ledger whose engine dies between the birth of the holder and its bind.
type unbound struct{ engine.Ledger }

var errKilled = errors.New("the engine is killed here")

func (unbound) Bind(int64, bench.Identity) error { panic(errKilled) }

// Between intent and bind nobody knows the pid; the group it was born in does.
func TestHolderSwept(t *testing.T) {
	state := t.TempDir()
	for _, bound := range []bool{false, true} {
		t.Run(fmt.Sprintf("bound %v", bound), func(t *testing.T) {
			name := fmt.Sprintf("run-%v", bound)
			d, err := record.Create(filepath.Join(state, "runs", name))
			must(t, err)
			var claim [6]byte
			rand.Read(claim[:]) // never fails (crypto/rand)
			ws := &engine.Workspace{Run: d.Path, ID: hex.EncodeToString(claim[:]), State: state, Ledger: d.Ledger}
			ws.Work = filepath.Join(state, "work", ws.ID)
			must(t, ws.MakeWork())
			owner, err := cgroup.OpenOwner(ws)
			must(t, err)
			g, err := owner.Group("tools")
			must(t, err)
			ledger := ws.Ledger
			if !bound {
				ledger = unbound{ledger}
			}
			func() {
				defer func() {
					if r := recover(); r != nil && r != errKilled {
						panic(r)
					}
				}()
				_, err := StartHolder(within(t), ledger, g.FD(), g.Path())
				must(t, err)
			}()
			pids, err := g.Pids()
			must(t, err)
			if len(pids) != 1 {
				t.Fatalf("the group holds %v, want the holder", pids)
			}
			id, err := procfs.Identity(pids[0])
			must(t, err)
			must(t, d.Close())

			report, err := sweep.Sweep(within(t), sweep.Options{RunDir: d.Path, State: state})
			must(t, err)
			for _, thing := range report.Things {
				if thing.Outcome != sweep.Taken && thing.Outcome != sweep.Absent {
					t.Errorf("%+v", thing)
				}
			}
			if alive, err := procfs.Alive(id); err != nil || alive {
				t.Errorf("the holder is alive %v after the sweep, %v", alive, err)
			}
			if _, err := os.Lstat(g.Path()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("its group is left: %v", err)
			}
			if open, _, err := record.ReadLedger(filepath.Join(d.Path, record.LedgerFile)); err != nil || len(open) > 0 {
				t.Errorf("the ledger owns %+v, %v", open, err)
			}
		})
	}
}

// A holder that cannot be born leaves nothing, in the ledger neither.
func TestHolderNotBorn(t *testing.T) {
	ws, g, finish := group(t)
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer null.Close()
	if h, err := StartHolder(within(t), ws.Ledger, int(null.Fd()), g.Path()); err == nil {
		h.Release(within(t))
		t.Error("started in what is no cgroup")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := StartHolder(ctx, ws.Ledger, g.FD(), g.Path()); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ended: %v", err)
	}
	finish()
}

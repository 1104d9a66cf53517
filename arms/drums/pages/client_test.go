package pages

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	criu_core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/vma"
	"github.com/checkpoint-restore/go-criu/v7/magic"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// engineVariable makes this test's program an engine that ends without a word; it holds a program's descriptor.
const engineVariable = "DRUMS_PAGES_ENGINE"

func TestMain(m *testing.M) {
	if work := os.Getenv(engineVariable); work != "" {
		fmt.Fprintln(os.Stderr, engineThatDies(work))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// ledger is one that forgets.
type ledger struct {
	mu   sync.Mutex
	open int
}

func (l *ledger) Intend(string, bench.Claim) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open++
	return int64(l.open), nil
}
func (l *ledger) Bind(int64, bench.Identity) error { return nil }
func (l *ledger) Gone(int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	return nil
}

// fill sets what a message must have and has not to its zero value.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case f.Cardinality() == protoreflect.Required && !m.Has(f):
			v := m.NewField(f)
			if f.Kind() == protoreflect.EnumKind {
				v = protoreflect.ValueOfEnum(f.Enum().Values().Get(0).Number())
			}
			m.Set(f, v)
		case f.Kind() == protoreflect.MessageKind && !f.IsList() && m.Has(f):
			fill(m.Mutable(f).Message())
		}
	}
}

// image writes one of CRIU's.
func image(t *testing.T, dir, name, kind string, messages ...proto.Message) {
	t.Helper()
	magics := magic.LoadMagic().ByName
	var data []byte
	for _, word := range []uint64{magics["IMG_COMMON"], magics[kind]} {
		data = binary.LittleEndian.AppendUint32(data, uint32(word))
	}
	for _, m := range messages {
		fill(m.ProtoReflect())
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		data = append(binary.LittleEndian.AppendUint32(data, uint32(len(b))), b...)
	}
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// write the images of the program's memory as CRIU would, as far as they are read here.
func (p *strained) write(t *testing.T, dir string) {
	t.Helper()
	im := p.images(0)
	m := im.memory[0]
	maps := &mm.MmEntry{}
	entries := []proto.Message{&pagemap.PagemapHead{PagesId: proto.Uint32(1)}}
	var content []byte
	for i := len(m.Runs) - 1; i >= 0; i-- { // by address; the program's regions come from above
		run, lazy := m.Runs[i], m.Lazy[i]
		maps.Vmas = append(maps.Vmas, &vma.VmaEntry{Start: &lazy.Start, End: &lazy.End, Flags: proto.Uint32(unix.MAP_PRIVATE | unix.MAP_ANONYMOUS), Status: proto.Uint32(0),
			Pgoff: proto.Uint64(0), Shmid: proto.Uint64(0), Prot: proto.Uint32(3), Fd: proto.Int64(-1)})
		entries = append(entries, &pagemap.PagemapEntry{Vaddr: &run.Start, NrPages: proto.Uint32(withContent), Flags: proto.Uint32(6)})
		content = append(content, im.files["pages-1.img"].data[run.Offset:][:run.End-run.Start]...)
	}
	image(t, dir, "pstree.img", "PSTREE", &pstree.PstreeEntry{Pid: proto.Uint32(1), Ppid: proto.Uint32(0), Pgid: proto.Uint32(1), Sid: proto.Uint32(1), Threads: []uint32{1}})
	image(t, dir, "core-1.img", "CORE", &criu_core.CoreEntry{Tc: &criu_core.TaskCoreEntry{TaskState: proto.Uint32(1)}})
	image(t, dir, "mm-1.img", "MM", maps)
	image(t, dir, "pagemap-1.img", "PAGEMAP", entries...)
	if err := os.WriteFile(filepath.Join(dir, "pages-1.img"), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// hand does CRIU's part: it gives a task's descriptor away and says that it has finished.
func hand(work string, pid, fd int, finished bool) error {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	if err := unix.Connect(sock, &unix.SockaddrUnix{Name: filepath.Join(work, socketName)}); err != nil {
		return err
	}
	word := func(n int) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(int32(n))) }
	if _, err := unix.Write(sock, word(pid)); err != nil {
		return err
	}
	if err := unix.Sendmsg(sock, []byte{0}, unix.UnixRights(fd), nil, 0); err != nil {
		return err
	}
	if _, err := unix.Write(sock, word(-9)); err != nil { // a zombie
		return err
	}
	if finished {
		_, err = unix.Write(sock, word(finishedMark))
	}
	return err
}

// folders for images and for CRIU's work, short enough for a socket's path.
func folders(t *testing.T) (images, work string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "drums-pages-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	images, work = filepath.Join(dir, "images"), filepath.Join(dir, "work")
	if err := errors.Join(os.Mkdir(images, 0o700), os.Mkdir(work, 0o700)); err != nil {
		t.Fatal(err)
	}
	return images, work
}

// ownGroup is the cgroup that this test is in, as a descriptor: the server may be born there.
func ownGroup() (int, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return -1, err
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return -1, err
	}
	_, own, _ := strings.Cut("\n"+string(groups), "\n0::")
	own, _, _ = strings.Cut(own, "\n")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); strings.Contains(line, " - cgroup2 ") {
			rel, err := filepath.Rel(f[3], own)
			if err != nil || strings.HasPrefix(rel, "..") {
				rel = own
			}
			return unix.Open(filepath.Join(f[4], rel), unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
	}
	return -1, errors.New("no cgroup2 is mounted")
}

func start(l *ledger) (*Server, error) {
	fd, err := ownGroup()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return Start(l, fd, "/")
}

// The whole way: a slot that records, one that gets the set pushed and is completed, and nothing left of either.
func TestServer(t *testing.T) {
	l := &ledger{}
	s, err := start(l)
	if err != nil {
		t.Fatal(err)
	}
	set := filepath.Join(t.TempDir(), "set.json")
	for round := range 2 {
		p := strain(t, round+1, 200)
		images, work := folders(t)
		p.write(t, images)
		slot, err := s.Slot(t.Context(), Options{Images: images, Work: work, Set: set, Kill: func() error { return errors.New("it was killed") }})
		if err != nil {
			t.Fatal(err)
		}
		if err := hand(work, 1, p.fd, true); err != nil {
			t.Fatal(err)
		}
		unix.Close(p.fd)
		if err := slot.Restored(t.Context(), p.cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		p.tell(t)
		p.done(t)
		if err := slot.Ready(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		got, err := slot.Stats(t.Context())
		if err != nil || got.Lazy != regions*withContent || (got.Recorded > 0) != (round == 0) || (got.Pushed > 0) != (round == 1) {
			t.Errorf("round %d: %+v, %v", round, got, err)
		}
		if _, err := slot.Complete(t.Context()); err != nil {
			t.Error(err)
		}
		if watched, err := Watched(p.cmd.Process.Pid); err != nil || watched {
			t.Errorf("watched after: %t, %v", watched, err)
		}
		if _, err := slot.End(t.Context(), set); err != nil || len(slot.held) > 0 {
			t.Errorf("%v, %d descriptors held", err, len(slot.held))
		}
		p.ended(t) // it lives on without anybody
	}
	if err := s.Close(t.Context()); err != nil || l.open != 0 {
		t.Errorf("%v, %d things open", err, l.open)
	}
}

// A server that dies has its slots killed, and only then are their pages given up; they are typed.
func TestTheServerDies(t *testing.T) {
	s, err := start(&ledger{})
	if err != nil {
		t.Fatal(err)
	}
	p := strain(t, 1, 1<<30)
	images, work := folders(t)
	p.write(t, images)
	killed := make(chan int, 1)
	var slot *Slot
	slot, err = s.Slot(t.Context(), Options{Images: images, Work: work, Kill: func() error {
		slot.mu.Lock()
		held := len(slot.held)
		slot.mu.Unlock()
		err := p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		killed <- held
		return err
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := hand(work, 1, p.fd, true); err != nil {
		t.Fatal(err)
	}
	unix.Close(p.fd)
	if err := slot.Restored(t.Context(), p.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	p.tell(t)
	if err := unix.Kill(s.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case held := <-killed:
		if held == 0 {
			t.Error("the descriptors were closed before the slot was killed")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the slot was not killed")
	}
	if text := p.said.String(); text != "" {
		t.Errorf("the program read what was not there: %s", text)
	}
	<-s.lost
	if err := slot.Lost(); !errors.Is(err, ErrLost) || !errors.Is(err, engine.ErrDead) {
		t.Errorf("%v", err)
	}
	if _, err := slot.Stats(t.Context()); !errors.Is(err, ErrLost) {
		t.Errorf("numbers of it: %v", err)
	}
	if _, err := slot.Complete(t.Context()); !errors.Is(err, ErrLost) {
		t.Errorf("completed: %v", err)
	}
	if _, err := slot.End(t.Context(), ""); err != nil || len(slot.held) > 0 {
		t.Errorf("%v, %d descriptors held", err, len(slot.held))
	}
	if _, err := s.Slot(t.Context(), Options{Images: images, Work: work}); !errors.Is(err, ErrLost) {
		t.Errorf("a slot of a server that is gone: %v", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// engineThatDies has a server serve the program whose descriptor is 3 and whose pid is in the folder, and is killed.
func engineThatDies(work string) error {
	s, err := start(&ledger{})
	if err != nil {
		return err
	}
	var pid int
	text, err := os.ReadFile(filepath.Join(work, "pid"))
	if err != nil {
		return err
	}
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		return err
	}
	slot, err := s.Slot(context.Background(), Options{Images: filepath.Join(filepath.Dir(work), "images"), Work: work, Kill: func() error { return nil }})
	if err != nil {
		return err
	}
	if err := hand(work, 1, 3, true); err != nil {
		return err
	}
	if err := slot.Restored(context.Background(), pid); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(work, "server"), fmt.Append(nil, s.Pid()), 0o600); err != nil {
		return err
	}
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}

// An engine that dies leaves no slot behind whose pages nobody fills: the server kills it, and ends.
func TestTheEngineDies(t *testing.T) {
	p := strain(t, 1, 1<<30)
	images, work := folders(t)
	p.write(t, images)
	if err := os.WriteFile(filepath.Join(work, "pid"), fmt.Append(nil, p.cmd.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{engineVariable + "=" + work}
	uffd := os.NewFile(uintptr(p.fd), "userfaultfd")
	cmd.ExtraFiles = []*os.File{uffd}
	out, err := cmd.CombinedOutput()
	if len(out) > 0 || err == nil {
		t.Fatalf("%v: %s", err, out)
	}
	uffd.Close()
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	select {
	case err := <-ended:
		if err == nil || p.said.String() != "" {
			t.Errorf("the program ended with %v, %s", err, p.said.String())
		}
	case <-time.After(30 * time.Second):
		t.Error("the program was not killed")
	}
	text, err := os.ReadFile(filepath.Join(work, "server"))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if state, err := os.ReadFile("/proc/" + string(text) + "/stat"); err != nil || strings.Contains(string(state), ") Z ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the server of pages lives on")
		}
	}
}

// CRIU that ends in the middle is an error, and nothing is waited for.
func TestCRIUFails(t *testing.T) {
	s, err := start(&ledger{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	p := strain(t, 1, 1)
	images, work := folders(t)
	p.write(t, images)
	for _, c := range []struct {
		pid      int
		finished bool
		want     string
	}{{1, false, "before criu has finished"}, {2, true, "no task 2"}} {
		slot, err := s.Slot(t.Context(), Options{Images: images, Work: work, Kill: func() error { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		_ = hand(work, c.pid, p.fd, c.finished) // the other side may hang up
		if err := slot.Restored(t.Context(), p.cmd.Process.Pid); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.want, err)
		}
		if _, err := slot.End(t.Context(), ""); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(filepath.Join(images, "pages-1.img"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	images2, work2 := folders(t)
	if err := os.CopyFS(images2, os.DirFS(images)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Slot(t.Context(), Options{Images: images2, Work: work2}); err == nil || !strings.Contains(err.Error(), "ends before") {
		t.Errorf("a file of pages that is cut off: %v", err)
	}
}

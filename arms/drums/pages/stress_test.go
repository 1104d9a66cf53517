package pages

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/criu"
)

var rounds = flag.Int("pages-rounds", 300, "rounds of the program that strains userfaultfd, in each of its forms")

const (
	regions     = 4
	regionPages = 256
	withContent = regionPages * 3 / 4
)

// text is what a program writes, read at any time.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (x *text) Write(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.Write(b)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.String()
}

// strained is the program with its memory served by a slot of the test's own.
type strained struct {
	cmd    *exec.Cmd
	said   text
	sock   *os.File
	fd     int
	starts []uint64
}

func strain(t *testing.T, seed, rounds int, more ...string) *strained {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &strained{sock: os.NewFile(uintptr(fds[0]), "ours")}
	theirs := os.NewFile(uintptr(fds[1]), "theirs")
	p.cmd = exec.Command("python3", append([]string{"testdata/stress.py", "3", fmt.Sprint(seed), fmt.Sprint(rounds), fmt.Sprint(regions), fmt.Sprint(regionPages)}, more...)...)
	p.cmd.ExtraFiles, p.cmd.Stderr = []*os.File{theirs}, &p.said
	if err := p.cmd.Start(); err != nil {
		t.Fatal("these tests need python3 and root: ", err)
	}
	theirs.Close()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.sock.Close()
	})
	b, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(int(p.sock.Fd()), b, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil || n == 0 {
		_ = p.cmd.Wait()
		t.Fatalf("the program does not begin: %v, %s", err, p.said.String())
	}
	if p.fd, err = oneRight(oob[:oobn]); err != nil || p.fd < 0 {
		t.Fatal("no descriptor", err)
	}
	if err := json.Unmarshal(b[:n], &p.starts); err != nil {
		t.Fatal(err)
	}
	return p
}

// images of the program's memory; page n begins with n+1+wrong.
func (p *strained) images(wrong uint64) *images {
	f := &pageFile{name: "pages-1.img", data: make([]byte, regions*regionPages*criu.PageSize)}
	m := criu.Memory{Pid: 1, File: f.name}
	for r, start := range p.starts {
		for i := range regionPages {
			n := uint64(r*regionPages + i)
			for at := uint64(0); at < criu.PageSize; at += 8 {
				binary.LittleEndian.PutUint64(f.data[n*criu.PageSize+at:], n+1+wrong)
			}
		}
		m.Lazy = append(m.Lazy, criu.Range{Start: start, End: start + regionPages*criu.PageSize})
		m.Runs = append(m.Runs, criu.PageRun{Range: criu.Range{Start: start, End: start + withContent*criu.PageSize}, Offset: int64(r * regionPages * int(criu.PageSize)), Lazy: true})
	}
	return &images{memory: []criu.Memory{m}, files: map[string]*pageFile{f.name: f}}
}

// begin serves the program's memory.
func (p *strained) begin(t *testing.T, im *images, set workingSet) *slot {
	t.Helper()
	s, err := newSlot(im, set, func(*task) error { return nil }, func(*task) {})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.run() }()
	t.Cleanup(func() {
		_ = s.do(func() error { s.stop = true; return nil })
		if err := <-ended; err != nil {
			t.Error("the server: ", err)
		}
		s.close()
	})
	if err := s.do(func() error {
		if err := s.add(1, 1, descriptor(p.fd)); err != nil {
			return err
		}
		return s.finish()
	}); err != nil {
		t.Fatal(err)
	}
	p.tell(t)
	return s
}

func (p *strained) tell(t *testing.T) {
	t.Helper()
	if _, err := unix.Write(int(p.sock.Fd()), []byte("g")); err != nil {
		t.Fatalf("the program has ended: %v, %s", err, p.said.String())
	}
}

// done waits until the program has done its rounds.
func (p *strained) done(t *testing.T) {
	t.Helper()
	if n, err := unix.Read(int(p.sock.Fd()), make([]byte, 1)); err != nil || n != 1 {
		_ = p.cmd.Wait()
		t.Fatalf("the program failed: %s", p.said.String())
	}
}

// ended waits for the program's own verdict.
func (p *strained) ended(t *testing.T) {
	t.Helper()
	p.tell(t)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the program: %v: %s", err, p.said.String())
	}
}

func (s *slot) now(t *testing.T) (out Stats) {
	t.Helper()
	if err := s.do(func() error { out = s.counts(); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

// half of the pages with content.
func half() workingSet {
	set := workingSet{"pages-1.img": {}}
	for n := int64(0); n < regions*regionPages; n += 2 {
		set["pages-1.img"][n] = true
	}
	return set
}

// Whatever a program does to its mappings, each page is what it must be: in a first round, that records, with a set
// that is pushed meanwhile, and with one in which nothing is.
func TestEveryPageIsRight(t *testing.T) {
	for name, set := range map[string]workingSet{"recording": nil, "half pushed": half(), "on demand": {}} {
		t.Run(name, func(t *testing.T) {
			for seed := range max(1, *rounds/300) {
				p := strain(t, seed+int(time.Now().UnixNano()%1e6), min(*rounds, 300))
				s := p.begin(t, p.images(0), set)
				p.done(t)
				got := s.now(t)
				if got.Lazy != regions*withContent || got.Faults == 0 || got.Zeros == 0 {
					t.Errorf("%+v", got)
				}
				if (got.Recorded > 0) != (set == nil) || (got.Pushed > 0) != (len(set) > 0) {
					t.Errorf("recorded and pushed: %+v", got)
				}
				p.ended(t)
				if seed == 0 {
					t.Logf("%+v", got)
				}
			}
		})
	}
}

// The program finds a page that is not the image's: what the test above relies on.
func TestAWrongPageIsFound(t *testing.T) {
	p := strain(t, 1, 50, "all")
	p.begin(t, p.images(1), nil)
	if n, err := unix.Read(int(p.sock.Fd()), make([]byte, 1)); err == nil && n == 1 {
		t.Error("the program took wrong pages for right")
	}
}

// After it was completed nothing is watched any more, and the memory is whole although nobody serves it.
func TestComplete(t *testing.T) {
	p := strain(t, 7, 30)
	s := p.begin(t, p.images(0), nil)
	p.done(t)
	if watched, err := Watched(p.cmd.Process.Pid); err != nil || !watched {
		t.Fatalf("watched before: %t, %v", watched, err)
	}
	if err := s.do(s.complete); err != nil {
		t.Fatal(err)
	}
	if got := s.now(t); got.Missing != 0 || got.Tasks != 0 {
		t.Errorf("%+v", got)
	}
	if watched, err := Watched(p.cmd.Process.Pid); err != nil || watched {
		t.Errorf("watched after: %t, %v", watched, err)
	}
	p.ended(t)
}

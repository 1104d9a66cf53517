package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/moby/sys/mountinfo"
	"go.uber.org/goleak"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// book is a ledger in memory that refuses what a real one would not understand.
type book struct {
	mu    sync.Mutex
	lines []bench.LedgerLine
	next  int64
	open  map[int64]string
}

func (b *book) Intend(kind string, claim bench.Claim) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		b.open = map[int64]string{}
	}
	id := b.next
	b.next++
	b.open[id] = kind
	b.lines = append(b.lines, bench.LedgerLine{Op: "intent", Id: id, Kind: kind, Claim: claim})
	return id, nil
}

func (b *book) Bind(id int64, identity bench.Identity) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.open[id]; !ok || identity == (bench.Identity{}) {
		return fmt.Errorf("bind %d: %+v", id, identity)
	}
	b.lines = append(b.lines, bench.LedgerLine{Op: "bind", Id: id, Kind: b.open[id], Identity: &identity})
	return nil
}

func (b *book) Gone(id int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.open[id]; !ok {
		return fmt.Errorf("gone %d: never intended, or gone before", id)
	}
	b.lines = append(b.lines, bench.LedgerLine{Op: "gone", Id: id, Kind: b.open[id]})
	delete(b.open, id)
	return nil
}

// story is the ledger's lines as "op kind".
func (b *book) story() string {
	var s []string
	for _, l := range b.lines {
		s = append(s, string(l.Op)+" "+string(l.Kind))
	}
	return strings.Join(s, ", ")
}

func newWorkspace(t testing.TB) (*engine.Workspace, *book) {
	t.Helper()
	b := &book{}
	return &engine.Workspace{Run: t.TempDir(), Work: t.TempDir(), State: t.TempDir(), ID: "0123456789ab", Ledger: b, Log: slog.New(slog.DiscardHandler)}, b
}

// hostState is what of ours there could be on the host: loop devices and mounts below dir, children that serve.
func hostState(t testing.TB, dir string) string {
	t.Helper()
	var s []string
	backings, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range backings {
		if text, err := os.ReadFile(b); err == nil && strings.Contains(string(text), dir) {
			s = append(s, "loop "+strings.TrimSpace(string(text)))
		}
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if strings.HasPrefix(m.Mountpoint, dir) {
			s = append(s, "mount "+m.Mountpoint)
		}
	}
	s = append(s, processesWith(t, dir)...)
	return strings.Join(s, "; ")
}

// processesWith lists processes that have text in their arguments, this one aside.
func processesWith(t testing.TB, text string) []string {
	t.Helper()
	var s []string
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		line, err := os.ReadFile(name)
		if err == nil && bytes.Contains(line, []byte(text)) && name != fmt.Sprintf("/proc/%d/cmdline", os.Getpid()) {
			s = append(s, "process "+string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return s
}

func tool(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := run(context.Background(), "test", name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func sha256Of(t testing.TB, path string) bench.SHA256 {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	return bench.SHA256(hex.EncodeToString(sum[:]))
}

// smallExt4 makes a raw file of 4 MiB with a file system that holds /hello.
func smallExt4(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "hello"), []byte("hello from the image\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	raw := filepath.Join(dir, "disk.raw")
	tool(t, "mke2fs", "-q", "-F", "-t", "ext4", "-d", tree, raw, "4M")
	return raw
}

// smallImage makes a qcow2 file of the raw file and returns it with its pin.
func smallImage(t testing.TB, raw string, options ...string) (string, bench.SHA256) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "small.qcow2")
	tool(t, "qemu-img", append(append([]string{"convert", "-O", "qcow2"}, options...), raw, path)...)
	return path, sha256Of(t, path)
}

// wantRefused checks for ErrRefused with these words and a hint.
func wantRefused(t testing.TB, err error, words ...string) {
	t.Helper()
	var e *engine.Error
	if !errors.Is(err, engine.ErrRefused) || !errors.As(err, &e) {
		t.Fatalf("not refused: %v", err)
	}
	if e.Hint == "" {
		t.Errorf("refused without a hint: %v", err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
}

func copyFile(t testing.TB, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), filepath.Base(from))
	if out, err := exec.Command("cp", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return to
}

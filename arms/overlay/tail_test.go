package overlay

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// What a root of the guest may put where the host reads its log: nothing of the
// host's comes back, and nothing waits.
func TestTailOfHostileLayers(t *testing.T) {
	const secret = "a line of the host's"
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "init.log"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		plant func(at string) error // at is the file's path, its folder is there
		want  error
	}{
		{"nothing", func(string) error { return nil }, fs.ErrNotExist},
		{"absolute link", func(at string) error { return os.Symlink(filepath.Join(host, "init.log"), at) }, engine.ErrRefused},
		{"relative link", func(at string) error {
			return os.Symlink(strings.Repeat("../", 20)+filepath.Join(host, "init.log"), at)
		}, engine.ErrRefused},
		{"its folder is a link", func(at string) error {
			return errors.Join(os.Remove(filepath.Dir(at)), os.Symlink(host, filepath.Dir(at)))
		}, engine.ErrRefused},
		{"link into proc", func(at string) error { return os.Symlink("/proc/self/environ", at) }, engine.ErrRefused},
		{"fifo", func(at string) error { return unix.Mkfifo(at, 0o666) }, engine.ErrRefused},
		{"device", func(at string) error { return unix.Mknod(at, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) }, engine.ErrRefused},
		{"whiteout", func(at string) error { return unix.Mknod(at, unix.S_IFCHR, 0) }, engine.ErrRefused},
		{"folder", func(at string) error { return os.Mkdir(at, 0o755) }, engine.ErrRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			layer := t.TempDir()
			at := filepath.Join(layer, "var/log/init.log")
			if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), c.plant(at)); err != nil {
				t.Fatal(err)
			}
			got, err := Tail(layer, "/var/log/init.log", 300)
			if !errors.Is(err, c.want) || len(got) > 0 {
				t.Errorf("%q, %v; want nothing and %v", got, err, c.want)
			}
		})
	}
}

func TestTail(t *testing.T) {
	layer := t.TempDir()
	at := filepath.Join(layer, "init.log")
	for content, want := range map[string]string{"": "", "ab": "ab", "abcd": "bcd"} {
		if err := os.WriteFile(at, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Tail(layer, "/init.log", 3); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v; want %q", content, got, err, want)
		}
	}
	// A file of 1 TiB costs what was asked for.
	if err := os.Truncate(at, 1<<40); err != nil {
		t.Fatal(err)
	}
	if got, err := Tail(layer, "/init.log", 3); err != nil || len(got) != 3 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

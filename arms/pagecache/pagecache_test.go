package pagecache

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// folder is one on a disk, with a file of so many pages.
func folder(t *testing.T, pages int) (dir, file string) {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "drums-pagecache-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file = filepath.Join(dir, "sub", "file")
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o755), os.WriteFile(file, bytes.Repeat([]byte{7}, pages*os.Getpagesize()), 0o644)); err != nil {
		t.Fatal(err)
	}
	return dir, file
}

func resident(t *testing.T, path string) int64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := Resident(f)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// What was just written is in memory, dirty; after a drop it is not, and the file is
// what it was. A file beside the folder keeps its pages, also one that a link names.
func TestDrop(t *testing.T) {
	dir, file := folder(t, 40)
	_, other := folder(t, 3)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "empty"), nil, 0o644), os.Symlink(other, filepath.Join(dir, "link")), unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	page := int64(os.Getpagesize())
	was, beside := resident(t, file), resident(t, other) // a host that is short of memory may have taken some
	if was == 0 {
		t.Fatal("nothing is in memory after it was written")
	}
	d, err := Cache{}.Drop(t.Context(), []string{dir})
	if err != nil || d.Files != 2 || d.Resident == "0" || d.Left != "0" || d.Held != nil {
		t.Errorf("%+v %v", d, err)
	}
	if n := resident(t, file); n != 0 {
		t.Errorf("%d bytes are in memory", n)
	}
	if n := resident(t, other); beside > 0 && n == 0 {
		t.Errorf("of the file beside it %d bytes are in memory, there were %d", n, beside)
	}
	if data, err := os.ReadFile(file); err != nil || len(data) != int(40*page) || data[0] != 7 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// What a process has mapped stays, and is said to.
func TestDropMapped(t *testing.T) {
	dir, file := folder(t, 4)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 4*os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mlock(m); err != nil {
		t.Fatal(err)
	}
	d, err := Cache{}.Drop(t.Context(), []string{dir})
	if err != nil || d.Files != 1 || d.Left == "0" || len(d.Held) != 1 || d.Held[0] != file {
		t.Errorf("%+v %v", d, err)
	}
	if err := unix.Munmap(m); err != nil {
		t.Fatal(err)
	}
	if d, err := (Cache{}).Drop(t.Context(), []string{dir}); err != nil || d.Left != "0" {
		t.Errorf("%+v %v", d, err)
	}
}

func TestDropFails(t *testing.T) {
	_, err := Cache{}.Drop(t.Context(), []string{filepath.Join(t.TempDir(), "none")})
	var e *engine.Error
	if !errors.As(err, &e) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

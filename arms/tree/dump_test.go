package tree

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A name is taken by what a layer has there, and not by a whiteout.
func TestHolds(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, device := range map[string]uint64{"whiteout": 0, "null": unix.Mkdev(1, 3)} {
		if err := unix.Mknod(filepath.Join(dir, name), unix.S_IFCHR|0o600, int(device)); err != nil {
			t.Fatal(err)
		}
	}
	layer, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	for path, want := range map[string]bool{"/file": true, "/null": true, "/whiteout": false, "/absent": false, "/file/below": false} {
		if got, err := holds(layer, path); err != nil || got != want {
			t.Errorf("%s: %t, %v", path, got, err)
		}
	}
	if _, err := holds(layer, "/../outside"); err == nil {
		t.Error("a path leads outside")
	}
}

// Of files that must be copied up a restore copies those of the checkpoint's layer; the image's own stay the image's.
func TestInLayer(t *testing.T) {
	layer := t.TempDir()
	for _, name := range []string{"root/profile/open", "linked"} {
		if err := os.MkdirAll(filepath.Join(layer, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(layer, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := inLayer(layer, []string{"/linked", "/linked/below", "/root/profile/open", "/usr/lib/image.dat"})
	if want := []string{"/linked", "/root/profile/open"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if _, err := inLayer(filepath.Join(layer, "absent"), []string{"/linked"}); err == nil {
		t.Error("there is no layer, and none is missed")
	}
	if _, err := inLayer(layer, []string{"/../outside"}); err == nil {
		t.Error("a path leads outside")
	}
}

package tree

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

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

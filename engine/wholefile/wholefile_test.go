package wholefile

import (
	"os"
	"path/filepath"
	"testing"
)

// The content is there whole, nothing lies beside it, a link is replaced and its target stays.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	target, path := filepath.Join(t.TempDir(), "target"), filepath.Join(dir, "file")
	if err := os.WriteFile(target, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"one", "two"} {
		if err := Write(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(path)
		entries, lerr := os.ReadDir(dir)
		if err != nil || lerr != nil || string(have) != want || len(entries) != 1 {
			t.Fatalf("%q %v %v %v", have, entries, err, lerr)
		}
	}
	if have, err := os.ReadFile(target); err != nil || string(have) != "old" {
		t.Errorf("the link was followed: %q %v", have, err)
	}
	if err := Write(filepath.Join(dir, "missing", "file"), nil, 0o644); err == nil {
		t.Error("a file was written into a folder that is not there")
	}
}

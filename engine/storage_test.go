package engine_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
)

// A hole takes nothing, and a second name of a file nothing more.
func TestDiskUse(t *testing.T) {
	dir := t.TempDir()
	empty, err := engine.DiskUse(dir)
	if err != nil {
		t.Fatal(err)
	}
	full, hole := filepath.Join(dir, "full"), filepath.Join(dir, "hole")
	f, err := os.Create(full)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(make([]byte, 1<<20))
	if err = errors.Join(err, f.Sync(), f.Close(), os.WriteFile(hole, nil, 0o600), os.Truncate(hole, 1<<30), os.Link(full, filepath.Join(dir, "again"))); err != nil {
		t.Fatal(err)
	}
	n, err := engine.DiskUse(dir)
	if n -= empty; err != nil || n < 1<<20 || n > 2<<20 {
		t.Errorf("%d bytes more, %v", n, err)
	}
	if _, err := engine.DiskUse(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

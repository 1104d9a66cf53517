//go:build unix

// Package irregulartest puts in the place of a file what somebody else may have put
// there: a link, a FIFO, a device, a folder, a file without end.
//
// Always holds: whoever reads it is given a few seconds, so that a reader that hangs
// fails its test and not the suite.
package irregulartest

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Each has read read the file at path, with each of them in its place: it has to
// return an error, and soon. What was there is there again afterwards.
func Each(t *testing.T, path string, read func() error) {
	t.Helper()
	outside := filepath.Join(t.TempDir(), "outside")
	was, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(outside, was, 0o600); err != nil { // as good as the file itself
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind  string
		plant func() error
	}{
		{"link", func() error { return os.Symlink(outside, path) }},
		{"fifo", func() error { return syscall.Mkfifo(path, 0o600) }},
		{"device", func() error { return syscall.Mknod(path, syscall.S_IFCHR|0o600, 1<<8|5) }}, // zero: it has no end
		{"folder", func() error { return os.Mkdir(path, 0o700) }},
		{"huge", func() error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40))
		}},
	} {
		if err := errors.Join(os.RemoveAll(path), c.plant()); err != nil {
			t.Fatalf("%s: %v", c.kind, err)
		}
		done := make(chan error, 1)
		go func() { done <- read() }()
		select {
		case err := <-done:
			if err == nil {
				t.Errorf("%s in the place of %s was read", c.kind, filepath.Base(path))
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("a %s in the place of %s holds up who reads it", c.kind, filepath.Base(path))
		}
	}
	if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, was, 0o600)); err != nil {
		t.Fatal(err)
	}
}

package tree

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// overTmp is a /tmp of the thread's own.
func overTmp(keep ...string) error {
	return private("/tmp", keep, func() error { return unix.Mount("drums", "/tmp", "tmpfs", 0, "mode=1777") })
}

// A criu that is killed leaves a folder in /tmp: found by the crash windows.
func TestPrivateTmp(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "drums-tmp-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	point := filepath.Join(dir, "deep", "point")
	if err := os.MkdirAll(point, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(point, link); err != nil {
		t.Fatal(err)
	}
	var left string
	err = Apart(0, func() error {
		// As the overlay and the image are, in a state directory below /tmp.
		if err := unix.Mount("drums", point, "tmpfs", 0, ""); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(point, "mounted"), nil, 0o600); err != nil {
			return err
		}
		if err := overTmp("/usr/bin", link, dir); err != nil {
			return err
		}
		if left, err = os.MkdirTemp("/tmp", ".criu.mntns."); err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(point, "mounted")); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "written"), nil, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left on the host: %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "written")); err != nil {
		t.Errorf("what has to be found was not that of the host: %v", err)
	}
	if err := Apart(0, func() error { return overTmp(filepath.Join(dir, "no such")) }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a path that is not there: %v", err)
	}
}

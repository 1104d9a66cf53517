package criu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Many tasks map a file that was replaced since, as GNOME's programs do with their settings. As dumped, CRIU finds the
// name taken in each of them, and at times one fails for it; with the images corrected it never does.
func TestNameGhosts(t *testing.T) {
	s := startSlot(t, "replaced")
	o, err := s.dump(DumpOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// restored says how often criu found the name taken.
	restored := func(name string) (int, error) {
		r, err := s.restore(t.Context(), name, RestoreOptions{Sibling: true, LeaveStopped: true}, nil)
		log, lerr := os.ReadFile(filepath.Join(s.dir, name, "criu", "restore.log"))
		if lerr != nil {
			t.Fatal(lerr)
		}
		taken := strings.Count(string(log), "Can't link")
		if err != nil {
			return taken, err
		}
		defer r.end()
		found := 0
		for _, pid := range descendants(r.pid) {
			maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
			if err != nil {
				t.Fatal(err)
			}
			found += strings.Count(string(maps), "/data/replaced"+besideName+" (deleted)")
		}
		if text, err := os.ReadFile(r.path("/data/replaced")); err != nil || string(text) != "the new one" || found < 8 {
			t.Errorf("%s: %d tasks map the old file, and the new one says %q, %v", name, found, text, err)
		}
		return taken, nil
	}
	var failure *Failure
	if taken, err := restored("as-dumped"); taken == 0 || err != nil && (!errors.As(err, &failure) || failure.Kind != KindGhostRace) {
		t.Errorf("as dumped: the name was taken %d times, %v: docs/criu-findings.md says otherwise", taken, err)
	}
	taken := func(path string) (bool, error) {
		_, err := os.Lstat(filepath.Join(s.upper, path))
		return err == nil, nil
	}
	if n, err := NameGhosts(o.ImagesDir, taken); err != nil || n != 1 {
		t.Fatalf("%d files were named, %v", n, err)
	}
	for i := range 3 {
		if n, err := restored(fmt.Sprintf("named-%d", i)); n != 0 || err != nil {
			t.Errorf("corrected: the name was taken %d times, %v", n, err)
		}
	}
	if n, err := NameGhosts(o.ImagesDir, taken); err != nil || n != 0 {
		t.Errorf("a second correction: %d, %v", n, err)
	}
	damaged := errors.New("cannot look")
	if _, err := NameGhosts(o.ImagesDir, func(string) (bool, error) { return false, damaged }); !errors.Is(err, damaged) {
		t.Errorf("%v", err)
	}
}

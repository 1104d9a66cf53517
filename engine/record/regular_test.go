package record

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/drumsbench/drumsbench/engine/record/irregulartest"
)

// Whoever reads a directory that may be somebody else's reads regular files of a size that a run has.
func TestOnlyRegularFilesAreRead(t *testing.T) {
	dir := wholeRun(t)
	to, err := Create(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { to.Close() })
	for name, read := range map[string]func() error{
		ManifestFile: func() error { _, _, err := ReadManifest(dir); return err },
		PlanFile:     func() error { _, err := to.CopyFile(dir, PlanFile); return err },
		EventsFile:   func() error { _, _, err := ReadEvents(dir); return err },
		RecordFile:   func() error { _, err := ReadRegular(filepath.Join(dir, RecordFile)); return err },
		LedgerFile:   func() error { _, err := load(dir); return err },
	} {
		irregulartest.Each(t, filepath.Join(dir, name), read)
	}
}

// What a command writes into somebody else's run stays inside: it goes through no
// link, makes no file where one leads, cuts off no line of a file that has another
// name, and waits for nobody.
func TestWritesStayInside(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	for _, c := range []struct {
		file string
		use  func(dir string) error
	}{
		{"lock", func(dir string) error { _, err := Hold(dir); return err }},
		{"lock", func(dir string) error { _, err := HoldToRead(dir); return err }},
		{LedgerFile, func(dir string) error { _, err := OpenLedger(filepath.Join(dir, LedgerFile)); return err }},
		{ReviewsFile, func(dir string) error { _, err := Renew(dir); return err }},
		{EventsFile, func(dir string) error { _, err := Reopen(dir); return err }},
	} {
		for kind, plant := range map[string]func(string) error{
			"link":      func(at string) error { return os.Symlink(outside, at) },
			"nowhere":   func(at string) error { return os.Symlink(outside+"-new", at) },
			"hard link": func(at string) error { return os.Link(outside, at) },
			"fifo":      func(at string) error { return syscall.Mkfifo(at, 0o600) },
			"device":    func(at string) error { return syscall.Mknod(at, syscall.S_IFCHR|0o600, 1<<8|5) },
		} {
			if kind == "hard link" && c.file == "lock" {
				continue // nothing is written to it
			}
			dir := wholeRun(t)
			path := filepath.Join(dir, c.file)
			// The last line is torn: it would be cut off.
			if err := errors.Join(os.WriteFile(outside, []byte("somebody's"), 0o600), os.RemoveAll(path), plant(path)); err != nil {
				t.Fatal(err)
			}
			if err := c.use(dir); err == nil {
				t.Errorf("%s as %s was taken", kind, c.file)
			}
			if text, err := os.ReadFile(outside); err != nil || string(text) != "somebody's" {
				t.Errorf("%s as %s: what it leads to is %q, %v", kind, c.file, text, err)
			}
			if _, err := os.Lstat(outside + "-new"); err == nil {
				t.Fatalf("%s as %s made a file outside", kind, c.file)
			}
		}
	}
}

// A line may claim any number, and a file may hold any count of lines: checking them takes no longer for it.
func TestNumbersAreNotCountedOut(t *testing.T) {
	for _, line := range []string{
		`{"seq":9223372036854775806,"op":"intent","id":9223372036854775806,"kind":"file","boot":"b","time":"2026-01-01T00:00:00Z","claim":{"path":"/a"}}`,
		`{"seq":9223372036854775807,"op":"gone","id":9223372036854775807,"kind":"file","boot":"b","time":"2026-01-01T00:00:00Z","claim":{"path":"/a"}}`,
		`{"seq":-9223372036854775808,"op":"bind","id":-1,"kind":"file","boot":"b","time":"2026-01-01T00:00:00Z","claim":{"path":"/a"}}`,
	} {
		dir := wholeRun(t)
		good, err := os.ReadFile(filepath.Join(dir, LedgerFile))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, LedgerFile), append([]byte(line+"\n"), good...), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := verify(t, dir); len(r.Damage) == 0 {
			t.Errorf("nothing is said of %s", line)
		}
	}
	many := filepath.Join(t.TempDir(), "many")
	if err := os.WriteFile(many, bytes.Repeat([]byte("\n"), maxLines+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := eachLine(many, func(int, []byte) error { return nil }); !errors.Is(err, ErrHuge) {
		t.Errorf("%d lines: %v", maxLines+1, err)
	}
}

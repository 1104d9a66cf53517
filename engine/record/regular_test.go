package record

import (
	"path/filepath"
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

package record

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrIrregular says that something in a run directory is no regular file.
var ErrIrregular = errors.New("is no regular file")

// ReadRegular reads a regular file whole. A run directory may be somebody
// else's: a link in it leads out of it, and a FIFO holds up whoever reads it.
// ErrIrregular for those, fs.ErrNotExist where there is nothing.
func ReadRegular(path string) ([]byte, error) {
	before, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: ErrIrregular}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !os.SameFile(before, now) {
		return nil, errors.Join(err, &fs.PathError{Op: "read", Path: path, Err: ErrIrregular})
	}
	return io.ReadAll(f)
}

// irregular names what in a run directory is not the kind of file that a run
// has there. Nothing else may be read of such a directory.
func irregular(dir string) (problems []Problem, err error) {
	look := func(name string, directory bool) error {
		info, err := os.Lstat(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case directory && !info.IsDir():
			problems = append(problems, Problem{Edited, name, 0, fmt.Sprintf("it is no folder: %v", info.Mode().Type())})
		case !directory && !info.Mode().IsRegular():
			problems = append(problems, Problem{Edited, name, 0, fmt.Sprintf("it %v: %v", ErrIrregular, info.Mode().Type())})
		}
		return nil
	}
	err = look(EvidenceFolder, true)
	for _, name := range []string{EventsFile, ManifestFile, PlanFile, HostFile, RegistrationFile, LedgerFile, ReviewsFile, RecordFile, HandleFile, SignatureFile} {
		err = errors.Join(err, look(name, false))
	}
	if err != nil || len(problems) > 0 {
		return problems, err
	}
	entries, err := os.ReadDir(filepath.Join(dir, EvidenceFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		err = errors.Join(err, look(filepath.Join(EvidenceFolder, e.Name()), false))
	}
	return problems, err
}

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

// ErrHuge says that a file holds more than anything of a run does.
var ErrHuge = errors.New("is too large")

// ErrShared says that a file of a run directory has another name: a hard link.
var ErrShared = errors.New("has another name")

// maxRegular bounds what is read whole, in bytes: ten thousand rollouts fill a tenth of it.
const maxRegular = 1 << 30

// maxLines bounds what is kept of a file of lines, each of which costs some hundred bytes of memory: ten
// thousand rollouts write a quarter of it.
const maxLines = 1 << 21

// OpenRegular opens a regular file for reading. A run directory or a checkpoint may
// be somebody else's, and a guest wrote parts of it: a link in it leads out of it,
// and a FIFO holds up whoever reads it. ErrIrregular for those, fs.ErrNotExist
// where there is nothing, ErrHuge for one of more than a gibibyte.
func OpenRegular(path string) (*os.File, error) {
	before, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: ErrIrregular}
	}
	f, err := openCarefully(path, os.O_RDONLY, 0) // it may have been swapped since
	if err != nil {
		return nil, err
	}
	now, err := f.Stat()
	switch {
	case err != nil || !os.SameFile(before, now):
		err = errors.Join(err, &fs.PathError{Op: "read", Path: path, Err: ErrIrregular})
	case now.Size() > maxRegular:
		err = &fs.PathError{Op: "read", Path: path, Err: ErrHuge}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// own refuses what nothing may be written to: what is no regular file, and one that
// has another name, where somebody else would find what is written. A file that is
// not there is none of both.
func own(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return &fs.PathError{Op: "write", Path: path, Err: ErrIrregular}
	case otherNames(info):
		return &fs.PathError{Op: "write", Path: path, Err: ErrShared}
	}
	return nil
}

// ReadRegular reads a regular file whole, as OpenRegular opens it.
func ReadRegular(path string) ([]byte, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRegular))
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

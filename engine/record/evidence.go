package record

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Evidence keeps bytes in a folder under names that begin with their digest. It
// is an engine.EvidenceStore; safe for concurrent use.
type Evidence struct{ dir string }

// OpenEvidence returns the store of a run directory.
func OpenEvidence(dir string) Evidence { return Evidence{dir: filepath.Join(dir, EvidenceFolder)} }

// Put stores data. The same data under the same name is stored once. It does not sync.
func (s Evidence) Put(name string, data []byte) (bench.Evidence, error) {
	e := bench.Evidence{Name: name, Sha256: canonical.Sum(data), Size: int64(len(data))}
	path := s.Path(e)
	if have, err := ReadRegular(path); err == nil && canonical.Sum(have) == e.Sha256 {
		return e, nil
	}
	if err := s.write(path, data); err != nil {
		return bench.Evidence{}, &engine.Error{Op: "store evidence " + name, Err: err}
	}
	return e, nil
}

// write makes the file appear whole or not at all.
func (s Evidence) write(path string, data []byte) error {
	f, err := os.CreateTemp(s.dir, ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Path of the file that holds an evidence.
func (s Evidence) Path(e bench.Evidence) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
			return r
		}
		return '_'
	}, e.Name)
	return filepath.Join(s.dir, prefix(e.Sha256)+"-"+name[:min(len(name), 100)])
}

// prefix also stands digests that are not: a damaged line may name anything.
func prefix(d bench.SHA256) string {
	if len(d) < 16 || strings.Trim(string(d[:16]), "0123456789abcdef") != "" {
		return "none"
	}
	return string(d[:16])
}

package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// CreateChain is Create for a directory whose things another run's ledger owns:
// it has none of its own, and Ledger is nil.
func CreateChain(path string) (*Dir, error) {
	d, err := Create(path)
	if err != nil {
		return nil, err
	}
	err = d.Ledger.Close()
	d.Ledger = nil
	if err == nil {
		err = os.Remove(filepath.Join(d.Path, LedgerFile))
	}
	if err != nil {
		return nil, errors.Join(&engine.Error{Op: "create run directory " + path, Err: err}, d.Close())
	}
	return d, nil
}

// Reopen goes on with a directory whose chain has not ended, such as that of a
// slot by hand, and holds it until Close. A torn last line is cut off. Ledger is
// nil if there is none. ErrRunning while somebody holds it; ErrRefused if the
// chain is damaged or has ended, with nothing changed.
func Reopen(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, &engine.Error{Op: "open run directory", Err: err}
	}
	d := &Dir{Path: path, Evidence: OpenEvidence(path)}
	if d.lock, err = hold(path); err != nil {
		return nil, err
	}
	if err := d.reopen(); err != nil {
		var e *engine.Error
		if !errors.As(err, &e) {
			err = &engine.Error{Op: "open run directory " + path, Err: err}
		}
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Dir) reopen() (err error) {
	if d.Events, err = openEvents(filepath.Join(d.Path, EventsFile)); err != nil {
		return err
	}
	d.Ledger, err = OpenLedger(filepath.Join(d.Path, LedgerFile))
	if errors.Is(err, fs.ErrNotExist) {
		d.Ledger, err = nil, nil
	}
	return err
}

// openEvents goes on with a chain.
func openEvents(path string) (*Events, error) {
	links, torn, err := readLinks(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	if damage, _ := checkLines(links, torn); len(damage) > 0 {
		return nil, &engine.Error{Op: "go on with chain", Err: fmt.Errorf("%w: %w", engine.ErrRefused, damage[0]), Hint: damage[0].Remedy()}
	}
	if len(links) == 0 || links[len(links)-1].event == "run_end" {
		return nil, &engine.Error{Op: "go on with chain", Err: fmt.Errorf("%w: it has ended, or never began", engine.ErrRefused)}
	}
	file, err := openLines(path, 0)
	if err != nil {
		return nil, err
	}
	last := links[len(links)-1]
	e := &Events{file: file, seq: last.seq + 1, prev: last.digest}
	if torn == 0 {
		return e, nil
	}
	size, _, err := eachLine(path, func(int, []byte) error { return nil })
	if err == nil {
		err = file.cut(size)
	}
	if err != nil {
		return nil, errors.Join(err, file.close())
	}
	return e, nil
}

// WriteHandle writes a slot's handle beside its chain, if it is what the schema
// says, and returns its digest.
func (d *Dir) WriteHandle(h bench.SlotHandle) (bench.SHA256, error) {
	return d.write("SlotHandle", HandleFile, h)
}

// ReadHandle reads a slot's handle with its digest. It checks its form.
func ReadHandle(dir string) (h bench.SlotHandle, digest bench.SHA256, err error) {
	data, err := ReadRegular(filepath.Join(dir, HandleFile))
	if err != nil {
		return h, "", &engine.Error{Op: "read handle of slot", Err: err}
	}
	return h, canonical.Sum(data), readAs("SlotHandle", HandleFile, data, &h)
}

// ReadManifest reads the manifest of a run's or slot's directory with its digest.
func ReadManifest(dir string) (m bench.Manifest, digest bench.SHA256, err error) {
	data, err := ReadRegular(filepath.Join(dir, ManifestFile))
	if err != nil {
		return m, "", &engine.Error{Op: "read manifest of run", Err: err}
	}
	return m, canonical.Sum(data), readAs("Manifest", ManifestFile, data, &m)
}

// CopyFile copies one of the files that WriteManifest and its like make from
// another directory, as it is there.
func (d *Dir) CopyFile(from, name string) (bench.SHA256, error) {
	data, err := ReadRegular(filepath.Join(from, name))
	if err != nil {
		return "", &engine.Error{Op: "copy " + name, Err: err}
	}
	return canonical.Sum(data), d.put(name, data)
}

// readAs decodes data that has to be what the schema says.
func readAs(definition, name string, data []byte, v any) error {
	err := compile.Validate(definition, data)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return &engine.Error{Op: "read " + name, Err: fmt.Errorf("%w: %w", engine.ErrRefused, err)}
	}
	return nil
}

// Take holds the directory of a run that has ended and has no record yet: Events and
// Ledger are nil. ErrRunning while somebody holds it.
func Take(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, &engine.Error{Op: "open run directory", Err: err}
	}
	d := &Dir{Path: path, Evidence: OpenEvidence(path)}
	d.lock, err = hold(path)
	return d, err
}

// DropUnnamed removes evidence that no receipt names: a crash came between the file and
// the line that would have named it.
func (d *Dir) DropUnnamed() error {
	links, _, err := readLinks(d.Path)
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, l := range links {
		for _, e := range l.evidence {
			names[filepath.Base(d.Evidence.Path(e))] = true
		}
		names[filepath.Base(l.log)] = true
	}
	entries, err := os.ReadDir(filepath.Join(d.Path, EvidenceFolder))
	if err != nil {
		return &engine.Error{Op: "read run directory", Err: err}
	}
	for _, e := range entries {
		if names[e.Name()] {
			continue
		}
		if err := os.Remove(filepath.Join(d.Path, EvidenceFolder, e.Name())); err != nil {
			return &engine.Error{Op: "drop evidence that nothing names", Err: err}
		}
	}
	return nil
}

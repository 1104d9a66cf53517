// Package record keeps what a run leaves behind, so that every number that is
// ever shown can be traced back to what was observed.
//
// A run is a directory:
//
//	manifest.json  plan.json  host.json   what was run, where; canonical JSON, so that a
//	                                      file's SHA-256 is its digest
//	events.jsonl   one receipt a line, each with the digest of the line before
//	ledger.jsonl   what the run owns or owned on the host
//	evidence/      bytes by digest
//	registration.json             the registration that the run belongs to, if to one
//	reviews.jsonl  what people decided about steps that waited for them, if any did
//	signature.json                the end of the chain as somebody's key signed it, if one was configured
//	record.json    the result, made from the files above and from nothing else
//	lock           held while the engine runs
//
// Always holds: a line is one write(2) and complete or cut off again; a record
// is built from what can be read back, never from the memory of the executor.
package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
	"github.com/hashicorp/go-multierror"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/wholefile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Files of a run directory.
const (
	ManifestFile = "manifest.json"
	PlanFile     = "plan.json"
	HostFile     = "host.json"
	EventsFile   = "events.jsonl"
	LedgerFile   = "ledger.jsonl"
	RecordFile   = "record.json"
	// RegistrationFile is there where run_start names it.
	RegistrationFile = "registration.json"
	HandleFile       = "handle.json" // of a slot by hand
	EvidenceFolder   = "evidence"
	lockFile         = "lock"
)

// ErrRunning: an engine holds the run directory.
var ErrRunning = errors.New("an engine holds the run")

// Dir is the directory of a run that is being made.
type Dir struct {
	Path     string
	Events   *Events
	Ledger   *FileLedger
	Evidence Evidence

	lock *flock.Flock
}

// Create makes the directory of a new run and holds it until Close. A directory
// that is there already must be empty; ErrRefused otherwise, with nothing changed.
func Create(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, &engine.Error{Op: "create run directory", Err: err}
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, &engine.Error{Op: "create run directory", Err: err}
	}
	if err := empty(path); err != nil {
		return nil, err
	}
	d := &Dir{Path: path}
	if d.lock, err = hold(path); err != nil {
		return nil, err
	}
	if err := d.open(); err != nil {
		return nil, errors.Join(&engine.Error{Op: "create run directory " + path, Err: err}, d.Close())
	}
	return d, nil
}

func empty(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return &engine.Error{Op: "create run directory", Err: err}
	}
	if len(entries) > 0 {
		return &engine.Error{Op: "create run directory " + path, Err: fmt.Errorf("%w: it holds %s", engine.ErrRefused, entries[0].Name()), Hint: "name a directory that does not exist or is empty"}
	}
	return nil
}

// open makes the files. O_EXCL: of two engines that saw an empty directory, the second fails.
func (d *Dir) open() (err error) {
	if err := os.Mkdir(filepath.Join(d.Path, EvidenceFolder), 0o755); err != nil {
		return err
	}
	d.Evidence = Evidence{dir: filepath.Join(d.Path, EvidenceFolder)}
	if d.Events, err = createEvents(filepath.Join(d.Path, EventsFile)); err != nil {
		return err
	}
	d.Ledger, err = CreateLedger(filepath.Join(d.Path, LedgerFile))
	return err
}

// Close syncs the files to disk and lets go of the directory. Idempotent.
func (d *Dir) Close() error {
	var errs *multierror.Error
	if d.Events != nil {
		errs = multierror.Append(errs, d.Events.Close())
	}
	if d.Ledger != nil {
		errs = multierror.Append(errs, d.Ledger.Close())
	}
	if err := d.lock.Unlock(); err != nil {
		errs = multierror.Append(errs, &engine.Error{Op: "unlock run directory", Err: err})
	}
	return errs.ErrorOrNil()
}

func hold(dir string) (*flock.Flock, error) {
	path := filepath.Join(dir, lockFile)
	lock := flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDONLY|careful))
	held, err := false, own(path) // a link would have a file made where it leads
	if err == nil {
		held, err = lock.TryLock()
	}
	if err != nil {
		return nil, &engine.Error{Op: "lock run directory " + dir, Err: err}
	}
	if !held {
		return nil, &engine.Error{Op: "lock run directory " + dir, Err: ErrRunning}
	}
	return lock, nil
}

// Hold takes the directory of an earlier run, so that no engine and no other
// sweep works in it. ErrRunning while one does.
func Hold(dir string) (release func() error, err error) {
	lock, err := hold(dir)
	if err != nil {
		return nil, err
	}
	return lock.Unlock, nil
}

// WriteManifest writes manifest.json and returns its digest.
func (d *Dir) WriteManifest(m bench.Manifest) (bench.SHA256, error) {
	return d.write("Manifest", ManifestFile, m)
}

// WriteHost writes host.json and returns its digest.
func (d *Dir) WriteHost(h bench.HostFacts) (bench.SHA256, error) {
	return d.write("HostFacts", HostFile, h)
}

// WriteRegistration keeps a copy of the registration that the run belongs to, and
// returns its digest, which is that of its bytes: they are written as they are.
func (d *Dir) WriteRegistration(data []byte) (bench.SHA256, error) {
	if err := compile.Validate("Registration", data); err != nil {
		return "", &engine.Error{Op: "write " + RegistrationFile, Err: err}
	}
	return canonical.Sum(data), d.put(RegistrationFile, data)
}

// WriteRecord writes record.json, if it is what the schema says, and returns its digest.
func (d *Dir) WriteRecord(r bench.Record) (bench.SHA256, error) {
	return d.write("Record", RecordFile, r)
}

// WritePlan writes plan.json.
func (d *Dir) WritePlan(p *engine.Plan) error { return d.put(PlanFile, p.JSON()) }

func (d *Dir) write(definition, name string, v any) (bench.SHA256, error) {
	data, err := canonical.JSON(v)
	if err == nil {
		err = compile.Validate(definition, data)
	}
	if err != nil {
		return "", &engine.Error{Op: "write " + name, Err: err}
	}
	return canonical.Sum(data), d.put(name, data)
}

func (d *Dir) put(name string, data []byte) error {
	if err := wholefile.Write(filepath.Join(d.Path, name), data, 0o644); err != nil {
		return &engine.Error{Op: "write " + name, Err: err}
	}
	return nil
}

// read returns a file of a run directory; a file that is not there is nil.
func read(dir, name string) ([]byte, error) {
	data, err := ReadRegular(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &engine.Error{Op: "read run directory", Err: err}
	}
	return data, nil
}

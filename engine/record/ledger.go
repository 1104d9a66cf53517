package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Owned is something on the host that a ledger says is the run's.
type Owned struct {
	ID    int64
	Kind  string
	Claim bench.Claim
	// Identity is nil if the run ended between the intent and the bind: the thing may be there or not.
	Identity *bench.Identity
	// Boot is the boot id under which it was made: after a reboot only files and directories can be left.
	Boot string
}

// FileLedger is an engine.Ledger in a file. Lines are written at once, also
// inside a measurement window, and synced by Close only. Safe for concurrent use.
type FileLedger struct {
	mu   sync.Mutex
	file *lineFile
	boot string
	seq  int64
	open map[int64]Owned
	gone map[int64]bool
}

// CreateLedger makes a new ledger; it is an error if the file is there.
func CreateLedger(path string) (*FileLedger, error) {
	boot, err := BootID()
	if err != nil {
		return nil, err
	}
	file, err := openLines(path, os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, &engine.Error{Op: "create ledger", Err: err}
	}
	return &FileLedger{file: file, boot: boot, open: map[int64]Owned{}, gone: map[int64]bool{}}, nil
}

// OpenLedger goes on with the ledger of an earlier run, to write down what a
// sweep took away. The caller holds the run directory. A torn last line is cut
// off: what it would have said did not happen yet.
func OpenLedger(path string) (*FileLedger, error) {
	boot, err := BootID()
	if err != nil {
		return nil, err
	}
	file, err := openLines(path, 0)
	if err != nil {
		return nil, &engine.Error{Op: "open ledger", Err: err}
	}
	l := &FileLedger{file: file, boot: boot}
	size, torn, err := l.load(path)
	if err == nil && torn > 0 {
		err = file.cut(size)
	}
	if err != nil {
		return nil, &engine.Error{Op: "open ledger", Err: errors.Join(err, file.close())}
	}
	return l, nil
}

// Open lists what is not gone, oldest first.
func (l *FileLedger) Open() []Owned {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sorted()
}

func (l *FileLedger) sorted() []Owned {
	list := make([]Owned, 0, len(l.open))
	for _, id := range slices.Sorted(maps.Keys(l.open)) {
		list = append(list, l.open[id])
	}
	return list
}

// ReadLedger lists what a ledger says is not gone, oldest first. torn is the
// number of a last line that was cut off while it was written, 0 if there is
// none; such a line counts as not written. Any other damage is an error.
func ReadLedger(path string) (open []Owned, torn int, err error) {
	l := &FileLedger{}
	_, torn, err = l.load(path)
	if err != nil {
		return nil, 0, &engine.Error{Op: "read ledger", Err: err}
	}
	return l.sorted(), torn, nil
}

// load takes the state from the file.
func (l *FileLedger) load(path string) (size int64, torn int, err error) {
	l.open, l.gone = map[int64]Owned{}, map[int64]bool{}
	return eachLine(path, func(number int, raw []byte) error {
		var line bench.LedgerLine
		if err := json.Unmarshal(raw, &line); err != nil {
			return fmt.Errorf("%s:%d: %w", path, number, err)
		}
		if line.Seq != l.seq {
			return fmt.Errorf("%s:%d: has number %d where %d belongs", path, number, line.Seq, l.seq)
		}
		l.seq++
		if err := l.apply(line); err != nil {
			return fmt.Errorf("%s:%d: %w", path, number, err)
		}
		return nil
	})
}

func (l *FileLedger) apply(line bench.LedgerLine) error {
	owned, isOpen := l.open[line.Id]
	switch {
	case line.Op == "intent" && line.Id == line.Seq:
		l.open[line.Id] = Owned{ID: line.Id, Kind: line.Kind, Claim: line.Claim, Boot: line.Boot}
	case line.Op == "bind" && isOpen:
		owned.Identity = line.Identity
		l.open[line.Id] = owned
	case line.Op == "gone" && isOpen:
		delete(l.open, line.Id)
		l.gone[line.Id] = true
	default:
		return fmt.Errorf("%s of %d does not follow from the lines before", line.Op, line.Id)
	}
	return nil
}

// write appends a line and takes it into the state. l.mu is held.
func (l *FileLedger) write(line bench.LedgerLine) error {
	line.Seq, line.Time, line.Boot = l.seq, engine.Timestamp(time.Now()), l.boot
	if line.Op == "intent" {
		line.Id = l.seq
	}
	if _, err := l.file.append(line); err != nil {
		return &engine.Error{Op: "write ledger", Err: err}
	}
	l.seq++
	return l.apply(line)
}

// Intend implements engine.Ledger.
func (l *FileLedger) Intend(kind string, claim bench.Claim) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := l.seq
	return id, l.write(bench.LedgerLine{Op: "intent", Kind: kind, Claim: claim})
}

// Bind implements engine.Ledger. Binding again replaces the identity.
func (l *FileLedger) Bind(id int64, identity bench.Identity) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	owned, isOpen := l.open[id]
	if !isOpen {
		return &engine.Error{Op: "write ledger", Err: fmt.Errorf("bind of %d, which is not owned", id)}
	}
	return l.write(bench.LedgerLine{Op: "bind", Id: id, Kind: owned.Kind, Claim: owned.Claim, Identity: &identity})
}

// Gone implements engine.Ledger.
func (l *FileLedger) Gone(id int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	owned, isOpen := l.open[id]
	switch {
	case isOpen:
		return l.write(bench.LedgerLine{Op: "gone", Id: id, Kind: owned.Kind, Claim: owned.Claim, Identity: owned.Identity})
	case l.gone[id]:
		return nil
	}
	return &engine.Error{Op: "write ledger", Err: fmt.Errorf("gone of %d, which never was owned", id)}
}

// Close syncs the ledger to disk. Idempotent.
func (l *FileLedger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.file.close(); err != nil {
		return &engine.Error{Op: "close ledger", Err: err}
	}
	return nil
}

// BootID is the kernel's random id of this boot.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", &engine.Error{Op: "read boot id", Err: err}
	}
	return strings.TrimSpace(string(data)), nil
}

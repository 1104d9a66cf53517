package sweep

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A ledger is a file that anybody can write, and may claim the scratch directory of
// somebody else's run, whose name is no secret. So the directory, which only root can
// enter, says whose it is: by the identity of the ledger, which no copy has.

// whose is what a scratch directory says.
type whose struct {
	Ledger bench.Identity `json:"ledger"`
	// Boot is when: numbers of devices are of one boot.
	Boot string `json:"boot"`
}

// maxWhose bounds it, in bytes.
const maxWhose = 4096

// Bind writes into a new scratch directory that it is of the run that has ws.Run's ledger.
func Bind(ws *engine.Workspace) error {
	const op = "say whose scratch directory it is"
	var w whose
	var text []byte
	var err error
	if w.Boot, err = record.BootID(); err == nil {
		w.Ledger, err = identityOf(filepath.Join(ws.Run, record.LedgerFile))
	}
	if err == nil {
		text, err = json.Marshal(w)
	}
	path := filepath.Join(ws.Work, engine.WhoseFile)
	if err == nil { // whole or not at all: half of it would keep everybody from sweeping
		err = os.WriteFile(path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return &engine.Error{Op: op, Err: errors.Join(err, os.RemoveAll(path+".new"))}
	}
	return nil
}

// of requires that the scratch directory is none of another run's than the one that
// has this ledger. One that is gone, or that says nothing, is nobody else's.
func (c claim) of(ledger string) error {
	const op = "sweep run"
	text, err := os.ReadFile(filepath.Join(c.work, engine.WhoseFile))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 { // empty: the host lost its power before it was on the disk
		return nil
	}
	var w whose
	if err == nil && len(text) > maxWhose {
		err = errors.New("it is too large")
	}
	if err == nil {
		err = json.Unmarshal(text, &w)
	}
	var have bench.Identity
	if err == nil {
		have, err = identityOf(ledger)
	}
	var boot string
	if err == nil {
		boot, err = record.BootID()
	}
	if err != nil {
		return &engine.Error{Op: op, Err: fmt.Errorf("%w: whose scratch directory %s is: %w", engine.ErrUnknown, c.work, err)}
	}
	if w.Boot != boot {
		have.Dev = w.Ledger.Dev
	}
	if have == w.Ledger {
		return nil
	}
	return &engine.Error{Op: op, Err: fmt.Errorf("%w: the scratch directory %s is that of another run, or this ledger is a copy of its", engine.ErrRefused, c.work),
		Hint: "sweep the run itself, where it was made; what a copy of it says is not acted on"}
}

func identityOf(path string) (bench.Identity, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return bench.Identity{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return bench.Identity{Dev: bench.Int64(strconv.FormatUint(uint64(st.Dev), 10)), Ino: bench.Int64(strconv.FormatUint(st.Ino, 10))}, nil
}

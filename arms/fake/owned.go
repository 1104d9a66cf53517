package fake

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// ownedPath is a directory or a file in the ledger. nil is nothing.
type ownedPath struct {
	ws   *engine.Workspace
	path string

	identity bench.Identity

	mu   sync.Mutex
	id   int64
	gone bool
}

func ownDirectory(ws *engine.Workspace, path string) (*ownedPath, error) {
	return own(ws, "directory", path, func() error { return os.Mkdir(path, 0o755) })
}

func ownFile(ws *engine.Workspace, path string, data []byte) (*ownedPath, error) {
	return own(ws, "file", path, func() error {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		return errors.Join(err, f.Close())
	})
}

// own returns what is to be removed also beside an error, if the intent was written.
func own(ws *engine.Workspace, kind, path string, create func() error) (*ownedPath, error) {
	id, err := ws.Ledger.Intend(kind, bench.Claim{Path: path})
	if err != nil {
		return nil, err
	}
	p := &ownedPath{ws: ws, path: path, id: id}
	if err := create(); err != nil {
		return p, err
	}
	if p.identity, err = identity(path); err != nil {
		return p, err
	}
	return p, ws.Ledger.Bind(id, p.identity)
}

// remove takes the path away, reads its absence back and writes that down. Idempotent.
func (p *ownedPath) remove() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return nil
	}
	if err := os.RemoveAll(p.path); err != nil {
		return err
	}
	if _, err := os.Lstat(p.path); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: it is still there: %v", p.path, err)
	}
	if err := p.ws.Ledger.Gone(p.id); err != nil {
		return err
	}
	p.gone = true
	return nil
}

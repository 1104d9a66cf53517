package record

import (
	"os"
	"strings"
	"sync"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// noLine is what the first line names as the line before.
var noLine = bench.SHA256(strings.Repeat("0", 64))

// Events appends receipts to a chain. It is an engine.Sink; safe for concurrent use.
type Events struct {
	mu   sync.Mutex
	file *lineFile
	seq  int64
	prev bench.SHA256
}

func createEvents(path string) (*Events, error) {
	file, err := openLines(path, os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, err
	}
	return &Events{file: file, prev: noLine}, nil
}

// Append numbers the receipt, ties it to the line before and writes it. It does
// not sync. After an error the chain is as it was.
func (e *Events) Append(r bench.Receipt) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	r.Seq, r.Prev = e.seq, e.prev
	line, err := e.file.append(r)
	if err != nil {
		return &engine.Error{Op: "append receipt", Err: err}
	}
	e.seq++
	e.prev = canonical.Sum(line)
	return nil
}

// Next is the number of the receipt that comes next.
func (e *Events) Next() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seq
}

// Close syncs the chain to disk. Idempotent.
func (e *Events) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.file.close(); err != nil {
		return &engine.Error{Op: "close events", Err: err}
	}
	return nil
}

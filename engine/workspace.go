package engine

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Workspace is what a run gives to an arm: where to put things and where to write down what is owned.
type Workspace struct {
	// Run is the run's directory, absolute. Checkpoints lie below it.
	Run string
	// Work is the run's scratch directory below the state directory, absolute, on the same file system as Run.
	Work string
	// State is the state directory: images, caches, tools.
	State string
	// ID is the run's random claim, 12 hex digits; names of cgroups and directories contain it.
	ID string
	// Owned is Work's number in the ledger.
	Owned    int64
	Ledger   Ledger
	Evidence EvidenceStore
	Log      *slog.Logger
	// Manifest is the folder that the manifest lies in, absolute: its relative paths start there.
	Manifest string
	// Host runs a policy's program on the host; nil where a run has no means to.
	Host HostRunner
	// Prober measures the host; nil where a run has no means to.
	Prober HostProber
	// Cache drops files from the host's page cache; nil where a run has no means to.
	Cache PageCache
	// TakeAway takes away things that an earlier attempt at the run made, the last first,
	// and writes that they are gone; nil where there was none.
	TakeAway func(ctx context.Context, owned []bench.OwnedThing) error
	// Canary is the path of the program that holds and seeks canaries in slots; empty where a run has none.
	Canary string
}

// WhoseFile, in the scratch directory, says which run it is of.
const WhoseFile = "whose.json"

// Release removes the scratch directory, which everybody who made something in
// it has emptied: what is left in it is an error. Idempotent.
func (ws *Workspace) Release(context.Context) error {
	for _, note := range []string{ws.places(), filepath.Join(ws.Work, WhoseFile)} {
		if err := os.RemoveAll(note); err != nil {
			return &Error{Op: "remove notes in scratch directory", Err: err}
		}
	}
	if err := os.Remove(ws.Work); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &Error{Op: "remove scratch directory", Err: err, Hint: "something was left in it; sweep takes it away"}
	}
	return ws.Ledger.Gone(ws.Owned)
}

// Releaser is an arm, or anything else, that holds things for the length of a
// run. Release is idempotent and takes them away.
type Releaser interface {
	Release(ctx context.Context) error
}

// Ledger keeps what a run owns on the host. Safe for concurrent use.
type Ledger interface {
	// Intend writes the intent line before the side effect and returns its number.
	Intend(kind string, claim bench.Claim) (int64, error)
	// Bind writes the identity of what was made.
	Bind(id int64, identity bench.Identity) error
	// Gone writes that the thing's absence was read back. Idempotent.
	Gone(id int64) error
}

// EvidenceStore keeps bytes by digest. Safe for concurrent use.
type EvidenceStore interface {
	Put(name string, data []byte) (bench.Evidence, error)
	// Path is where an evidence's bytes lie.
	Path(e bench.Evidence) string
}

// Own writes an intent, makes the thing, and binds its identity. make returns
// the identity it read back; when it fails the intent stays open, and sweep
// looks for what may be left.
func Own(l Ledger, kind string, claim bench.Claim, make func() (bench.Identity, error)) (int64, error) {
	id, err := l.Intend(kind, claim)
	if err != nil {
		return 0, err
	}
	identity, err := make()
	if err != nil {
		return id, err
	}
	return id, l.Bind(id, identity)
}

type spansKey struct{}

// SpanSink receives sub-spans of a step.
type SpanSink interface {
	Span(name string, start, end time.Time)
}

// WithSpans returns a context whose spans go to sink.
func WithSpans(ctx context.Context, sink SpanSink) context.Context {
	return context.WithValue(ctx, spansKey{}, sink)
}

// StartSpan starts a named part of the current step; call the result to end it.
func StartSpan(ctx context.Context, name string) (end func()) {
	sink, ok := ctx.Value(spansKey{}).(SpanSink)
	if !ok {
		return func() {}
	}
	start := time.Now()
	return func() { sink.Span(name, start, time.Now()) }
}

// CheckpointDir is where a slot's next checkpoint goes, in a folder that is there:
// checkpoints/SLOT of the run, and checkpoints/SLOT.2 and so on for those that
// follow. One slot is dumped by one step at a time.
func (ws *Workspace) CheckpointDir(slot string) (string, error) {
	dir := filepath.Join(ws.Run, "checkpoints")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for n, name := 2, slot; ; n, name = n+1, slot+"."+strconv.Itoa(n) {
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return path, nil
		} else if err != nil {
			return "", err
		}
	}
}

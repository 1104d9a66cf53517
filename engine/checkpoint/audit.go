package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/pathtext"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// What happened to a file of a checkpoint after it was sealed.
type What string

// The kinds of changes.
const (
	Missing What = "missing"
	Changed What = "changed"
	Added   What = "added"
)

// Change is one entry that is not as it was sealed.
type Change struct {
	What What
	// Path is relative to the checkpoint, as package pathtext writes it.
	Path string
	// Text follows the path in a sentence.
	Text string
}

// Audit is Verify for a person who wants to know all of it: nothing stops at the
// first change. With deep, each file is hashed, whatever its stat identity says.
// Shapes are compared for root alone: nobody else keeps owners and attributes when
// a run is copied, and nobody else restores; and only of a handle that has some: an
// earlier program wrote none, and what it sealed is never restored. The error says that the checkpoint could not be looked at.
func Audit(ctx context.Context, cp engine.Checkpoint, deep bool) (changes []Change, hashed int, err error) {
	hashed, err = inspect(ctx, cp, deep, os.Geteuid() == 0 && cp.Handle.Shapes != nil, func(c Change) error {
		changes = append(changes, c)
		return nil
	})
	if err != nil {
		return nil, hashed, &engine.Error{Op: "verify checkpoint " + cp.Dir, Err: err}
	}
	return changes, hashed, nil
}

// inspect calls found with each entry that is not as it was sealed and stops with
// the first error that it returns. It returns how many files were hashed.
func inspect(ctx context.Context, cp engine.Checkpoint, deep, shapes bool, found func(Change) error) (hashed int, err error) {
	sealed := make(map[string]bool, len(cp.Handle.Files))
	for _, want := range cp.Handle.Files {
		if err := ctx.Err(); err != nil {
			return hashed, err
		}
		var c *Change
		if path, err := pathtext.Unquote(want.Path); err == nil && filepath.IsLocal(path) {
			var hash bool
			c, hash = differs(filepath.Join(cp.Dir, path), want, deep)
			if hash {
				hashed++
			}
		} else {
			c = &Change{Changed, want.Path, "lies outside the checkpoint"}
		}
		sealed[want.Path] = c == nil // its shape is worth a word where its content is as it was
		if c != nil {
			if err := found(*c); err != nil {
				return hashed, err
			}
		}
	}
	there := make(map[string]bool, len(cp.Handle.Shapes))
	err = entries(ctx, cp.Dir, func(rel, path string, d fs.DirEntry) error {
		there[rel] = true
		same, file := sealed[rel]
		want, entry := cp.Handle.Shapes[rel]
		switch {
		case d.Type().IsRegular() && !file, !entry && shapes:
			return found(Change{Added, rel, "was added after the checkpoint was sealed"})
		case !shapes || file && !same:
			return nil
		}
		have, err := shape(path)
		if err != nil || have == want {
			return err
		}
		return found(Change{Changed, rel, fmt.Sprintf("changed from %q to %q", want, have)})
	})
	if err != nil || !shapes {
		return hashed, err
	}
	for _, rel := range slices.Sorted(maps.Keys(cp.Handle.Shapes)) {
		if _, file := sealed[rel]; !file && !there[rel] {
			if err := found(Change{Missing, rel, "is missing"}); err != nil {
				return hashed, err
			}
		}
	}
	return hashed, nil
}

// differs says how a file is not as it was sealed, nil if it is, and whether the file was hashed for that.
func differs(path string, want bench.SealedFile, deep bool) (c *Change, hashed bool) {
	have, err := identify(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &Change{Missing, want.Path, "is missing"}, false
	case err != nil:
		return &Change{Changed, want.Path, "cannot be read: " + err.Error()}, false
	}
	have.Path, have.Sha256 = want.Path, want.Sha256
	if have == want && !deep {
		return nil, false
	}
	if have.Size != want.Size {
		return &Change{Changed, want.Path, fmt.Sprintf("changed its size from %s to %s bytes", want.Size, have.Size)}, false
	}
	again, err := seal(path)
	switch {
	case err != nil:
		return &Change{Changed, want.Path, "cannot be read: " + err.Error()}, true
	case again.Sha256 != want.Sha256:
		return &Change{Changed, want.Path, "changed its content"}, true
	}
	return nil, true
}

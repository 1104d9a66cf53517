package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/drumsbench/drumsbench/engine"
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

// Change is one file that is not as it was sealed.
type Change struct {
	What What
	// Path is relative to the checkpoint.
	Path string
	// Text follows the path in a sentence.
	Text string
}

// Audit is Verify for a person who wants to know all of it: nothing stops at the
// first change. With deep, each file is hashed, whatever its stat identity says.
// The error says that the checkpoint could not be looked at.
func Audit(ctx context.Context, cp engine.Checkpoint, deep bool) (changes []Change, hashed int, err error) {
	hashed, err = inspect(ctx, cp, deep, func(c Change) error {
		changes = append(changes, c)
		return nil
	})
	if err != nil {
		return nil, hashed, &engine.Error{Op: "verify checkpoint " + cp.Dir, Err: err}
	}
	return changes, hashed, nil
}

// inspect calls found with each file that is not as it was sealed and stops with
// the first error that it returns. It returns how many files were hashed.
func inspect(ctx context.Context, cp engine.Checkpoint, deep bool, found func(Change) error) (hashed int, err error) {
	sealed := make(map[string]bool, len(cp.Handle.Files))
	for _, want := range cp.Handle.Files {
		if err := ctx.Err(); err != nil {
			return hashed, err
		}
		var c *Change
		if filepath.IsLocal(want.Path) {
			var hash bool
			c, hash = differs(filepath.Join(cp.Dir, want.Path), want, deep)
			if hash {
				hashed++
			}
		} else {
			c = &Change{Changed, want.Path, "lies outside the checkpoint"}
		}
		sealed[want.Path] = true
		if c != nil {
			if err := found(*c); err != nil {
				return hashed, err
			}
		}
	}
	err = filepath.WalkDir(cp.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(cp.Dir, path)
		if err == nil && rel != HandleFile && !sealed[rel] {
			err = found(Change{Added, rel, "was added after the checkpoint was sealed"})
		}
		return err
	})
	return hashed, err
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

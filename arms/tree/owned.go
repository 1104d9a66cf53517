package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Owned are the things of a ledger that are not gone, by which another process
// finds a slot again: each by its identity, never by a name alone.
type Owned []bench.OwnedThing

// Refused is an error that wraps engine.ErrRefused.
func Refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s", engine.ErrRefused, fmt.Sprintf(format, args...))
}

// One is the thing of a kind at a path. It is bound to an identity.
func (o Owned) One(kind, path string) (bench.OwnedThing, error) {
	var found *bench.OwnedThing
	for i, t := range o {
		if t.Kind != kind || t.Claim.Path != path {
			continue
		}
		if found != nil {
			return *found, Refused("the ledger has two of %s %s", kind, path)
		}
		found = &o[i]
	}
	if found == nil || found.Identity == nil {
		return bench.OwnedThing{}, Refused("the ledger has no identity for %s %s", kind, path)
	}
	return *found, nil
}

// Group is the control group at a path, a scope's too.
func (o Owned) Group(path string) (cgroup.Known, error) {
	kind := "cgroup"
	if cgroup.IsScope(path) {
		kind = "scope"
	}
	t, err := o.One(kind, path)
	if err != nil {
		return cgroup.Known{}, err
	}
	return cgroup.Known{ID: t.Id, Path: path, Identity: *t.Identity}, nil
}

// Process is the identity of the process with a number in the ledger.
func (o Owned) Process(id int64) (bench.Identity, error) {
	for _, t := range o {
		if t.Id == id && t.Kind == "process" && t.Identity != nil && t.Identity.Pid > 0 && t.Identity.StartTicks != "" {
			return *t.Identity, nil
		}
	}
	return bench.Identity{}, Refused("the ledger has no process with number %d", id)
}

// Present requires that what lies at a path is the thing.
func (o Owned) Present(kind, path string) error {
	t, err := o.One(kind, path)
	if err != nil {
		return err
	}
	have, err := FileIdentity(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && have != *t.Identity {
		return Refused("%s %s is gone, or another one has its name", kind, path)
	}
	return err
}

// FileIdentity is device and inode of what lies at a path.
func FileIdentity(path string) (bench.Identity, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return bench.Identity{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return bench.Identity{Dev: bench.Int64(strconv.FormatUint(uint64(st.Dev), 10)), Ino: bench.Int64(strconv.FormatUint(st.Ino, 10))}, nil
}

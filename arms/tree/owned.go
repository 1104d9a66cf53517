package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Owned are the things of a ledger that are not gone, by which another process
// finds a slot again: each by its identity, never by a name alone.
type Owned struct {
	things []bench.OwnedThing
	// used are the numbers of those that were asked for.
	used map[int64]bool
}

// OwnedOf are the things of a list.
func OwnedOf(things []bench.OwnedThing) Owned { return Owned{things, map[int64]bool{}} }

// Of are the things of a kind.
func (o Owned) Of(kind string) (list []bench.OwnedThing) {
	for _, t := range o.things {
		if t.Kind == kind {
			list = append(list, t)
		}
	}
	return list
}

// Use notes that a thing is one of those that are taken over.
func (o Owned) Use(t bench.OwnedThing) { o.used[t.Id] = true }

// Refused is an error that wraps engine.ErrRefused.
func Refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s", engine.ErrRefused, fmt.Sprintf(format, args...))
}

// One is the thing of a kind at a path. It is bound to an identity.
func (o Owned) One(kind, path string) (bench.OwnedThing, error) {
	var found *bench.OwnedThing
	for i, t := range o.things {
		if t.Kind != kind || t.Claim.Path != path {
			continue
		}
		if found != nil {
			return *found, Refused("the ledger has two of %s %s", kind, path)
		}
		found = &o.things[i]
	}
	if found == nil || found.Identity == nil {
		return bench.OwnedThing{}, Refused("the ledger has no identity for %s %s", kind, path)
	}
	o.Use(*found)
	return *found, nil
}

// image are the things that the image mounted at dir is made of: mount, device, the
// program that shows it, and what lies between work and dir.
func (o Owned) image(work, dir string) (list []bench.OwnedThing) {
	top := dir
	for filepath.Dir(top) != work && filepath.Dir(top) != top {
		top = filepath.Dir(top)
	}
	for _, t := range o.things {
		switch t.Kind {
		case "loop", "export":
			list = append(list, t)
		case "mount", "directory", "file":
			if t.Claim.Path == top || strings.HasPrefix(t.Claim.Path, top+"/") {
				list = append(list, t)
			}
		}
	}
	return list
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
	for _, t := range o.things {
		if t.Id == id && t.Kind == "process" && t.Identity != nil && t.Identity.Pid > 0 && t.Identity.StartTicks != "" {
			o.Use(t)
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

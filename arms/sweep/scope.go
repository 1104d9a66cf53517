package sweep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/systemd"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
)

// units is the host's systemd; tests have one of their own.
var units cgroup.Units = systemd.Manager{}

// scope has systemd take away a scope that runc had it make. endProcesses has
// ended what was in it, and runc before that; what runc had asked for and systemd
// not done yet fails for want of a living process, and is forgotten.
//
// Where the scope's group is gone systemd is asked all the same: it may know a
// unit without one. A group of its name with another identity is left alone, and
// so is the unit, since that is whose group it is.
func (s *sweeper) scope(ctx context.Context, o record.Owned) Thing {
	path := o.Claim.Path
	if unit := filepath.Base(path); !cgroup.IsScope(path) || !s.claim.named(unit) {
		return failed(fmt.Errorf("%w: %q is no scope that bears the run's claim %s", engine.ErrUnknown, path, s.claim.id), "this program writes no such line: look at the ledger")
	}
	g, gone, err := s.findGroup(o)
	switch {
	case err != nil:
		return failed(err, "mount the hierarchy where the run had it")
	case g == nil && gone.Outcome != Absent:
		return gone
	case s.DryRun:
		if g == nil {
			return gone
		}
		t := Thing{Outcome: Planned}
		if pids, err := pidsBelow(g.path); err == nil && len(pids) > 0 {
			t.Reason = "with " + processes(len(pids))
		}
		return t
	}
	end := s.ended[o.ID]
	if end.err != nil {
		return failed(end.err, "")
	}
	if err := units.Stop(ctx, filepath.Base(path)); err != nil {
		return failed(err, "systemctl stop "+filepath.Base(path))
	}
	// Its group goes a moment after the unit, or with what is dead in it.
	err = poll(ctx, func() (bool, error) {
		_, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if err = cgroup.RemoveTree(path); errors.Is(err, unix.EBUSY) {
			err = nil
		}
		return false, err
	})
	if err != nil {
		return failed(err, "")
	}
	if g == nil && end.count == 0 {
		return gone
	}
	t := Thing{Outcome: Taken}
	if end.count > 0 {
		t.Reason = "with " + processes(end.count)
	}
	return t
}

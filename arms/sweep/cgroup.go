package sweep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
)

// group is a control group of the run's that exists.
type group struct {
	path string
	// v2 groups can be killed as a whole.
	v2 bool
}

// findGroup looks for the control group that the ledger means. It returns nil
// and why if it is not there: Absent or Foreign.
func (s *sweeper) findGroup(o record.Owned) (*group, Thing, error) {
	path := o.Claim.Path
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if errors.Is(err, unix.ENOENT) {
		// Gone only where its hierarchy can be seen.
		if _, err := cgroupMagic(nearest(path)); err != nil {
			return nil, Thing{}, err
		}
		return nil, Thing{Outcome: Absent}, nil
	}
	if err != nil {
		return nil, Thing{}, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	magic, err := cgroupMagic(path)
	if err != nil {
		return nil, Thing{}, err
	}
	id, known, err := bound(o)
	if err != nil {
		return nil, Thing{}, err
	}
	// The inode of a control group is never used again within a boot (kernfs ids have 64 bits).
	if known && (id.dev != uint64(st.Dev) || id.ino != st.Ino) {
		return nil, Thing{Outcome: Foreign, Reason: "another control group has its name"}, nil
	}
	return &group{path: path, v2: magic == unix.CGROUP2_SUPER_MAGIC}, Thing{}, nil
}

// nearest is the first directory above path that exists.
func nearest(path string) string {
	for path != "/" {
		path = filepath.Dir(path)
		if _, err := os.Lstat(path); err == nil {
			return path
		}
	}
	return path
}

// cgroupMagic requires that a directory is a control group.
func cgroupMagic(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	magic := int64(st.Type)
	if magic != unix.CGROUP2_SUPER_MAGIC && magic != unix.CGROUP_SUPER_MAGIC {
		return 0, fmt.Errorf("%w: %s lies in no mounted hierarchy of control groups", engine.ErrUnknown, dir)
	}
	return magic, nil
}

// cgroup removes a control group and those below it, which the run made or its slots did.
func (s *sweeper) cgroup(ctx context.Context, o record.Owned) Thing {
	g, gone, err := s.findGroup(o)
	switch {
	case err != nil:
		return failed(err, "mount the hierarchy where the run had it")
	case g == nil:
		return gone
	case s.DryRun:
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
	err = poll(ctx, func() (bool, error) {
		err := cgroup.RemoveTree(g.path)
		// The kernel refuses while dead tasks and, on v1, charged memory still hang on the group.
		if errors.Is(err, unix.EBUSY) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		if pids, perr := pidsBelow(g.path); perr == nil && len(pids) > 0 {
			return failed(fmt.Errorf("it holds processes that are in no ownership group of the run: %v", pids), "end them, or move them to another group, and sweep again")
		}
		return failed(err, "")
	}
	if _, err := os.Lstat(g.path); !errors.Is(err, fs.ErrNotExist) {
		return failed(fmt.Errorf("it is still there: %v", err), "")
	}
	t := Thing{Outcome: Taken}
	if end.count > 0 {
		t.Reason = "with " + processes(end.count)
	}
	return t
}

func processes(n int) string {
	if n == 1 {
		return "1 process"
	}
	return strconv.Itoa(n) + " processes"
}

// pidsBelow lists the processes of a group and of every group below it; 0 is
// one that our pid namespace cannot name. A group that goes meanwhile is empty.
func pidsBelow(path string) ([]int, error) {
	pids, err := pidsIn(path)
	if err != nil {
		return nil, err
	}
	below, err := cgroup.Children(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, b := range below {
		more, err := pidsBelow(b)
		if err != nil {
			return nil, err
		}
		pids = append(pids, more...)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// pidsIn are those in a group itself; none if it is not there.
func pidsIn(path string) ([]int, error) {
	data, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) { // a threaded group lists none
		return nil, err
	}
	var pids []int
	for _, f := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("%s/cgroup.procs holds %q", path, f)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

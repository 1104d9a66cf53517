package netprobe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	prom "github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// madeGroup is a control group that runc makes.
type madeGroup struct {
	path string
	id   int64
}

// runcGroups are the control groups that runc makes for the relative cgroupsPath
// name, one for each v1 hierarchy: it puts them below the group that we are in
// ourselves (libcontainer/cgroups, cgroupfs driver). On a unified host there are
// none: there the group lies in the ownership group, beside runc's own.
func runcGroups(name string, own []prom.Cgroup, mounts []*mountinfo.Info) (paths []string, err error) {
	for _, g := range own {
		if g.HierarchyID == 0 { // v2
			continue
		}
		found := false
		for _, m := range mounts {
			if m.FSType != "cgroup" || !sharesOne(strings.Split(m.VFSOptions, ","), g.Controllers) {
				continue
			}
			rel, err := filepath.Rel(m.Root, g.Path)
			if err != nil || strings.HasPrefix(rel, "..") {
				continue
			}
			paths, found = append(paths, filepath.Join(m.Mountpoint, rel, name)), true
			break
		}
		if !found {
			return nil, fmt.Errorf("%w: no mount of the control groups %s leads to %s", engine.ErrUnknown, strings.Join(g.Controllers, ","), g.Path)
		}
	}
	return paths, nil
}

func sharesOne(options, controllers []string) bool {
	return slices.ContainsFunc(controllers, func(c string) bool { return slices.Contains(options, c) })
}

// container is the container's name and cgroupsPath.
func (s *site) container() string { return "drums-" + s.p.ws.ID + "-" + s.name }

// intendGroups writes into the ledger which groups runc is about to make.
func (s *site) intendGroups() error {
	self, err := prom.Self()
	if err != nil {
		return err
	}
	own, err := self.Cgroups()
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return err
	}
	paths, err := runcGroups(s.container(), own, mounts)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return &engine.Error{Op: "make control groups", Err: fmt.Errorf("%w: %s exists already and is not ours", engine.ErrRefused, path)}
		}
		id, err := s.p.ws.Ledger.Intend("cgroup", bench.Claim{Path: path, Note: "made by runc for the network probe"})
		if err != nil {
			return err
		}
		s.groups = append(s.groups, &madeGroup{path, id})
	}
	return nil
}

// bindGroups writes down which groups runc made. The container's first process
// must be in no others.
func (s *site) bindGroups(pid int) error {
	var left []*madeGroup
	for _, g := range s.groups {
		id, err := fileIdentity(g.path)
		if errors.Is(err, fs.ErrNotExist) { // a hierarchy that this runc leaves alone
			if err := s.p.ws.Ledger.Gone(g.id); err != nil {
				return err
			}
			continue
		}
		if err == nil {
			err = s.p.ws.Ledger.Bind(g.id, id)
		}
		left = append(left, g)
		if err != nil {
			return err
		}
	}
	s.groups = left
	pids, err := s.group.Pids()
	if err != nil {
		return err
	}
	if !slices.Contains(pids, pid) {
		return fmt.Errorf("%w: pid %d is not in the probe's group, which holds %v", engine.ErrUnknown, pid, pids)
	}
	proc, err := prom.NewProc(pid)
	if err != nil {
		return err
	}
	theirs, err := proc.Cgroups()
	if err != nil {
		return err
	}
	for _, g := range theirs {
		if g.HierarchyID != 0 && strings.Contains(g.Path, s.p.ws.ID) && !strings.HasSuffix(g.Path, "/"+s.container()) {
			return fmt.Errorf("%w: the container is in the control group %s, which is not where it was told to be", engine.ErrUnknown, g.Path)
		}
	}
	return nil
}

// removeGroups takes away what runc made and is still there, and reads the
// absence back. The kernel refuses while dead tasks hang on a group.
func (s *site) removeGroups(ctx context.Context) error {
	for len(s.groups) > 0 {
		g := s.groups[len(s.groups)-1]
		for {
			err := unix.Rmdir(g.path)
			if errors.Is(err, unix.ENOENT) {
				break
			}
			if err != nil && !errors.Is(err, unix.EBUSY) {
				return &engine.Error{Op: "remove control group", Err: &os.PathError{Op: "rmdir", Path: g.path, Err: err}}
			}
			select {
			case <-ctx.Done():
				return &engine.Error{Op: "remove control group", Err: fmt.Errorf("%s is busy: %w", g.path, context.Cause(ctx)), Hint: "drumsbench sweep"}
			case <-time.After(2 * time.Millisecond):
			}
		}
		if err := s.p.ws.Ledger.Gone(g.id); err != nil {
			return err
		}
		s.groups = s.groups[:len(s.groups)-1]
	}
	return nil
}

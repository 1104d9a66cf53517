package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// node is one cgroup directory that we made, with the identity it had then.
// The inode of a cgroup is never used again within a boot (kernfs ids are 64
// bits wide), so that an equal device and inode is the very group.
type node struct {
	path     string
	dev, ino uint64
	ledger   engine.Ledger
	id       int64
	// leaf says that tasks go into a group of their own below this one (Leaf).
	leaf bool
	// mkdir is os.Mkdir, or what stands for the kernel in a test of v2.
	mkdir func(string, fs.FileMode) error
}

// makeNode owns and makes a cgroup directory. One that exists already is not ours: ErrRefused.
func makeNode(l engine.Ledger, mkdir func(string, fs.FileMode) error, path, note string) (*node, error) {
	n := &node{path: path, ledger: l, mkdir: mkdir}
	var err error
	n.id, err = engine.Own(l, "cgroup", bench.Claim{Path: path, Note: note}, func() (bench.Identity, error) {
		if err := mkdir(path, 0o755); err != nil {
			if errors.Is(err, fs.ErrExist) {
				return bench.Identity{}, fmt.Errorf("%w: %s exists already and is not ours", engine.ErrRefused, path)
			}
			return bench.Identity{}, err
		}
		var err error
		if n.dev, n.ino, err = identify(path); err != nil {
			return bench.Identity{}, err
		}
		return bench.Identity{
			Dev: bench.Int64(strconv.FormatUint(n.dev, 10)),
			Ino: bench.Int64(strconv.FormatUint(n.ino, 10)),
		}, nil
	})
	if err != nil {
		if n.ino != 0 { // made, but the ledger did not take its identity
			_ = os.Remove(path)
		}
		return nil, &engine.Error{Op: "make cgroup", Err: err}
	}
	return n, nil
}

func identify(path string) (dev, ino uint64, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, 0, err
	}
	st := info.Sys().(*syscall.Stat_t)
	return uint64(st.Dev), st.Ino, nil
}

// present says whether the group that we made still is where we made it.
func (n *node) present() (bool, error) {
	dev, ino, err := identify(n.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return dev == n.dev && ino == n.ino, nil
}

// remove takes the group and all groups below it away and proves it. A
// directory of the same name with another identity is not ours and stays.
// EBUSY is tried again until ctx ends: the kernel refuses while dead tasks and,
// on v1, charged memory still hang on the group.
func (n *node) remove(ctx context.Context) error {
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		ours, err := n.present()
		if err != nil {
			return &engine.Error{Op: "remove cgroup", Err: err}
		}
		if !ours {
			return n.ledger.Gone(n.id)
		}
		err = RemoveTree(n.path)
		if err == nil {
			continue
		}
		if !errors.Is(err, syscall.EBUSY) {
			return &engine.Error{Op: "remove cgroup", Err: err}
		}
		select {
		case <-ctx.Done():
			pids, _ := pidsBelow(n.path)
			return &engine.Error{
				Op:   "remove cgroup",
				Err:  fmt.Errorf("%w: %s is busy, it holds pids %v: %w", engine.ErrDeadline, n.path, pids, ctx.Err()),
				Hint: "end the processes in the group, then run sweep",
			}
		case <-time.After(wait):
		}
	}
}

// RemoveTree removes the groups below a path, the deepest first, then itself; what
// is gone already is removed. It does not wait: syscall.EBUSY while something hangs
// on one of them.
func RemoveTree(path string) error {
	children, err := Children(path)
	for _, c := range children {
		if err := RemoveTree(c); err != nil {
			return err
		}
	}
	if err == nil {
		err = syscall.Rmdir(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "rmdir", Path: path, Err: err}
	}
	return nil
}

// Children are the paths of the groups in a group.
func Children(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, filepath.Join(path, e.Name()))
		}
	}
	return dirs, nil
}

// pidsBelow lists the processes of path and of every group below it.
func pidsBelow(path string) ([]int, error) {
	data, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	pids, err := parsePids(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	children, err := Children(path)
	if err != nil {
		return nil, err
	}
	for _, c := range children {
		more, err := pidsBelow(c)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		pids = append(pids, more...)
	}
	return pids, nil
}

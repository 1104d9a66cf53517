package cgroup

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/drumsbench/drumsbench/engine"
)

// The groups that a unified limits group is parted into.
const (
	TreePart  = "tree"
	toolsPart = "tools"
)

// Parted is a unified limits group whose processes are in a group of their own below
// it, so that they can be frozen apart from a tool that works on them under the same
// bounds: a frozen group takes all groups below it along. Neither part has a
// controller, so that the kernel counts both where the bounds are.
type Parted struct {
	limits, tree string
	tools        *node
}

// Part moves the processes of unified limits into a group of their own, beside one
// for tools. Both go with the limits, which are owned. What somebody left there who
// was ended meanwhile is taken on.
func (l *Limits) Part(ctx context.Context) (_ *Parted, err error) {
	home := l.nodes[0]
	p := &Parted{limits: home.path, tree: filepath.Join(home.path, TreePart), tools: &node{path: filepath.Join(home.path, toolsPart)}}
	defer func() {
		if err != nil {
			err = &engine.Error{Op: "part limits", Err: errors.Join(err, p.Join(context.WithoutCancel(ctx)))}
		}
	}()
	if err := home.mkdir(p.tree, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	// Whatever is born into a group that was ever killed dies at once (Group.Kill).
	if err := RemoveTree(p.tools.path); err != nil {
		return nil, err
	}
	if err := home.mkdir(p.tools.path, 0o755); err != nil {
		return nil, err
	}
	if p.tools.dev, p.tools.ino, err = identify(p.tools.path); err != nil {
		return nil, err
	}
	return p, movePids(p.limits, p.tree)
}

// Tree is the path of the group that holds the limits' processes.
func (p *Parted) Tree() string { return p.tree }

// Tools is the path of the group for tools.
func (p *Parted) Tools() string { return p.tools.path }

// Join ends what is left of the tools, moves the processes back and takes both
// groups away. Limits that have gone meanwhile have nothing to join.
func (p *Parted) Join(ctx context.Context) error {
	const op = "join limits"
	var errs []error
	if _, err := kill(ctx, p.tools); err != nil {
		errs = append(errs, err)
	}
	for _, dir := range []string{p.tools.path, p.tree} {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if dir == p.tree {
			if err := movePids(p.tree, p.limits); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENODEV) {
				errs = append(errs, err)
				continue
			}
		}
		errs = append(errs, removeWhenFree(ctx, dir))
	}
	if err := errors.Join(errs...); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	return nil
}

// removeWhenFree is RemoveTree that waits for what is on its way out, until ctx ends.
func removeWhenFree(ctx context.Context, dir string) error {
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		err := RemoveTree(dir)
		if !errors.Is(err, syscall.EBUSY) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

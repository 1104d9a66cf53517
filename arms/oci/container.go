package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	gorunc "github.com/containerd/go-runc"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/systemd"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
)

// Container is one container of runc's: where it and the tools that work on it
// lie on the host. Whoever uses it makes folder and groups, ledger first.
type Container struct {
	ID   string
	Runc Tool
	// CRIU is what runc is to use.
	CRIU criu.Tool
	// State is the state directory. Dir is the container's own folder, below Work;
	// Run is seen by runc as well.
	State, Work, Run, Dir string
	// Group is the part of the ownership cgroup that the container's processes are
	// born in, Helpers that of the runc that does not make some.
	Group, Helpers *cgroup.Group
	// Limits are the container's groups in every hierarchy that runc sees: it makes
	// none itself. Where they are a scope, it has systemd make that, and Group is it.
	Limits *cgroup.Limits
}

func (c Container) bundle() string   { return filepath.Join(c.Dir, "bundle") }
func (c Container) home() string     { return filepath.Join(c.Dir, "home") }
func (c Container) runcRoot() string { return filepath.Join(c.Dir, "runc") }
func (c Container) runcLog() string  { return filepath.Join(c.Dir, "runc.log") }
func (c Container) pidFile() string  { return filepath.Join(c.Dir, "pid") }
func (c Container) criuConf() string { return filepath.Join(c.Dir, "criu.conf") }

// Folders are those that must be there before runc is called.
func (c Container) Folders() []string { return []string{c.home(), c.runcRoot()} }

// scoped says that systemd makes the container's control group.
func (c Container) scoped() bool { return c.Limits != nil && c.Limits.Scope() != nil }

// Bound adds to new limits the group without which runc does not work.
func Bound(l *cgroup.Limits, owner *cgroup.Owner) error { return l.Also(owner, "devices") }

// birth is the cgroup that a runc which makes processes is born in, with whatever
// it starts: the container's part of the ownership cgroup. Where limits live on v2,
// a group with processes cannot bound others below it, and runc moves what it makes
// into the limits itself, or has systemd do it. Asked for anew each time: a kill renews the group.
func (c Container) birth() int {
	if c.Limits.Unified() {
		return c.Helpers.FD()
	}
	return c.Group.FD()
}

// CgroupsPath is the container's path, relative as runc takes it: on v1 the leaf of
// the limits', relative to runc's own group, which is ours, on v2 to the group that runc's own lies in; of a scope
// what names it to systemd.
func (c Container) CgroupsPath() string {
	switch {
	case c.scoped():
		return c.Limits.CgroupsPath()
	case c.Limits.Unified():
		return c.Group.Name() + "/" + c.Limits.Name()
	}
	return c.own()
}

// Write writes what runc reads, and the settings of the criu that it starts.
func (c Container) Write(spec *specs.Spec, criuSettings string) error {
	if spec.Annotations == nil {
		spec.Annotations = map[string]string{}
	}
	spec.Annotations[criuConfig] = c.criuConf()
	if c.scoped() {
		// systemd is to forget a scope that it could not start.
		spec.Annotations["org.systemd.property.CollectMode"] = "'inactive-or-failed'"
	}
	b, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.bundle(), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.bundle(), configFile), append(b, '\n'), 0o600); err != nil {
		return err
	}
	return c.Configure(criuSettings)
}

// Configure writes criu's settings for the next operation.
func (c Container) Configure(criuSettings string) error {
	return os.WriteFile(c.criuConf(), []byte(criuSettings), 0o600)
}

// runc is the program with its state in the container's folder.
func (c Container) runc() *gorunc.Runc {
	return &gorunc.Runc{Command: c.Runc.Path, Root: c.runcRoot(), Log: c.runcLog(), LogFormat: gorunc.Text, SystemdCgroup: c.scoped()}
}

// env is the whole environment of runc, and with it of the criu that it starts,
// which it finds by PATH in dir. In the home folder there are no settings that criu could read.
func (c Container) env(dir string) []string {
	env := criu.Env()
	for i, e := range env {
		if rest, ok := strings.CutPrefix(e, "PATH="); ok {
			env[i] = "PATH=" + dir + ":" + rest
		}
	}
	return append(env, "HOME="+c.home())
}

// above are the groups that hold the container's and are not ours to change.
func (c Container) above() []string {
	owner := filepath.Dir(c.Helpers.Path())
	dirs := []string{filepath.Dir(owner)}
	if c.scoped() {
		dirs = append(dirs, filepath.Dir(c.Group.Path()))
	}
	return dirs
}

// stage runs fn on a thread where runc and criu find what they need and nothing
// else: private mounts (tree.BesideCRIU), and of the host's cgroups only the
// hierarchies that a slot is bounded by.
func (c Container) stage(keep []string, fn func() error) error {
	keep = append([]string{c.Work, c.Run, c.Runc.Path}, keep...)
	if c.scoped() {
		keep = append(keep, systemd.Reached()...)
	}
	return tree.BesideCRIU(c.CRIU, c.State, keep, func() error {
		if err := hideCgroups(c.above()...); err != nil {
			return err
		}
		return fn()
	})
}

// Start has runc make the container's tree, once before, which may be nil, has
// mounted what it stands on, and returns its first process. That is an orphan once
// runc has ended, and a child of ours from then on.
func (c Container) Start(ctx context.Context, before func() error) (pid int, err error) {
	return c.making(ctx, nil, func(ctx context.Context, io gorunc.IO) error {
		if before != nil {
			if err := before(); err != nil {
				return err
			}
		}
		_, err := c.runc().Run(ctx, c.ID, c.bundle(), &gorunc.CreateOpts{IO: io, PidFile: c.pidFile(), Detach: true})
		return over(ctx, "run container", err)
	})
}

// Restore is Start from the images in a folder; work is where criu's log goes.
func (c Container) Restore(ctx context.Context, evidence engine.EvidenceStore, images, work string, locks bool, before func() error) (pid int, err error) {
	return c.making(ctx, []string{images}, func(ctx context.Context, io gorunc.IO) error {
		if before != nil {
			if err := before(); err != nil {
				return err
			}
		}
		defer engine.StartSpan(ctx, "criu")()
		_, err := c.runc().Restore(ctx, c.ID, c.bundle(), &gorunc.RestoreOpts{
			CheckpointOpts: gorunc.CheckpointOpts{ImagePath: images, WorkDir: work, FileLocks: locks},
			IO:             io, Detach: true, NoSubreaper: true, PidFile: c.pidFile(),
		})
		if err != nil {
			return explained(ctx, evidence, filepath.Join(work, "restore.log"), over(ctx, "restore container", err))
		}
		return nil
	})
}

// making has f make the container's tree with runc.
func (c Container) making(ctx context.Context, keep []string, f func(context.Context, gorunc.IO) error) (pid int, err error) {
	release, err := adoptOrphans()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, release()) }()
	io, err := gorunc.NewNullIO()
	if err != nil {
		return 0, err
	}
	defer io.Close()
	if err := os.RemoveAll(c.pidFile()); err != nil {
		return 0, err
	}
	err = c.stage(keep, func() error {
		ctx, done := call{groupFD: c.birth(), env: c.env(filepath.Dir(c.CRIU.Path))}.with(ctx)
		defer done()
		return f(ctx, io)
	})
	if err != nil {
		// What was begun ends while its orphans are still ours to wait for.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), tree.UndoTime)
		defer cancel()
		err = errors.Join(err, c.Helpers.Kill(undo), c.Group.Kill(undo), tree.ReapStrays(undo, c.Helpers, c.Group))
		if said := c.said(); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return 0, err
	}
	if c.scoped() {
		if err := c.Limits.Made(); err != nil {
			return 0, err
		}
	}
	text, err := os.ReadFile(c.pidFile())
	if err != nil {
		return 0, err
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		return 0, fmt.Errorf("read %s: %w", c.pidFile(), err)
	}
	// pid is what runc wrote down; that it is the container's is found out by the group that it is in.
	inside, err := c.Group.Pids()
	if err != nil {
		return 0, err
	}
	if !slices.Contains(inside, pid) {
		return 0, fmt.Errorf("%w: pid %d, which runc names, is not in the container's control group %s", engine.ErrUnknown, pid, c.Group.Path())
	}
	return pid, nil
}

// Checkpoint has runc dump the tree into a folder; work is where criu's log goes.
// That it returns nil is no proof that the tree has ended. The images are whole
// then, which Dumped finds out.
//
// criu works under the container's limits, and its work counts there: on v1 runc is
// born in them, and what it starts with it. On v2 runc has criu freeze the container's
// group, and with it a criu that is inside, and may have systemd end everything that is
// left in it: there the tree is in a part of the limits of its own meanwhile, criu is
// told to freeze that one, and enters another.
func (c Container) Checkpoint(ctx context.Context, evidence engine.EvidenceStore, images, work string, locks bool) (err error) {
	env := c.env(filepath.Dir(c.CRIU.Path))
	if c.Limits.Unified() {
		parted, perr := c.Limits.Part(ctx)
		if perr != nil {
			return perr
		}
		defer func() {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), tree.UndoTime)
			defer cancel()
			err = errors.Join(err, parted.Join(undo))
		}()
		if err := c.tell("freeze-cgroup " + parted.Tree()); err != nil {
			return err
		}
		dir, err := c.entering(parted.Tools())
		if err != nil {
			return err
		}
		env = c.env(dir)
	}
	err = c.stage([]string{images, work}, func() error {
		leave, err := c.Limits.JoinThread()
		if err != nil {
			return err
		}
		ctx, done := call{groupFD: c.Helpers.FD(), env: env, started: leave}.with(ctx)
		defer done()
		err = over(ctx, "checkpoint container", c.runc().Checkpoint(ctx, c.ID, &gorunc.CheckpointOpts{ImagePath: images, WorkDir: work, FileLocks: locks}))
		return errors.Join(err, leave())
	})
	if err == nil {
		return nil
	}
	// No criu may still hold the tree when it is let run.
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), tree.UndoTime)
	defer cancel()
	return errors.Join(explained(ctx, evidence, filepath.Join(work, "dump.log"), err), c.Helpers.Kill(undo))
}

// tell adds a line to criu's settings for the next operation.
func (c Container) tell(line string) error {
	f, err := os.OpenFile(c.criuConf(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

// entering makes a criu that enters a control group of v2 before its first step, and returns its folder.
func (c Container) entering(group string) (dir string, err error) {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	dir = filepath.Join(c.Dir, "entering")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	script := "#!/bin/sh\necho $$ >" + quote(filepath.Join(group, "cgroup.procs")) + " && exec " + quote(c.CRIU.Path) + ` "$@"` + "\n"
	// A program that anything has open for writing does not start, a child that is being forked meanwhile included.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return dir, os.WriteFile(filepath.Join(dir, "criu"), []byte(script), 0o700)
}

// Dumped requires that images are whole, and that they keep settings of the
// container's own control group only: whatever they keep a restore may write to
// the host.
func (c Container) Dumped(images string) error {
	img := criu.OpenImages(images)
	if err := img.Complete(); err != nil {
		return err
	}
	return harmless(img, c.own())
}

// own is the control group that the container's tree is in when it is dumped, below those that it is not to touch.
func (c Container) own() string {
	if c.Limits.Unified() {
		return c.Limits.Name() + "/" + cgroup.TreePart
	}
	return c.Limits.Name() + "/" + cgroup.Leaf
}

func harmless(img criu.Images, own string) error {
	groups, err := img.ControlGroups()
	if err != nil {
		return err
	}
	for _, g := range groups {
		if !slices.Equal(g.Controllers, []string{dumpedController}) || !strings.HasSuffix("/"+g.Path, "/"+own) {
			return &engine.Error{Op: "look at images", Err: fmt.Errorf("%w: they keep settings of the control group %s of %v", engine.ErrRefused, g.Path, g.Controllers),
				Hint: "a restore would write them to the host; another runc or criu may understand cgroup-dump-controller differently"}
		}
	}
	return nil
}

// Delete has runc delete a container whose tree has ended, if it knows of it.
func (c Container) Delete(ctx context.Context) error {
	if _, err := os.Lstat(filepath.Join(c.runcRoot(), c.ID)); err != nil {
		return nil
	}
	defer engine.StartSpan(ctx, "delete")()
	return tree.Apart(0, func() error {
		if err := hideCgroups(c.above()...); err != nil {
			return err
		}
		ctx, done := call{groupFD: c.Helpers.FD(), env: c.env(filepath.Dir(c.CRIU.Path))}.with(ctx)
		defer done()
		return c.runc().Delete(ctx, c.ID, nil)
	})
}

// said is the end of what runc wrote to its log.
func (c Container) said() string {
	b, err := os.ReadFile(c.runcLog())
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b[max(0, len(b)-600):]))
}

// explained is what runc says of a criu that failed, with what criu itself said,
// whose log is kept.
func explained(ctx context.Context, evidence engine.EvidenceStore, log string, err error) error {
	if ctx.Err() != nil {
		return err
	}
	f := criu.Explain(log)
	e := &engine.Error{Op: "criu", Err: err, Hint: f.Hint()}
	if len(f.Lines) > 0 {
		e.Err = fmt.Errorf("%w: %w", f, err)
	}
	b, rerr := os.ReadFile(log)
	if rerr != nil {
		return e
	}
	ev, perr := evidence.Put("criu-"+filepath.Base(log), b)
	if perr != nil {
		return fmt.Errorf("%w; and its log is lost: %w", e, perr)
	}
	e.Log = evidence.Path(ev)
	return e
}

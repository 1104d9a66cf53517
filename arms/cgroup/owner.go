package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/go-multierror"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/systemd"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Owner is the ownership cgroup of a run. It holds no process itself: on v2 a
// group with processes cannot hand controllers to its children. Safe for
// concurrent use.
type Owner struct {
	ws   *engine.Workspace
	at   layout
	node *node
	// privateMount is the ledger number of our own cgroup2 mount on a host that mounts none; -1 without one.
	privateMount int64

	mu     sync.Mutex
	groups []*Group
	limits map[string]int // limits made so far, by slot
	killed bool
	stand  *stand
	// delegates says that we switched controllers on for the children of our own current
	// group; before is what it handed on until then.
	delegates bool
	before    []string
	// setControl and mkdir are the kernel's, but for tests of v2 on a tree without one.
	setControl func(dir, change string) error
	mkdir      func(string, fs.FileMode) error
	// units is the host's systemd.
	units Units
}

// OpenOwner makes the ownership cgroup drums-<ws.ID> on the v2 hierarchy below
// our own current group. A host without a cgroup2 mount (pure v1) gets a
// private one below ws.Work, since the hierarchy itself always exists. A group
// of that name that exists already is ErrRefused, and so is one below a group
// that systemd keeps for itself.
func OpenOwner(ws *engine.Workspace) (*Owner, error) {
	at, err := discover()
	if err != nil {
		return nil, err
	}
	return openOwner(ws, at, os.Mkdir)
}

func openOwner(ws *engine.Workspace, at layout, mkdir func(string, fs.FileMode) error) (*Owner, error) {
	o := &Owner{
		ws: ws, at: at, privateMount: -1,
		limits:     map[string]int{},
		setControl: func(dir, change string) error { return write(filepath.Join(dir, "cgroup.subtree_control"), change) },
		mkdir:      mkdir,
		units:      systemd.Manager{},
	}
	if o.at.v2 == nil {
		if err := o.mountPrivate(); err != nil {
			return nil, err
		}
	}
	if err := o.at.delegated(); err != nil {
		return nil, errors.Join(err, o.unmountPrivate())
	}
	var err error
	o.node, err = makeNode(ws.Ledger, mkdir, filepath.Join(o.at.v2.dir(), "drums-"+ws.ID), "ownership of run "+ws.ID)
	if err != nil {
		return nil, errors.Join(err, o.unmountPrivate())
	}
	return o, nil
}

func (o *Owner) privatePoint() string { return filepath.Join(o.ws.Work, "cgroup2") }

func (o *Owner) mountPrivate() error {
	point := o.privatePoint()
	if err := os.MkdirAll(point, 0o700); err != nil {
		return &engine.Error{Op: "mount cgroup2", Err: err}
	}
	id, err := engine.Own(o.ws.Ledger, "mount", bench.Claim{Path: point, Note: "cgroup2"}, func() (bench.Identity, error) {
		if err := unix.Mount("cgroup2", point, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return bench.Identity{}, err
		}
		var st unix.Statfs_t
		if err := unix.Statfs(point, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
			return bench.Identity{}, fmt.Errorf("%s is not cgroup2 after the mount: %w", point, errors.Join(err, engine.ErrUnknown))
		}
		dev, ino, err := identify(point)
		return bench.Identity{
			Dev: bench.Int64(strconv.FormatUint(dev, 10)),
			Ino: bench.Int64(strconv.FormatUint(ino, 10)),
		}, err
	})
	if err != nil {
		return &engine.Error{Op: "mount cgroup2", Err: err, Hint: "the kernel needs CONFIG_CGROUPS and the engine root"}
	}
	o.privateMount = id
	o.at.v2 = &hierarchy{mount: point, rel: o.at.v2path, path: o.at.v2path}
	if _, err := os.Lstat(o.at.v2.dir()); err != nil {
		return errors.Join(&engine.Error{Op: "find own cgroup", Err: err}, o.unmountPrivate())
	}
	return nil
}

func (o *Owner) unmountPrivate() error {
	if o.privateMount < 0 {
		return nil
	}
	if err := unix.Unmount(o.privatePoint(), unix.UMOUNT_NOFOLLOW); err != nil {
		return &engine.Error{Op: "unmount cgroup2", Err: err}
	}
	// An emptied mount point can be removed, a busy one cannot: the read-back of the absence.
	if err := os.Remove(o.privatePoint()); err != nil {
		return &engine.Error{Op: "unmount cgroup2", Err: err}
	}
	id := o.privateMount
	o.privateMount = -1
	return o.ws.Ledger.Gone(id)
}

// Path of the ownership cgroup's directory.
func (o *Owner) Path() string { return o.node.path }

var groupName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`)

// Group returns the child of that name and makes it if this owner has none.
func (o *Owner) Group(name string) (*Group, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.group(name)
}

func (o *Owner) group(name string) (*Group, error) {
	for _, g := range o.groups {
		if g.name == name {
			return g, nil
		}
	}
	if !groupName.MatchString(name) {
		return nil, &engine.Error{Op: "make cgroup", Err: fmt.Errorf("%w: group name %q", engine.ErrUsage, name)}
	}
	if o.killed {
		return nil, &engine.Error{Op: "make cgroup", Err: fmt.Errorf("%w: the owner was killed and can only be removed", engine.ErrUsage)}
	}
	g := &Group{owner: o, name: name, path: filepath.Join(o.node.path, name)}
	if err := g.make(); err != nil {
		return nil, err
	}
	o.groups = append(o.groups, g)
	return g, nil
}

func (o *Owner) forget(g *Group) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range o.groups {
		if o.groups[i] == g {
			o.groups = append(o.groups[:i], o.groups[i+1:]...)
			return
		}
	}
}

// Kill ends every process below the owner, in its groups and in v2 limits, and
// proves it. Afterwards the owner can only be removed: see Group.Kill.
func (o *Owner) Kill(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.killed = true
	_, err := kill(ctx, o.node)
	return err
}

// Remove takes the groups away, the last first, then the owner, and undoes
// what was changed in our own current group. It removes nothing that still
// holds processes: kill first. Idempotent.
func (o *Owner) Remove(ctx context.Context) error {
	o.mu.Lock()
	groups := append([]*Group(nil), o.groups...)
	o.mu.Unlock()
	var errs *multierror.Error
	for i := len(groups) - 1; i >= 0; i-- {
		errs = multierror.Append(errs, groups[i].Remove(ctx))
	}
	if err := errs.ErrorOrNil(); err != nil {
		return err
	}
	if err := o.node.remove(ctx); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.undelegate(ctx); err != nil {
		return err
	}
	return o.unmountPrivate()
}

func parsePids(data []byte) ([]int, error) {
	var pids []int
	for _, f := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("cgroup.procs holds %q", f)
		}
		// 0 is a process that our pid namespace cannot name.
		pids = append(pids, pid)
	}
	return pids, nil
}

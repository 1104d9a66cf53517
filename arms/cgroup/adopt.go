package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/arms/systemd"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Known is a group that another process made for the same run: its number in
// the ledger, its path, and the identity that it was bound with.
type Known struct {
	ID       int64
	Path     string
	Identity bench.Identity
}

// AdoptOwner takes over the ownership cgroup of a run that another process
// began. Nothing is made. limits are the limits made so far, by slot: names go
// on from there. ErrRefused if the group is not there, or is another one.
func AdoptOwner(ws *engine.Workspace, k Known, limits map[string]int) (*Owner, error) {
	at, err := discover()
	if err != nil {
		return nil, err
	}
	return adoptOwner(ws, at, os.Mkdir, k, limits)
}

func adoptOwner(ws *engine.Workspace, at layout, mkdir func(string, fs.FileMode) error, k Known, limits map[string]int) (*Owner, error) {
	o := &Owner{
		ws: ws, at: at, privateMount: -1, limits: map[string]int{}, mkdir: mkdir, units: systemd.Manager{},
		setControl: func(dir, change string) error { return write(filepath.Join(dir, "cgroup.subtree_control"), change) },
	}
	for slot, n := range limits {
		o.limits[slot] = n
	}
	var err error
	if o.node, err = o.adopt(k); err != nil {
		return nil, err
	}
	if at.v2 == nil {
		return nil, &engine.Error{Op: "adopt cgroup", Err: fmt.Errorf("%w: no cgroup2 is mounted here from which %s can be reached", engine.ErrRefused, k.Path)}
	}
	// The run's groups lie below the group that its first process was in, not below ours.
	if o.at.v2, err = at.v2.holding(filepath.Dir(k.Path)); err != nil {
		return nil, err
	}
	return o, nil
}

// holding is the hierarchy as a process in the group at dir sees it.
func (h hierarchy) holding(dir string) (*hierarchy, error) {
	rel, err := below(h.mount, dir)
	if err != nil {
		return nil, &engine.Error{Op: "adopt cgroup", Err: fmt.Errorf("%w: %s does not lie in %s: %w", engine.ErrRefused, dir, h.mount, err)}
	}
	return &hierarchy{mount: h.mount, rel: rel, path: filepath.Join(h.root(), rel)}, nil
}

// root is the group that the mount shows at its mount point.
func (h hierarchy) root() string {
	if h.rel == "/" {
		return h.path
	}
	return filepath.Join("/", strings.TrimSuffix(h.path, h.rel))
}

// adopt requires that the group is the one that the ledger means.
func (o *Owner) adopt(k Known) (*node, error) {
	refused := func(format string, args ...any) error {
		return &engine.Error{Op: "adopt cgroup", Err: fmt.Errorf("%w: %s", engine.ErrRefused, fmt.Sprintf(format, args...))}
	}
	dev, derr := strconv.ParseUint(string(k.Identity.Dev), 10, 64)
	ino, ierr := strconv.ParseUint(string(k.Identity.Ino), 10, 64)
	if err := errors.Join(derr, ierr); err != nil {
		return nil, refused("%s has no identity: %v", k.Path, err)
	}
	n := &node{path: k.Path, dev: dev, ino: ino, ledger: o.ws.Ledger, id: k.ID, mkdir: o.mkdir}
	ours, err := n.present()
	if err != nil {
		return nil, &engine.Error{Op: "adopt cgroup", Err: err}
	}
	if !ours {
		return nil, refused("%s is gone, or another group has its name", k.Path)
	}
	return n, nil
}

// AdoptGroup takes over a child of the ownership cgroup.
func (o *Owner) AdoptGroup(name string, k Known) (*Group, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// Whoever had it before may have ended between a kill and making it anew.
	g := &Group{owner: o, name: name, path: filepath.Join(o.node.path, name), killed: true}
	if k.Path != g.path {
		return nil, &engine.Error{Op: "adopt cgroup", Err: fmt.Errorf("%w: group %s is to be at %s, not at %s", engine.ErrRefused, name, g.path, k.Path)}
	}
	var err error
	if g.node, err = o.adopt(k); err != nil {
		return nil, err
	}
	if g.dir, err = os.Open(g.path); err != nil {
		return nil, &engine.Error{Op: "adopt cgroup", Err: err}
	}
	o.groups = append(o.groups, g)
	return g, nil
}

// AdoptLimits takes over the groups that hold a slot's limits. What they enforce
// is not looked at here: Read says it.
func (o *Owner) AdoptLimits(known []Known) (*Limits, error) {
	l := &Limits{kernel: v1{}, places: map[string]place{}}
	for _, k := range known {
		n, err := o.adopt(k)
		if err != nil {
			return nil, err
		}
		if !o.at.unified {
			n.hasLeaf()
		}
		l.nodes = append(l.nodes, n)
	}
	if o.at.unified {
		l.kernel = v2{}
		return l, l.adoptV2(o)
	}
	return l, l.adoptV1(o)
}

func (l *Limits) adoptV1(o *Owner) error {
	for _, c := range []string{controllerCPU, controllerCPUAcct, controllerMemory, controllerPids} {
		h, mounted := o.at.v1[c]
		if !mounted && c == controllerCPUAcct {
			continue
		}
		found := false
		for _, n := range l.nodes {
			if rel, err := below(h.mount, n.path); mounted && err == nil {
				found = true
				l.places[c] = place{dir: n.path, mount: h.mount, path: filepath.Join(h.root(), rel)}
			}
		}
		if !found {
			return &engine.Error{Op: "adopt limits", Err: fmt.Errorf("%w: no group of the slot's is on the hierarchy of the %s controller", engine.ErrRefused, c)}
		}
	}
	if h, mounted := o.at.v1[controllerDevices]; mounted {
		for _, n := range l.nodes {
			if _, err := below(h.mount, n.path); err == nil {
				l.devices = n.path
			}
		}
	}
	if _, err := os.Lstat(filepath.Join(l.places[controllerMemory].dir, v1SwapLimit)); err != nil {
		l.noSwap = v1NoSwap
	}
	return nil
}

func (l *Limits) adoptV2(o *Owner) error {
	if len(l.nodes) != 1 {
		return &engine.Error{Op: "adopt limits", Err: fmt.Errorf("%w: the slot has %d limits groups where one hierarchy is", engine.ErrRefused, len(l.nodes))}
	}
	h, n := o.at.v2, l.nodes[0]
	rel, err := below(h.mount, n.path)
	if err != nil {
		return &engine.Error{Op: "adopt limits", Err: err}
	}
	path := filepath.Join(h.root(), rel)
	if IsScope(n.path) {
		o.mu.Lock()
		defer o.mu.Unlock()
		*l = *o.scoped(n, path, bounds{})
	} else if l.dir, err = os.Open(n.path); err != nil {
		return &engine.Error{Op: "adopt limits", Err: err}
	}
	l.places[""] = place{dir: n.path, mount: h.mount, path: path}
	if _, err := os.Lstat(filepath.Join(n.path, v2SwapLimit)); err != nil {
		l.noSwap = v2NoSwap
	}
	return nil
}

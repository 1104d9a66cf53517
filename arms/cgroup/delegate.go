package cgroup

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
	"syscall"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// stand is a leaf group into which we step, with our descendants, when our own
// current group must hand controllers to its children: the kernel lets no group
// but the root do that while it holds processes ("no internal processes",
// cgroup-v2.rst).
type stand struct {
	node *node
}

// delegateMarks are the attributes by which systemd says that what lies below a
// group is not its own to change (systemd, CGROUP_DELEGATION.md).
var delegateMarks = []string{"trusted.delegate", "user.delegate"}

const delegateHint = "run in a delegated group: systemd-run --scope -p Delegate=yes drumsbench …"

// delegated requires, where systemd runs a host whose only hierarchy is v2, that
// our own group or one above it was given away: what systemd keeps it may change
// and take away at any time.
func (l layout) delegated() error {
	if !l.systemd || !l.unified {
		return nil
	}
	const op = "look for a delegated cgroup"
	for dir := l.v2.dir(); ; dir = filepath.Dir(dir) {
		for _, mark := range delegateMarks {
			var value [8]byte
			n, err := unix.Getxattr(dir, mark, value[:])
			switch {
			case err == nil && string(value[:n]) == "1":
				return nil
			case err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP):
				return &engine.Error{Op: op, Err: fmt.Errorf("%w: %s of %s: %w", engine.ErrUnknown, mark, dir, err)}
			}
		}
		if dir == l.v2.mount || dir == "/" {
			return &engine.Error{Op: op, Err: fmt.Errorf("%w: %s is systemd's own, and so are the groups above it", engine.ErrRefused, l.v2.dir()), Hint: delegateHint}
		}
	}
}

// delegate switches controllers on for the children of every level from our own
// current group down to the slot's group, top-down, and reads each level back.
// Levels above our own are not ours to change: what they do not offer is
// refused with the level named.
func (o *Owner) delegate(controllers []string, below ...string) error {
	own := o.at.v2.dir()
	offered, err := read(own, "cgroup.controllers")
	if err != nil {
		return &engine.Error{Op: "read cgroup controllers", Err: err}
	}
	if missing := without(controllers, strings.Fields(offered)); len(missing) > 0 {
		return &engine.Error{
			Op:   "enable cgroup controllers",
			Err:  fmt.Errorf("%w: %s is not given %s by the group above it", engine.ErrRefused, own, strings.Join(missing, ", ")),
			Hint: delegateHint,
		}
	}
	before, err := read(own, "cgroup.subtree_control")
	if err != nil {
		return &engine.Error{Op: "read cgroup controllers", Err: err}
	}
	switched, err := o.enable(own, controllers)
	if errors.Is(err, syscall.EBUSY) && !o.at.home {
		if err := o.stepAside(); err != nil {
			return err
		}
		switched, err = o.enable(own, controllers)
	}
	if len(switched) > 0 && !o.delegates && !o.at.home {
		o.delegates, o.before = true, strings.Fields(before)
	}
	if err != nil {
		return refusedLevel(own, controllers, err)
	}
	for _, dir := range below {
		if _, err := o.enable(dir, controllers); err != nil {
			return refusedLevel(dir, controllers, err)
		}
	}
	return nil
}

func refusedLevel(dir string, controllers []string, err error) error {
	hint := ""
	if errors.Is(err, syscall.EBUSY) {
		hint = "the group holds processes; a group that hands on controllers must hold none"
	}
	return &engine.Error{
		Op:   "enable cgroup controllers",
		Err:  fmt.Errorf("%w: %s refused %s: %w", engine.ErrRefused, dir, strings.Join(controllers, ", "), err),
		Hint: hint,
	}
}

// enable switches on what is off and returns that, once it was read back.
func (o *Owner) enable(dir string, controllers []string) ([]string, error) {
	on, err := read(dir, "cgroup.subtree_control")
	if err != nil {
		return nil, err
	}
	off := without(controllers, strings.Fields(on))
	if len(off) == 0 {
		return nil, nil
	}
	if err := o.setControl(dir, "+"+strings.Join(off, " +")); err != nil {
		return nil, err
	}
	if on, err = read(dir, "cgroup.subtree_control"); err != nil {
		return off, err
	}
	if missing := without(controllers, strings.Fields(on)); len(missing) > 0 {
		return off, fmt.Errorf("%w: cgroup.subtree_control reads back without %s", engine.ErrUnknown, strings.Join(missing, ", "))
	}
	return off, nil
}

// stepAside moves us and our descendants from our own current group into a leaf
// of it. A process of somebody else in the group is ErrRefused; nothing is moved then.
func (o *Owner) stepAside() error {
	own := o.at.v2.dir()
	pids, err := directPids(own)
	if err != nil {
		return &engine.Error{Op: "list own cgroup", Err: err}
	}
	for _, pid := range pids {
		if !descends(pid, os.Getpid()) {
			return &engine.Error{
				Op:   "enable cgroup controllers",
				Err:  fmt.Errorf("%w: %s also holds process %d, which is not ours to move", engine.ErrRefused, own, pid),
				Hint: "run in a group of its own: systemd-run --scope -p Delegate=yes drumsbench …",
			}
		}
	}
	if o.stand == nil {
		n, err := makeNode(o.ws.Ledger, o.mkdir, filepath.Join(own, "drums-"+o.ws.ID+"-engine"), "the engine's own processes")
		if err != nil {
			return err
		}
		o.stand = &stand{node: n}
	}
	return movePids(own, o.stand.node.path)
}

// movePids moves every process of from to to until none is left; a process may fork meanwhile.
func movePids(from, to string) error {
	for range 100 {
		pids, err := directPids(from)
		if err != nil {
			return &engine.Error{Op: "list cgroup", Err: err}
		}
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if err := write(filepath.Join(to, "cgroup.procs"), strconv.Itoa(pid)); err != nil && !errors.Is(err, syscall.ESRCH) {
				return &engine.Error{Op: "move process to cgroup", Err: err}
			}
		}
	}
	return &engine.Error{Op: "move processes to cgroup", Err: fmt.Errorf("%w: %s is never empty", engine.ErrUnknown, from)}
}

func directPids(dir string) ([]int, error) {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	return parsePids(data)
}

// descends says whether pid is ancestor or descends from it. A process that is gone descends from anyone.
func descends(pid, ancestor int) bool {
	for pid != ancestor {
		if pid <= 1 {
			return false
		}
		p, err := procfs.NewProc(pid)
		if errors.Is(err, fs.ErrNotExist) {
			return true
		}
		if err != nil {
			return false
		}
		st, err := p.Stat()
		if err != nil {
			return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
		}
		pid = st.PPID
	}
	return true
}

// undelegate gives our own current group back as it was: what it handed on since
// then off again, whoever switched it on (runc switches on all that there is, from the
// root of the hierarchy down, and one that stays keeps processes out), ourselves
// back inside, the leaf removed. An operator's group for our groups stays as it is:
// another run may have its own in it. Idempotent.
func (o *Owner) undelegate(ctx context.Context) error {
	own := o.at.v2.dir()
	if o.delegates {
		more := func() ([]string, error) {
			on, err := read(own, "cgroup.subtree_control")
			if err != nil {
				return nil, &engine.Error{Op: "disable cgroup controllers", Err: err}
			}
			return without(strings.Fields(on), o.before), nil
		}
		on, err := more()
		if err != nil {
			return err
		}
		if len(on) > 0 {
			if err := o.setControl(own, "-"+strings.Join(on, " -")); err != nil {
				return &engine.Error{Op: "disable cgroup controllers", Err: err}
			}
		}
		if on, err = more(); err != nil {
			return err
		}
		if len(on) > 0 {
			return &engine.Error{Op: "disable cgroup controllers", Err: fmt.Errorf("%w: %s still hands on %s", engine.ErrUnknown, own, strings.Join(on, ", "))}
		}
		o.delegates = false
	}
	if o.stand == nil {
		return nil
	}
	if err := movePids(o.stand.node.path, own); err != nil {
		return err
	}
	if err := o.stand.node.remove(ctx); err != nil {
		return err
	}
	o.stand = nil
	return nil
}

// without returns the members of want that are not in have.
func without(want, have []string) []string {
	var missing []string
	for _, w := range want {
		if !slices.Contains(have, w) {
			missing = append(missing, w)
		}
	}
	return missing
}

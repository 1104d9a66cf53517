package netprobe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// sleeper is the program that is dumped: one thread, one file, no time-out.
const sleeper = "/bin/sleep"

// site is where one layer works: a folder and a group of its own.
type site struct {
	p     *probe
	name  string
	dir   string
	dirID int64
	group *cgroup.Group
	// process is the ledger's number of the process that is dumped; -1 without one.
	process int64
}

// newSite makes folder and group, ledger first. close takes them away.
func (p *probe) newSite(name string) (s *site, err error) {
	s = &site{p: p, name: name, dir: filepath.Join(p.ws.Work, name), dirID: -1, process: -1}
	id, err := engine.Own(p.ws.Ledger, "directory", bench.Claim{Path: s.dir}, func() (bench.Identity, error) {
		if err := os.Mkdir(s.dir, 0o755); err != nil {
			return bench.Identity{}, err
		}
		return tree.FileIdentity(s.dir)
	})
	if err != nil {
		return nil, err
	}
	s.dirID = id
	if s.group, err = p.owner.Group(name); err != nil {
		if rerr := os.Remove(s.dir); rerr != nil {
			return nil, errors.Join(err, rerr) // sweep's, by the ledger
		}
		return nil, errors.Join(err, p.ws.Ledger.Gone(id))
	}
	return s, nil
}

// mkdir makes a folder below the site's.
func (s *site) mkdir(name string) (string, error) {
	path := filepath.Join(s.dir, name)
	return path, os.MkdirAll(path, 0o755)
}

// intend says in the ledger that a process is about to be born in the group.
func (s *site) intend(note string) (err error) {
	s.process, err = s.p.ws.Ledger.Intend("process", bench.Claim{Cgroup: s.group.Path(), Note: note})
	return err
}

// bind writes down which process it is.
func (s *site) bind(pid int) error {
	id, err := procfs.Identity(pid)
	if err != nil {
		return err
	}
	return s.p.ws.Ledger.Bind(s.process, id)
}

// ended waits until the process that was dumped is gone, and says so in the ledger.
func (s *site) ended(ctx context.Context, pid int) error {
	for {
		if err := s.reap(ctx); err != nil {
			return err
		}
		_, err := procfs.Identity(pid)
		if errors.Is(err, engine.ErrDead) {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: pid %d is still there after it was dumped: %w", engine.ErrUnknown, pid, errors.Join(err, context.Cause(ctx)))
		case <-time.After(2 * time.Millisecond):
		}
	}
	id := s.process
	s.process = -1
	return s.p.ws.Ledger.Gone(id)
}

// end ends every process of the site.
func (s *site) end(ctx context.Context) error {
	if err := s.group.Kill(ctx); err != nil {
		return err
	}
	if err := s.reap(ctx); err != nil {
		return err
	}
	if s.process >= 0 {
		if err := s.p.ws.Ledger.Gone(s.process); err != nil {
			return err
		}
		s.process = -1
	}
	return nil
}

// close ends every process of the site and takes folder and group away.
func (s *site) close(ctx context.Context) error {
	if err := s.end(ctx); err != nil {
		return err
	}
	if err := s.group.Remove(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(s.dir); err != nil {
		return err
	}
	return s.p.ws.Ledger.Gone(s.dirID)
}

// reap waits for children of ours that ended in the group: a call that was cut
// short may have made one whose pid nobody learnt.
func (s *site) reap(ctx context.Context) error {
	return tree.ReapStrays(ctx, s.group)
}

// besideCRIU runs f where criu leaves nothing on the host.
func (s *site) besideCRIU(tool criu.Tool, f func() error) error {
	return tree.BesideCRIU(tool, s.p.ws.State, []string{s.dir, s.p.ws.Run}, f)
}

// namespaceAt is a namespace's identity as text.
func namespaceAt(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fmt.Sprintf("%d:%d", uint64(st.Dev), st.Ino), nil
}

func namespacePath(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// inside reads what the namespace of a process holds, and which one it is.
func inside(pid int) (id string, n bench.Network, err error) {
	h, err := netns.Open(namespacePath(pid))
	if err != nil {
		return "", n, err
	}
	defer h.Close()
	if id, err = namespaceAt(fmt.Sprintf("/proc/self/fd/%d", h.Fd())); err != nil {
		return "", n, err
	}
	n, err = h.Network()
	return id, n, err
}

// markInside puts the marks into the namespace of a process.
func markInside(pid int) error {
	h, err := netns.Open(namespacePath(pid))
	if err != nil {
		return err
	}
	defer h.Close()
	n, err := netlink.NewHandleAt(vnetns.NsHandle(h.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a route socket in the namespace: %w", err)
	}
	defer n.Close()
	return mark(n)
}

// before marks the namespace of a process and judges what a layer gets. ok is
// false where it is lost already.
func (p *probe) before(l *bench.NetworkLayer, pid int) (ok bool, err error) {
	if err := markInside(pid); err != nil {
		return false, err
	}
	if err := p.at(l.Layer, stageReady, namespacePath(pid)); err != nil {
		return false, err
	}
	id, n, err := inside(pid)
	if err != nil {
		return false, err
	}
	return start(l, id, n), nil
}

// makeRoot makes a root file system with the sleeper and what it loads.
func (s *site) makeRoot(ctx context.Context) (root string, err error) {
	files, err := needs(ctx, sleeper)
	if err != nil {
		return "", err
	}
	root = filepath.Join(s.dir, "rootfs")
	for _, file := range files {
		if err := copyFile(file, filepath.Join(root, file)); err != nil {
			return "", err
		}
	}
	for _, dir := range []string{"proc", "dev"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			return "", err
		}
	}
	// A file of its own for the standard descriptors: one of the host's could not be dumped.
	return root, os.WriteFile(filepath.Join(root, "stdio"), nil, 0o600)
}

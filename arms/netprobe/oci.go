package netprobe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/arms/oci"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const runcHint = "name the path of a runc, or leave --runc away to try the one that the oci arm uses"

// findRunc finds the program: the one at a path, else the one that the oci arm
// uses. A named one that is not there is engine.ErrUnknown: what it does with a
// namespace cannot be learnt.
func findRunc(ctx context.Context, state, path string) (t oci.Tool, facts []bench.Fact, err error) {
	if path == "" {
		t, err = oci.Locate(ctx, state)
	} else if t, err = oci.At(ctx, path); err != nil {
		err = &engine.Error{Op: "find runc", Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err), Hint: runcHint}
	}
	if err != nil {
		return t, []bench.Fact{engine.Unknown[string](err.Error(), engine.ViewHost).Fact("runc.version")}, err
	}
	return t, t.Facts(), nil
}

// bounds of a container that does nothing; the criu that restores it works in them too.
var bounds = bench.Resources{Vcpus: 1, Memory: "256MiB", Swap: "0", Pids: 128}

// box is a site with a container, which lies and works as a slot of the oci arm
// does: in groups of ours in every hierarchy that runc sees.
type box struct {
	*site
	oci.Container
	root    string
	keepers *cgroup.Group
	// holder of the namespace; nil where runc makes one.
	holder *netns.Holder
}

// newBox makes folders and groups. close takes them away, also those of one that failed.
func (p *probe) newBox(ctx context.Context, name string, tool oci.Tool, cr criu.Tool, held bool) (b *box, err error) {
	s, err := p.newSite(name)
	if err != nil {
		return nil, err
	}
	b = &box{site: s, Container: oci.Container{
		ID: "drums-" + p.ws.ID + "-" + name, Runc: tool, CRIU: cr, State: p.ws.State, Work: p.ws.Work, Run: p.ws.Run, Dir: s.dir, Group: s.group,
	}}
	if b.Helpers, err = p.owner.Group(name + "-runc"); err != nil {
		return b, err
	}
	if held {
		if b.keepers, err = p.owner.Group(name + "-holder"); err != nil {
			return b, err
		}
		if b.holder, err = netns.StartHolder(ctx, p.ws.Ledger, b.keepers.FD(), b.keepers.Path()); err != nil {
			return b, err
		}
	}
	for _, dir := range append(b.Folders(), filepath.Join(s.dir, "images"), filepath.Join(s.dir, "dump"), filepath.Join(s.dir, "restore")) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return b, err
		}
	}
	b.root, err = s.makeRoot(ctx)
	return b, err
}

// close ends everything in the box and takes it away.
func (b *box) close(ctx context.Context) error {
	if b.Helpers != nil {
		if err := b.Helpers.Kill(ctx); err != nil {
			return err
		}
	}
	if err := b.end(ctx); err != nil {
		return err
	}
	if err := b.unbound(ctx); err != nil {
		return err
	}
	if b.Helpers != nil {
		if err := b.Helpers.Remove(ctx); err != nil {
			return err
		}
	}
	if b.holder != nil {
		if err := b.holder.Release(ctx); err != nil {
			return err
		}
	}
	if b.keepers != nil {
		if err := errors.Join(b.keepers.Kill(ctx), b.keepers.Remove(ctx)); err != nil {
			return err
		}
	}
	return b.site.close(ctx)
}

// unbound takes the container's limits away; runc may have done so before.
func (b *box) unbound(ctx context.Context) error {
	if b.Limits == nil {
		return nil
	}
	if err := b.Limits.Remove(ctx); err != nil {
		return err
	}
	b.Limits = nil
	return nil
}

// verify requires that the holder, where there is one, is still the process that it was.
func (b *box) verify() error {
	if b.holder == nil {
		return nil
	}
	return b.holder.Verify()
}

// make has runc make the container with f, in new groups, and returns its first process.
func (b *box) make(f func() (int, error)) (pid int, err error) {
	if b.Limits, err = cgroup.NewLimits(b.p.ws, b.p.owner, b.name, bounds); err != nil {
		return 0, err
	}
	if err := oci.Bound(b.Limits, b.p.owner); err != nil {
		return 0, err
	}
	if err := b.verify(); err != nil {
		return 0, err
	}
	namespace := ""
	if b.holder != nil {
		namespace = b.holder.Path()
	}
	// Nobody outside talks to the container.
	if err := b.Write(config(b.root, b.CgroupsPath(), namespace), oci.Settings(bench.CheckpointPolicy{})); err != nil {
		return 0, err
	}
	if err := b.intend("first process of " + b.ID); err != nil {
		return 0, err
	}
	if pid, err = f(); err != nil {
		return 0, err
	}
	return pid, b.bind(pid)
}

// container tries runc: with a namespace that runc makes, or in that of a holder.
func (p *probe) container(ctx context.Context, l *bench.NetworkLayer, tool oci.Tool, cr criu.Tool, held bool) (err error) {
	if found := criu.HostConfig(os.Environ(), os.DirFS("/")); len(found) > 0 {
		return &engine.Error{Op: "probe network", Err: fmt.Errorf("%w: runc's criu would read %s", engine.ErrRefused, strings.Join(found, ", ")),
			Hint: "move these files away and unset these variables"}
	}
	b, err := p.newBox(ctx, l.Layer, tool, cr, held)
	if b != nil {
		defer undo(ctx, &err, b.close)
	}
	if err != nil {
		return err
	}
	path := ""
	if held {
		path = b.holder.Path()
	}
	pid, err := b.make(func() (int, error) { return b.Start(ctx, nil) })
	if err != nil {
		return err
	}
	ok, err := p.before(l, pid)
	if err != nil || !ok {
		return err
	}
	if held && l.NamespaceBefore != fmt.Sprintf("%s:%s", b.holder.Identity().Dev, b.holder.Identity().Ino) {
		return fmt.Errorf("%w: the container is in namespace %s, the holder's is %s:%s", engine.ErrUnknown, l.NamespaceBefore, b.holder.Identity().Dev, b.holder.Identity().Ino)
	}

	images := filepath.Join(b.dir, "images")
	if err := b.verify(); err != nil {
		return err
	}
	if err := b.Checkpoint(ctx, p.ws.Evidence, images, filepath.Join(b.dir, "dump"), false); err != nil {
		return err
	}
	if err := b.ended(ctx, pid); err != nil {
		return err
	}
	if err := b.Dumped(images); err != nil {
		return err
	}
	if err := b.unbound(ctx); err != nil {
		return err
	}
	network, err := criu.OpenImages(images).Network()
	if err != nil {
		return err
	}
	l.Dumped = parts(network)
	if err := p.at(l.Layer, stageDumped, path); err != nil {
		return err
	}

	pid, err = b.make(func() (int, error) {
		return b.Restore(ctx, p.ws.Evidence, images, filepath.Join(b.dir, "restore"), false, nil)
	})
	if err != nil {
		return err
	}
	id, n, err := inside(pid)
	if err != nil {
		return err
	}
	// An inode is given again once its namespace is gone: only while the holder is
	// the same process does the same number mean the same namespace.
	if err := b.verify(); err != nil {
		return err
	}
	judge(l, id, n)
	switch missing := carries(network); {
	case held && id != l.NamespaceBefore:
		l.Outcome, l.LostAt = Lost, atRestore
		l.Reason = "the container came back in another namespace than the holder's"
	case !held && l.Outcome == Lost && len(missing) > 0:
		l.LostAt = atDump
		l.Reason = fmt.Sprintf("runc tells criu that the namespace is empty: no %s is dumped, and the restore returns 0 with lo down", strings.Join(missing, ", no "))
	}
	return nil
}

// config is a container that does nothing and may nothing.
func config(root, cgroup, namespace string) *specs.Spec {
	return &specs.Spec{
		Version: "1.0.2", Hostname: "drums",
		Root: &specs.Root{Path: root},
		Process: &specs.Process{
			Args: []string{sleeper, "infinity"}, Cwd: "/", Env: []string{"PATH=/bin"}, NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755", "size=64k"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: cgroup,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.NetworkNamespace, Path: namespace},
			},
		},
	}
}

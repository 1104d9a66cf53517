package netprobe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// container tries runc: with a namespace that runc makes, or in that of a holder.
func (p *probe) container(ctx context.Context, l *bench.NetworkLayer, r runc, held bool) (err error) {
	if found := criu.HostConfig(os.Environ(), os.DirFS("/")); len(found) > 0 {
		return &engine.Error{Op: "probe network", Err: fmt.Errorf("%w: runc's criu would read %s", engine.ErrRefused, strings.Join(found, ", ")),
			Hint: "move these files away and unset these variables"}
	}
	s, err := p.newSite(l.Layer)
	if err != nil {
		return err
	}
	back, err := adoptOrphans()
	if err != nil {
		return errors.Join(err, s.close(ctx))
	}
	var holder *netns.Holder
	defer undo(ctx, &err, func(ctx context.Context) error {
		var herr error
		if holder != nil {
			herr = holder.Release(ctx)
		}
		return errors.Join(herr, s.close(ctx), back())
	})
	path := ""
	if held {
		if holder, err = netns.StartHolder(ctx, p.ws.Ledger, s.group.FD(), s.group.Path()); err != nil {
			return err
		}
		path = holder.Path()
	}
	verify := func() error {
		if holder == nil {
			return nil
		}
		return holder.Verify()
	}
	name := s.container()
	if err := s.writeBundle(ctx, r, path); err != nil {
		return err
	}

	if err := verify(); err != nil {
		return err
	}
	pid, err := s.runContainer(ctx, r, name, "run", "--detach", "--bundle", s.dir)
	if err != nil {
		return err
	}
	ok, err := p.before(l, pid)
	if err != nil || !ok {
		return err
	}
	if holder != nil && l.NamespaceBefore != fmt.Sprintf("%s:%s", holder.Identity().Dev, holder.Identity().Ino) {
		return fmt.Errorf("%w: the container is in namespace %s, the holder's is %s:%s", engine.ErrUnknown, l.NamespaceBefore, holder.Identity().Dev, holder.Identity().Ino)
	}

	images, work := filepath.Join(s.dir, "images"), filepath.Join(s.dir, "dump")
	if err := verify(); err != nil {
		return err
	}
	if err := r.run(ctx, s, "checkpoint", "--image-path", images, "--work-path", work, name); err != nil {
		return p.keepLog(filepath.Join(work, "dump.log"), err)
	}
	if err := s.ended(ctx, pid); err != nil {
		return err
	}
	if err := s.removeGroups(ctx); err != nil {
		return err
	}
	if err := criu.OpenImages(images).Complete(); err != nil {
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

	if err := verify(); err != nil {
		return err
	}
	work = filepath.Join(s.dir, "restore")
	if pid, err = s.runContainer(ctx, r, name, "restore", "--detach", "--bundle", s.dir, "--image-path", images, "--work-path", work); err != nil {
		return p.keepLog(filepath.Join(work, "restore.log"), err)
	}
	id, n, err := inside(pid)
	if err != nil {
		return err
	}
	// An inode is given again once its namespace is gone: only while the holder is
	// the same process does the same number mean the same namespace.
	if err := verify(); err != nil {
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

// runContainer runs a command of runc's that starts the container and returns its first process.
func (s *site) runContainer(ctx context.Context, r runc, name string, args ...string) (pid int, err error) {
	if err := s.intendGroups(); err != nil {
		return 0, err
	}
	if err := s.intend("first process of " + name); err != nil {
		return 0, err
	}
	file := filepath.Join(s.dir, "pid")
	if err := os.RemoveAll(file); err != nil {
		return 0, err
	}
	if err := r.run(ctx, s, append(args, "--pid-file", file, name)...); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		return 0, fmt.Errorf("%w: runc wrote %q as the pid", engine.ErrUnknown, text)
	}
	if err := s.bind(pid); err != nil {
		return 0, err
	}
	return pid, s.bindGroups(pid)
}

// writeBundle makes a root file system, a configuration for runc and one for criu, and a folder in which criu is ours.
func (s *site) writeBundle(ctx context.Context, r runc, namespace string) error {
	root, err := s.makeRoot(ctx)
	if err != nil {
		return err
	}
	for _, dir := range []string{"images", "dump", "restore", "bin", "runc"} {
		if _, err := s.mkdir(dir); err != nil {
			return err
		}
	}
	if err := os.Symlink(r.tool.Path, filepath.Join(s.dir, "bin", "criu")); err != nil {
		return err
	}
	settings := filepath.Join(s.dir, "criu.conf")
	// Without iptables criu cannot lock the network, and nobody outside talks to it.
	if err := os.WriteFile(settings, []byte("network-lock skip\n"), 0o600); err != nil {
		return err
	}
	text, err := json.MarshalIndent(config(root, s.container(), namespace, settings), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, "config.json"), text, 0o600)
}

// config is a container that does nothing and may nothing.
func config(root, cgroup, namespace, settings string) specs.Spec {
	return specs.Spec{
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
		Annotations: map[string]string{"org.criu.config": settings},
		Linux: &specs.Linux{
			CgroupsPath: cgroup,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.NetworkNamespace, Path: namespace},
			},
		},
	}
}

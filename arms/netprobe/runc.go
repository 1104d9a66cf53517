package netprobe

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/oci"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const runcHint = "name the path of a runc, or leave --runc away to try the one that the oci arm uses"

// runc is the runtime in use, as it was read.
type runc struct {
	path  string
	facts []bench.Fact
	// tool is the criu that it is made to use.
	tool criu.Tool
}

// findRunc finds the program: the one at a path, else the one that the oci arm uses.
func findRunc(ctx context.Context, state, path string) (runc, error) {
	if path != "" {
		return named(ctx, path)
	}
	t, err := oci.Locate(ctx, state)
	if err != nil {
		return runc{facts: noRunc(err)}, err
	}
	return runc{path: t.Path, facts: t.Facts()}, nil
}

func noRunc(err error) []bench.Fact {
	return []bench.Fact{engine.Unknown[string](err.Error(), engine.ViewHost).Fact("runc.version")}
}

// named is the program at a path. One that is not there is engine.ErrUnknown:
// what it does with a namespace cannot be learnt.
func named(ctx context.Context, path string) (r runc, err error) {
	defer func() {
		if err != nil {
			err = &engine.Error{Op: "find runc", Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err), Hint: runcHint}
			r.facts = noRunc(err)
		}
	}()
	if r.path, err = filepath.EvalSymlinks(path); err != nil {
		return r, err
	}
	if r.path, err = filepath.Abs(r.path); err != nil {
		return r, err
	}
	f, err := os.Open(r.path)
	if err != nil {
		return r, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return r, fmt.Errorf("hash %s: %w", r.path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.path, "--version")
	cmd.Env = criu.Env()
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("%s --version: %w", r.path, err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	version, ok := strings.CutPrefix(first, "runc version ")
	if !ok {
		return r, fmt.Errorf("%s --version says %q", r.path, first)
	}
	known := func(name, value string) bench.Fact {
		return engine.Known(value, r.path, engine.ViewHost).Fact("runc." + name)
	}
	r.facts = []bench.Fact{known("version", version), known("sha256", hex.EncodeToString(h.Sum(nil))), known("path", r.path)}
	return r, nil
}

// run runs one command of runc's, born in the site's group, where the criu that
// it finds is ours. go-runc is not used: it starts runc in our own group, where
// nobody could find what a killed engine left, unless its one global monitor is
// replaced, which is the oci arm's.
func (r runc) run(ctx context.Context, s *site, args ...string) error {
	op := "runc " + args[0]
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	env := criu.Env()
	for i, e := range env {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			env[i] = "PATH=" + filepath.Join(s.dir, "bin") + ":" + path
		}
	}
	return s.besideCRIU(r.tool, func() error {
		if err := hideGroups(); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, r.path, append([]string{"--root", filepath.Join(s.dir, "runc"), "--log", filepath.Join(s.dir, "runc.log")}, args...)...)
		cmd.Env, cmd.Dir = env, s.dir
		cmd.Stdin, cmd.Stdout, cmd.Stderr = null, null, null
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: s.group.FD()}
		// criu runs in runc's process group: a deadline ends both.
		cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
		err := cmd.Run()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return &engine.Error{Op: op, Err: errors.Join(err, context.Cause(ctx))}
		}
		return &engine.Error{Op: op, Err: fmt.Errorf("%w: %s", err, lastWords(filepath.Join(s.dir, "runc.log")))}
	})
}

// hideGroups takes control groups out of the calling thread's mount namespace
// where a v1 hierarchy is mounted.
//
// v2 on a hybrid host: runc would move the container to cgroupsPath there, counted
// from the top of the hierarchy whatever group we are in ourselves, and so out of
// the group that holds what the probe makes. Without the mount it leaves the
// container where runc itself was born, which is that group.
//
// The v1 freezer: criu would freeze the tree in it, and a task that a criu which
// was killed left frozen does not die of SIGKILL.
func hideGroups() error {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return fmt.Errorf("list control groups: %w", err)
	}
	if !slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool { return m.FSType == "cgroup" }) {
		return nil // a unified host
	}
	for _, m := range mounts {
		if m.FSType == "cgroup" && !slices.Contains(strings.Split(m.VFSOptions, ","), "freezer") {
			continue
		}
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("hide %s: %w", m.Mountpoint, err)
		}
	}
	return nil
}

// lastWords is the last line of runc's log.
func lastWords(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "it says nothing"
	}
	all := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(all[len(all)-1])
}

// adoptOrphans makes this process the parent of what runc leaves behind, so that
// it can be waited for; back takes that back.
func adoptOrphans() (back func() error, err error) {
	var old int32
	if err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&old)), 0, 0, 0); err != nil {
		return nil, fmt.Errorf("read child subreaper: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become child subreaper: %w", err)
	}
	return func() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, uintptr(old), 0, 0, 0) }, nil
}

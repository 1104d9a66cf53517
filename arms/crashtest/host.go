package crashtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	prom "github.com/prometheus/procfs"

	"github.com/drumsbench/drumsbench/arms/hostview"
	"github.com/drumsbench/drumsbench/engine"
)

// look is the host at one moment.
type look struct {
	view hostview.Snapshot
	// names are files, sockets and processes that programs of ours could leave.
	names map[string]bool
}

// places where a program leaves temporary files. All of them are the suite's own.
func (h *Harness) places() []string {
	return []string{
		"/tmp/*", "/tmp/.*", "/var/tmp/*", "/var/tmp/.*", "/dev/shm/*", "/dev/shm/.*", "/run/*", "/run/.*",
		filepath.Join(h.State, "*"), filepath.Join(h.State, "work", "*"),
		filepath.Join(h.State, "cache", ".*"), filepath.Join(h.State, "cache", "*", ".*"), filepath.Join(h.State, "cache", "*", "*", ".*"),
	}
}

func (h *Harness) look(ctx context.Context, id string) (l look, err error) {
	if id == "" {
		id = "none"
	}
	l.names = map[string]bool{}
	scope := hostview.Scope{ID: id, Paths: []string{h.State}}
	if l.view, err = hostview.Take(ctx, scope); err != nil {
		return l, err
	}
	for _, pattern := range h.places() {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return l, err
		}
		for _, f := range found {
			l.names["file "+f] = true
		}
	}
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return l, err
	}
	for _, line := range strings.Split(string(text), "\n") {
		if f := strings.Fields(line); len(f) == 8 && strings.HasPrefix(f[7], h.State) {
			l.names["socket "+f[7]] = true
		}
	}
	return l, h.strays(l.names)
}

// strays adds processes that have to do with the state directory, wherever they
// came from and in whatever group they are: by their arguments, or by a mount
// namespace in which something of a scratch directory is mounted.
func (h *Harness) strays(names map[string]bool) error {
	procs, err := prom.AllProcs()
	if err != nil {
		return err
	}
	for _, p := range procs {
		if p.PID == os.Getpid() {
			continue
		}
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		mounts, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", p.PID))
		comm, _ := p.Comm()
		if strings.Contains(string(args), h.State) || strings.Contains(string(mounts), filepath.Join(h.State, "work")) {
			names[fmt.Sprintf("process %d %s of the state directory", p.PID, comm)] = true
		}
	}
	return nil
}

// compare wants the host as it was. Dead processes and their namespaces take a
// moment to go, so that what is left is looked at again for a while.
func (h *Harness) compare(ctx context.Context, r *Result, before look, spaces map[string]namespace, settle time.Duration) error {
	var left []string
	for deadline := time.Now().Add(settle); ; time.Sleep(20 * time.Millisecond) {
		after, err := h.look(ctx, r.Claim)
		if err != nil {
			return err
		}
		left = nil
		for _, f := range hostview.Diff(before.view, after.view) {
			if f.Verdict == engine.Fail {
				left = append(left, strings.TrimSpace(f.Subject+" "+f.Text+" "+f.Have))
			}
		}
		for name := range after.names {
			if !before.names[name] {
				left = append(left, name+" is there and was not")
			}
		}
		for name := range before.names {
			if !after.names[name] {
				left = append(left, name+" was there and is not")
			}
		}
		holders, err := namespaceHolders(spaces)
		if err != nil {
			return err
		}
		left = append(left, holders...)
		if len(left) == 0 || time.Now().After(deadline) {
			break
		}
	}
	slices.Sort(left)
	for _, l := range left {
		r.problem("left behind: %s", l)
	}
	return nil
}

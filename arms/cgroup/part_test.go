package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// What runs in unified limits is frozen apart from a tool that works under the same bounds, and is back afterwards; the
// tool, which may hold it stopped, has ended by then. Also where somebody was ended half way before.
func TestParted(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	// A group of v2 stands for limits there: what bounds it plays no part, and other hosts have those on v1.
	l := &Limits{nodes: []*node{g.node}}
	inside := start(t, g, "exec sleep 1000").Process.Pid
	for _, left := range []bool{false, true} {
		if left {
			if _, err := l.Part(within(t, 10*time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		p, err := l.Part(within(t, 10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if pids, err := directPids(p.Tree()); err != nil || !slices.Equal(pids, []int{inside}) {
			t.Errorf("the tree's part holds %v, %v", pids, err)
		}
		tool := exec.Command("/bin/sh", "-c", "echo $$ >"+p.Tools()+"/cgroup.procs && echo 1 >"+p.Tree()+"/cgroup.freeze && exec sleep 1000")
		if err := tool.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a frozen tree", func() bool { frozen, err := event(p.Tree(), "frozen"); return err == nil && frozen })
		if frozen, err := event(g.Path(), "frozen"); err != nil || frozen {
			t.Errorf("the limits are frozen: %t, %v", frozen, err)
		}
		if pids, err := g.Pids(); err != nil || len(pids) != 2 {
			t.Errorf("the limits hold %v, %v; want the tree and the tool", pids, err)
		}
		ended := make(chan error)
		go func() { ended <- tool.Wait() }()
		if err := p.Join(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := <-ended; !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("the tool ended with %v", err)
		}
		if pids, err := directPids(g.Path()); err != nil || !slices.Equal(pids, []int{inside}) {
			t.Errorf("the limits hold %v, %v", pids, err)
		}
		if children, err := Children(g.Path()); err != nil || len(children) > 0 {
			t.Errorf("left below the limits: %v, %v", children, err)
		}
	}
}

// Where it cannot be done, everything is as it was.
func TestPartIsUndone(t *testing.T) {
	ws, _ := workspace(t)
	o := owner(t, ws)
	g, err := o.Group("slot-a")
	if err != nil {
		t.Fatal(err)
	}
	inside := start(t, g, "exec sleep 1000").Process.Pid
	n := *g.node
	n.mkdir = func(path string, mode os.FileMode) error {
		if filepath.Base(path) == toolsPart {
			return os.ErrPermission
		}
		return os.Mkdir(path, mode)
	}
	if _, err := (&Limits{nodes: []*node{&n}}).Part(within(t, 10*time.Second)); !errors.Is(err, os.ErrPermission) {
		t.Errorf("%v", err)
	}
	if pids, err := directPids(g.Path()); err != nil || !slices.Equal(pids, []int{inside}) {
		t.Errorf("the limits hold %v, %v", pids, err)
	}
	if children, err := Children(g.Path()); err != nil || len(children) > 0 {
		t.Errorf("left below the limits: %v, %v", children, err)
	}
}

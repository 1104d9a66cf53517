package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"

	"github.com/containerd/cgroups/v3"
)

// task says whether a process is under all limits with each of its threads: on
// v1 a thread can be moved alone.
func (l *Limits) task(pid int) (bool, error) {
	tids, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return false, err
	}
	inside := true
	for _, t := range tids {
		in, err := l.holds(fmt.Sprintf("/proc/%d/task/%s/cgroup", pid, t.Name()))
		if gone(err) {
			continue
		}
		if err != nil {
			return false, err
		}
		inside = inside && in
	}
	if inside {
		return true, nil
	}
	// v1 shows a task that is exiting at the root of each hierarchy (proc_cgroup_show).
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false, err
	}
	st, err := p.Stat()
	if err != nil {
		return false, err
	}
	return st.State == "Z" || st.State == "X", nil
}

// holds says whether a /proc cgroup file names our groups, or groups below
// them, for every place.
func (l *Limits) holds(file string) (bool, error) {
	v1, v2, err := cgroups.ParseCgroupFileUnified(file)
	if err != nil {
		return false, err
	}
	for controller, p := range l.places {
		path := v2
		if controller != "" {
			path = v1[controller]
		}
		if path != p.path && !strings.HasPrefix(path, p.path+"/") {
			return false, nil
		}
	}
	return true, nil
}

func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
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
	for _, t := range tids {
		in, err := l.holds(fmt.Sprintf("/proc/%d/task/%s/cgroup", pid, t.Name()))
		if err == nil && !in {
			in, err = exiting(pid, t.Name())
		}
		if gone(err) {
			continue
		}
		if err != nil || !in {
			return false, err
		}
	}
	// Of a task that has gone meanwhile no thread was read.
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
		return false, err
	}
	return true, nil
}

// pfExiting is the kernel's mark of a task that ends (PF_EXITING in include/linux/sched.h), which no program can set by itself.
const pfExiting = 4

// exiting says whether a thread ends: v1 shows one at the root of each hierarchy then (proc_cgroup_show), before it is
// a zombie and while the other threads of its process go on.
func exiting(pid int, tid string) (bool, error) {
	id, err := strconv.Atoi(tid)
	if err != nil {
		return false, err
	}
	threads, err := procfs.NewFS(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return false, err
	}
	t, err := threads.Proc(id)
	if err != nil {
		return false, err
	}
	st, err := t.Stat()
	if err != nil {
		return false, err
	}
	return st.Flags&pfExiting != 0, nil
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

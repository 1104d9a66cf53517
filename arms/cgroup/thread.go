package cgroup

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/drumsbench/drumsbench/engine"
)

// JoinThread puts the calling OS thread under the limits, so that what it starts
// is born under them, and returns how it leaves again. The caller has locked the
// thread. On v2 it does nothing: there a process is born in FD, if there is one.
//
// A thread moves itself through the tasks file, which takes no lock that all of
// the host's forks wait for; a whole process through cgroup.procs does
// (cgroup_procs_write_start). The files are opened beforehand: by the time the
// thread leaves it may have another root.
func (l *Limits) JoinThread() (leave func() error, err error) {
	if l.Unified() {
		return func() error { return nil }, nil
	}
	var homes []*os.File
	leave = func() error {
		var errs []error
		for _, f := range homes {
			_, err := f.WriteString("0")
			errs = append(errs, err, f.Close())
		}
		homes = nil
		if err := errors.Join(errs...); err != nil {
			return &engine.Error{Op: "leave limits", Err: err}
		}
		return nil
	}
	for _, n := range l.nodes {
		// The group above ours is the engine's own (makeV1).
		home, err := os.OpenFile(filepath.Join(filepath.Dir(n.path), "tasks"), os.O_WRONLY, 0)
		if err == nil {
			homes = append(homes, home)
			err = write(filepath.Join(n.home(), "tasks"), "0")
		}
		if err != nil {
			return nil, &engine.Error{Op: "join limits", Err: errors.Join(err, leave())}
		}
	}
	return leave, nil
}

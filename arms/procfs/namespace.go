package procfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Namespace is the identity of a namespace: device and inode of its nsfs file.
type Namespace struct{ Dev, Ino uint64 }

// NamespaceOf reads which namespace of a kind (pid, mnt, net, ipc, uts, user…) a process is in. engine.ErrDead if it is gone.
func NamespaceOf(pid int, kind string) (Namespace, error) {
	ns, err := namespace(filepath.Join(root, strconv.Itoa(pid), "ns", kind))
	if err != nil {
		return ns, gone(pid, err)
	}
	return ns, nil
}

func namespace(path string) (Namespace, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return Namespace{st.Dev, st.Ino}, err
}

// OpenNamespace opens a namespace of exactly the process of this identity, which is compared after the file was opened.
func OpenNamespace(id bench.Identity, kind string) (*os.File, error) {
	pid := int(id.Pid)
	f, err := os.Open(filepath.Join(root, strconv.Itoa(pid), "ns", kind))
	if err != nil {
		return nil, fmt.Errorf("open %s namespace: %w", kind, gone(pid, err))
	}
	now, err := Identity(pid)
	if err == nil && now.StartTicks != id.StartTicks {
		err = fmt.Errorf("pid %d is another process: %w", pid, engine.ErrDead)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open %s namespace: %w", kind, err)
	}
	return f, nil
}

// inNetwork runs fn on a thread inside a network namespace.
func inNetwork(ns *os.File, fn func() error) error {
	return thread.Run(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return fn()
	})
}

// lineage says which pid namespaces are a slot's or lie below it; each is looked at once.
type lineage map[Namespace]bool

// holds says whether a process is in such a namespace.
func (l lineage) holds(pid int) (bool, error) {
	ns, err := NamespaceOf(pid, "pid")
	if err != nil {
		return false, err
	}
	in, known := l[ns]
	if !known {
		if in, err = l.below(pid); err != nil {
			return false, err
		}
		l[ns] = in
	}
	return in, nil
}

// below follows the parents of a process's pid namespace until one is known.
func (l lineage) below(pid int) (bool, error) {
	f, err := os.Open(filepath.Join(root, strconv.Itoa(pid), "ns", "pid"))
	if err != nil {
		return false, gone(pid, err)
	}
	defer f.Close()
	for fd := int(f.Fd()); ; {
		parent, err := unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
		if err == unix.EPERM { // above what we may see: not below a slot of ours
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("read parent of pid namespace of pid %d: %w", pid, err)
		}
		defer unix.Close(parent)
		var st unix.Stat_t
		if err := unix.Fstat(parent, &st); err != nil {
			return false, fmt.Errorf("read parent of pid namespace of pid %d: %w", pid, err)
		}
		if in, known := l[Namespace{st.Dev, st.Ino}]; known {
			return in, nil
		}
		fd = parent
	}
}

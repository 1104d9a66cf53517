package hostview

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/prometheus/procfs"

	"github.com/drumsbench/drumsbench/engine"
)

// kthreadd is the parent of all kernel threads.
const kthreadd = 2

func readProcesses(s *Snapshot) error {
	all, err := procfs.AllProcs()
	if err != nil {
		return err
	}
	s.Processes = make(map[ProcessID]Process, len(all))
	byPid := make(map[int]ProcessID, len(all))
	for _, p := range all {
		st, err := p.Stat()
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		if st.PID == kthreadd || st.PPID == kthreadd {
			continue
		}
		proc := Process{Name: st.Comm, State: st.State, Parent: st.PPID}
		if _, proc.Cgroup, err = cgroups.ParseCgroupFileUnified(fmt.Sprintf("/proc/%d/cgroup", p.PID)); err != nil && !gone(err) {
			return err
		}
		proc.Cgroup = strings.TrimSuffix(proc.Cgroup, " (deleted)") // a dead process keeps its group's name
		proc.netns, err = netNamespace(fmt.Sprintf("/proc/%d/ns/net", p.PID))
		switch {
		case errors.Is(err, fs.ErrPermission):
			// A process that may more than we: somebody else's, since we cannot start one.
			proc.closed = true
		case err != nil && !gone(err): // a dead process that was not waited for has none any more
			return err
		}
		id := ProcessID{Pid: p.PID, Start: st.Starttime}
		byPid[p.PID] = id
		s.Processes[id] = proc
	}
	return s.attributeProcesses(byPid)
}

// netNamespace is the number of the network namespace that a link below /proc
// names, 0 for a link to something else.
func netNamespace(link string) (uint64, error) {
	target, err := os.Readlink(link)
	if err != nil {
		return 0, err
	}
	number, found := strings.CutPrefix(target, "net:[")
	if !found {
		return 0, nil
	}
	return strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
}

func (s *Snapshot) attributeProcesses(byPid map[int]ProcessID) error {
	s.NetNamespaces = map[uint64]NetNamespace{}
	home := s.Processes[byPid[self()]].Cgroup
	for id, proc := range s.Processes {
		proc.Ours = s.Scope.claimed(proc.Cgroup) || s.descends(id, byPid) && !s.Scope.otherRun(proc.Cgroup, home)
		if proc.Ours && proc.closed {
			return fmt.Errorf("%w: the network namespace of our process %d cannot be read", engine.ErrUnknown, id.Pid)
		}
		s.Processes[id] = proc
		if proc.netns != 0 && id.Pid != self() { // our own threads are looked at one by one
			ns := s.NetNamespaces[proc.netns]
			ns.Processes = append(ns.Processes, id)
			s.NetNamespaces[proc.netns] = ns
		}
	}
	return nil
}

// descends says whether a process is a true descendant of ours.
func (s *Snapshot) descends(id ProcessID, byPid map[int]ProcessID) bool {
	for range len(byPid) {
		parent, ok := byPid[s.Processes[id].Parent]
		if !ok {
			return false
		}
		if parent.Pid == self() {
			return true
		}
		id = parent
	}
	return false
}

// readOwnNamespaces adds how this process itself keeps network namespaces, even
// those that nobody lives in: by a descriptor that was not closed, or by a
// thread that did not come back.
func readOwnNamespaces(s *Snapshot) error {
	for pattern, word := range map[string]string{"/proc/self/task/*/ns/net": "thread", "/proc/self/fd/*": "descriptor"} {
		links, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, link := range links {
			n, err := netNamespace(link)
			if err != nil && !gone(err) {
				return err
			}
			if err != nil || n == 0 {
				continue // it ended, or was closed, or is something else
			}
			ns := s.NetNamespaces[n]
			ns.Held = fmt.Sprintf("%s %s of this process", word, strings.Split(link, "/")[4])
			s.NetNamespaces[n] = ns
		}
	}
	return nil
}

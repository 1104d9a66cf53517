package hostview

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/cgroups/v3"
	"github.com/moby/sys/mountinfo"
	"github.com/prometheus/procfs"
	"github.com/vishvananda/netlink"

	"github.com/drumsbench/drumsbench/engine"
)

func readMounts(s *Snapshot) error {
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return err
	}
	s.Mounts = make(map[Mount]int, len(infos))
	for _, m := range infos {
		// "shared:12 master:3": the numbers change by themselves, the kinds do not.
		var kinds []string
		for _, tag := range strings.Fields(m.Optional) {
			kind, _, _ := strings.Cut(tag, ":")
			kinds = append(kinds, kind)
		}
		s.Mounts[Mount{
			Point: m.Mountpoint, Root: m.Root, Type: m.FSType, Source: m.Source,
			Options: m.Options, Propagation: strings.Join(kinds, " "),
		}]++
	}
	return nil
}

// kthreadd is the parent of all kernel threads.
const kthreadd = 2

func readProcesses(s *Snapshot) error {
	all, err := procfs.AllProcs()
	if err != nil {
		return err
	}
	s.Processes = make(map[ProcessID]Process, len(all))
	s.NetNamespaces = map[uint64][]ProcessID{}
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
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.PID))
		switch {
		case err == nil:
			number := strings.TrimSuffix(strings.TrimPrefix(link, "net:["), "]")
			if proc.netns, err = strconv.ParseUint(number, 10, 64); err != nil {
				return fmt.Errorf("network namespace %q of %d", link, p.PID)
			}
		case errors.Is(err, fs.ErrPermission):
			// A process that may more than we: somebody else's, since we cannot start one.
			proc.closed = true
		case !gone(err): // a dead process that was not waited for has none any more
			return err
		}
		id := ProcessID{Pid: p.PID, Start: st.Starttime}
		byPid[p.PID] = id
		s.Processes[id] = proc
	}
	for id, proc := range s.Processes {
		proc.Ours = s.Scope.holdsCgroup(proc.Cgroup) || s.descends(id, byPid)
		if proc.Ours && proc.closed {
			return fmt.Errorf("%w: the network namespace of our process %d cannot be read", engine.ErrUnknown, id.Pid)
		}
		s.Processes[id] = proc
		if proc.netns != 0 {
			s.NetNamespaces[proc.netns] = append(s.NetNamespaces[proc.netns], id)
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

func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// readCgroups walks each hierarchy once, wherever it is mounted.
func readCgroups(s *Snapshot) error {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return err
	}
	s.Cgroups = map[string]bool{}
	seen := map[uint64]bool{}
	for _, m := range mounts {
		var st syscall.Stat_t
		if err := syscall.Lstat(m.Mountpoint, &st); err != nil {
			return err
		}
		if seen[uint64(st.Dev)] {
			continue
		}
		seen[uint64(st.Dev)] = true
		if err := s.walkCgroup(m.Mountpoint); err != nil {
			return err
		}
	}
	return nil
}

// walkCgroup lists a group and those below it. A group's link count is two and
// one for each group below (kernfs_refresh_inode), which spares the listing of
// most groups' files.
func (s *Snapshot) walkCgroup(dir string) error {
	var st syscall.Stat_t
	if err := syscall.Lstat(dir, &st); err != nil {
		if gone(err) {
			return nil
		}
		return err
	}
	s.Cgroups[dir] = true
	if st.Nlink == 2 {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		if gone(err) || errors.Is(err, syscall.ENODEV) {
			return nil
		}
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := s.walkCgroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func readLoops(s *Snapshot) error {
	// The attribute exists while the device is bound.
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	if _, err := os.Stat("/sys/block"); err != nil {
		return err
	}
	s.Loops = map[string]string{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if gone(err) || errors.Is(err, syscall.ENODEV) {
			continue
		}
		if err != nil {
			return err
		}
		s.Loops[filepath.Base(filepath.Dir(filepath.Dir(f)))] = strings.TrimSuffix(string(data), "\n")
	}
	return nil
}

func readLinks(s *Snapshot) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	s.Links = map[string]string{}
	for _, l := range links {
		a := l.Attrs()
		s.Links[a.Name] = fmt.Sprintf("%s, index %d", l.Type(), a.Index)
	}
	return nil
}

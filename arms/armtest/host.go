package armtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/prometheus/procfs"
)

// traces names what on the host still bears a run's claim (its id) or lies in
// its directory: mounts, loop devices, cgroups; and every process that descends
// from this one. The machine may be shared, so nothing else is looked at.
func traces(id, dir string) ([]string, error) {
	var found []string
	ours := func(text string) bool { return strings.Contains(text, id) || strings.Contains(text, dir) }

	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if ours(m.Mountpoint + " " + m.Source + " " + m.VFSOptions) {
			found = append(found, "mount "+m.Mountpoint)
		}
		if m.FSType == "cgroup" || m.FSType == "cgroup2" {
			groups, err := cgroups(m.Mountpoint, id)
			if err != nil {
				return nil, err
			}
			found = append(found, groups...)
		}
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, l := range loops {
		if b, err := os.ReadFile(l); err == nil && ours(string(b)) {
			found = append(found, "loop device "+l)
		}
	}
	processes, err := descendants()
	return append(found, processes...), err
}

func cgroups(mount, id string) (found []string, err error) {
	err = filepath.WalkDir(mount, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // somebody else's went away while we looked
			return nil
		case err != nil:
			return err
		case d.IsDir() && strings.Contains(d.Name(), id):
			found = append(found, "cgroup "+path)
		}
		return nil
	})
	return found, err
}

// descendants of this process, zombies included.
func descendants() ([]string, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	parents, text := map[int]int{}, map[int]string{}
	for _, p := range all {
		s, err := p.Stat()
		if err != nil {
			continue // it ended while we looked
		}
		parents[p.PID], text[p.PID] = s.PPID, fmt.Sprintf("process %d %s (%s)", p.PID, s.Comm, s.State)
	}
	var found []string
	for pid := range parents {
		for at := parents[pid]; at > 0; at = parents[at] {
			if at == os.Getpid() {
				found = append(found, text[pid])
				break
			}
		}
	}
	slices.Sort(found)
	return found, nil
}

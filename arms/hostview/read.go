package hostview

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
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
		mount := Mount{
			Point: m.Mountpoint, Root: m.Root, Type: m.FSType, Source: m.Source,
			Options: m.Options, Propagation: strings.Join(kinds, " "),
		}
		if m.FSType == "overlay" {
			mount.Layers = m.VFSOptions
		}
		s.Mounts[mount]++
	}
	return nil
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
		err := syscall.Lstat(m.Mountpoint, &st)
		if gone(err) { // a run's own mount of a hierarchy, which went meanwhile
			continue
		}
		if err != nil {
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
	s.Loops = map[string]Loop{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if gone(err) || errors.Is(err, syscall.ENODEV) {
			continue
		}
		if err != nil {
			return err
		}
		s.Loops[filepath.Base(filepath.Dir(filepath.Dir(f)))] = Loop{Backing: strings.TrimSuffix(string(data), "\n")}
	}
	return nil
}

func readLinks(s *Snapshot) error {
	var links []netlink.Link
	err := complete(func() (err error) {
		links, err = netlink.LinkList()
		return err
	})
	if err != nil {
		return err
	}
	s.Links = map[string]Link{}
	for _, l := range links {
		a := l.Attrs()
		link := Link{Type: l.Type(), Index: a.Index, Names: a.AltNames, Peer: a.NetNsID, Address: a.HardwareAddr.String()}
		if a.Alias != "" {
			link.Names = append(link.Names, a.Alias)
		}
		s.Links[a.Name] = link
	}
	return nil
}

// complete repeats a netlink dump that was interrupted: what was listed changed meanwhile.
func complete(dump func() error) error {
	var err error
	for range 20 {
		if err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}

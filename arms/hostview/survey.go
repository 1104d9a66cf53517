package hostview

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Survey is a look at the host that later ones are compared with. It implements
// engine.Survey.
type Survey struct{ Before Snapshot }

// Look takes the first snapshot. What is ours in it is left out: it is of an earlier
// attempt at the run, which this one goes on with, and no more the host's at its end.
func Look(ctx context.Context, scope Scope) (Survey, error) {
	s, err := Take(ctx, scope)
	if err == nil {
		err = s.leaveOutOurs()
	}
	return Survey{s}, err
}

// leaveOutOurs takes the things of ours out of a snapshot. Of loop devices only the name
// that a run left with them says whose they are; it is read where there is anything of ours.
func (s *Snapshot) leaveOutOurs() error {
	maps.DeleteFunc(s.NetNamespaces, func(_ uint64, n NetNamespace) bool {
		return slices.ContainsFunc(n.Processes, func(id ProcessID) bool { return s.ofEarlier(s.Processes[id]) })
	})
	some := false
	s.earlier = map[ProcessID]bool{}
	maps.DeleteFunc(s.Processes, func(id ProcessID, p Process) bool {
		s.earlier[id] = s.ofEarlier(p)
		return s.earlier[id]
	})
	maps.DeleteFunc(s.Cgroups, func(path string, _ bool) bool {
		ours := s.Scope.claimed(path) && s.Scope.ID != ""
		some = some || ours
		return ours
	})
	if !some {
		return nil
	}
	maps.DeleteFunc(s.Mounts, func(m Mount, _ int) bool { return s.Scope.holdsMount(m) })
	maps.DeleteFunc(s.Links, func(name string, l Link) bool {
		return s.Scope.bears(name) || slices.ContainsFunc(l.Names, s.Scope.bears)
	})
	maps.DeleteFunc(s.Rules, func(_ string, r Rule) bool { return r.Ours })
	if err := s.nameLoops(Snapshot{}); err != nil {
		return &engine.Error{Op: "look at loop device", Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
	}
	maps.DeleteFunc(s.Loops, func(_ string, l Loop) bool { return s.Scope.bears(l.Name) })
	for dev, l := range s.Loops {
		l.Name = "" // as of any first snapshot
		s.Loops[dev] = l
	}
	return nil
}

// ofEarlier says whether a process is of an earlier attempt at the run. Who descends from
// us is of this one.
func (s *Snapshot) ofEarlier(p Process) bool { return s.Scope.ID != "" && s.Scope.claimed(p.Cgroup) }

// Facts implements engine.Survey: how many things of each kind there are.
func (s Survey) Facts() []bench.Fact {
	b := s.Before
	var out []bench.Fact
	for _, f := range []struct {
		name, source string
		n            int
	}{
		{"mounts", "/proc/thread-self/mountinfo", len(b.Mounts)},
		{"processes", "/proc/PID", len(b.Processes)},
		{"control-groups", "mounted hierarchies", len(b.Cgroups)},
		{"loop-devices", "/sys/block", len(b.Loops)},
		{"network-namespaces", "/proc/PID/ns/net", len(b.NetNamespaces)},
		{"links", "rtnetlink", len(b.Links)},
		{"firewall", "nf_tables, x_tables", len(b.Rules)},
		{"sysctls", sysctlRoot, len(b.Sysctls)},
	} {
		out = append(out, bench.Fact{Name: "host-" + f.name, Known: true, Value: fmt.Sprint(f.n), Source: f.source, View: engine.ViewHost})
	}
	return out
}

// Compare implements engine.Survey: it looks again, also inside of what is new,
// where that says whose it is.
func (s Survey) Compare(ctx context.Context) ([]bench.Finding, error) {
	after, err := Take(ctx, s.Before.Scope)
	if err != nil {
		return nil, err
	}
	if err := after.nameLoops(s.Before); err != nil {
		return nil, &engine.Error{Op: "look at loop device", Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
	}
	before := s.Before
	before.Links = maps.Clone(before.Links)
	if err := attributeLinks(before, after); err != nil {
		return nil, &engine.Error{Op: "look at network namespace", Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
	}
	return Diff(before, after), nil
}

// nameLoops reads the names of the devices that are new: runs share an image, and
// the name that a run left with its device says whose it is.
func (s *Snapshot) nameLoops(before Snapshot) error {
	for dev, loop := range s.Loops {
		if old, ok := before.Loops[dev]; ok && old.Backing == loop.Backing {
			continue
		}
		name, err := loopName("/dev/" + dev)
		switch {
		case errors.Is(err, unix.ENXIO): // it was detached meanwhile
			delete(s.Loops, dev)
		case err != nil:
			return err
		default:
			loop.Name = name
			s.Loops[dev] = loop
		}
	}
	return nil
}

func loopName(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err != nil {
		return "", &os.PathError{Op: "read status of", Path: path, Err: err}
	}
	return unix.ByteSliceToString(info.File_name[:]), nil
}

// attributeLinks finds the links that go with a new network namespace of ours:
// those whose other end is in it, and those that were moved into it.
func attributeLinks(before, after Snapshot) error {
	for _, n := range slices.Sorted(maps.Keys(after.NetNamespaces)) {
		ns := after.NetNamespaces[n]
		if _, old := before.NetNamespaces[n]; old {
			continue
		}
		if ours, _ := after.holder(ns); !ours {
			continue
		}
		if err := lookInto(n, ns, before, after); err != nil && !gone(err) {
			return err
		}
	}
	return nil
}

func lookInto(number uint64, ns NetNamespace, before, after Snapshot) error {
	path := ""
	for _, id := range ns.Processes {
		path = fmt.Sprintf("/proc/%d/ns/net", id.Pid)
	}
	if path == "" {
		word := strings.Fields(ns.Held) // "thread N of …", "descriptor N of …"
		path = map[string]string{"thread": "/proc/self/task/" + word[1] + "/ns/net", "descriptor": "/proc/self/fd/" + word[1]}[word[0]]
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if id, err := netlink.GetNetNsIdByFd(fd); err == nil && id >= 0 {
		for name, l := range after.Links {
			if l.Peer == id {
				l.within = true
				after.Links[name] = l
			}
		}
	}
	inside, err := netlink.NewHandleAt(netns.NsHandle(fd))
	if err != nil {
		return err
	}
	defer inside.Close()
	var links []netlink.Link
	err = complete(func() (err error) {
		links, err = inside.LinkList()
		return err
	})
	if err != nil {
		return err
	}
	for _, l := range links {
		a := l.Attrs()
		// A link keeps its hardware address when it moves, its name mostly, its index if it is free there.
		old, was := before.Links[a.Name]
		if _, still := after.Links[a.Name]; was && !still && old.Type == l.Type() && old.Address == a.HardwareAddr.String() {
			old.moved = fmt.Sprintf("network namespace %d", number)
			before.Links[a.Name] = old
		}
	}
	return nil
}

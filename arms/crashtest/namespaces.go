package crashtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	prom "github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// namespaceKinds are those that an arm makes.
var namespaceKinds = []string{"mnt", "pid", "net", "ipc", "uts", "user", "cgroup"}

// namespace is one of a run.
type namespace struct {
	of string
	// id is the kernel's own, which no other namespace ever has; 0 where it has none to
	// tell. The number in the link is free for the next namespace once this one is gone
	// (proc_alloc_inum, fs/proc/generic.c), and others on the machine make some too.
	id uint64
}

// namespacesOf lists the namespaces of the run's processes that are not our own, by their links.
func namespacesOf(claim string) map[string]namespace {
	spaces := map[string]namespace{}
	if claim == "" {
		return spaces
	}
	procs, err := prom.AllProcs()
	if err != nil {
		return spaces
	}
	own := map[string]bool{}
	for _, kind := range namespaceKinds {
		link, _ := os.Readlink("/proc/self/ns/" + kind)
		own[link] = true
	}
	for _, p := range procs {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID))
		if err != nil || !strings.Contains(string(text), "/drums-"+claim) {
			continue
		}
		name, _ := p.Comm()
		for _, kind := range namespaceKinds {
			path := fmt.Sprintf("/proc/%d/ns/%s", p.PID, kind)
			link, err := os.Readlink(path)
			if err == nil && !own[link] {
				spaces[link] = namespace{name, namespaceID(path)}
			}
		}
	}
	return spaces
}

// nsGetID is NS_GET_ID of linux/nsfs.h, from kernel 6.18 on.
const nsGetID = 0x8008b70d

// namespaceID is the kernel's id of the namespace that a path leads to; 0 where it cannot be known.
func namespaceID(path string) (id uint64) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), nsGetID, uintptr(unsafe.Pointer(&id))); e != 0 {
		return 0
	}
	return id
}

// at says whether what a path leads to, whose link is like the namespace's, is that one.
// What cannot be told apart is.
func (n namespace) at(path string) bool {
	if n.id == 0 {
		return true
	}
	id := namespaceID(path)
	return id == 0 || id == n.id
}

// namespaceHolders lists who is in one of the namespaces, or keeps it open or mounted.
func namespaceHolders(spaces map[string]namespace) (holders []string, err error) {
	if len(spaces) == 0 {
		return nil, nil
	}
	procs, err := prom.AllProcs()
	if err != nil {
		return nil, err
	}
	for _, p := range procs {
		var links []string
		for _, kind := range namespaceKinds {
			links = append(links, fmt.Sprintf("/proc/%d/ns/%s", p.PID, kind))
		}
		descriptors, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID))
		for _, link := range append(links, descriptors...) {
			target, err := os.Readlink(link)
			if err != nil {
				continue
			}
			if n, ok := spaces[target]; ok && n.at(link) {
				holders = append(holders, fmt.Sprintf("namespace %s of %s is held by %s", target, n.of, link))
			}
		}
	}
	mounted, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("nsfs"))
	if err != nil {
		return nil, err
	}
	for _, m := range mounted {
		if n, ok := spaces[m.Root]; ok && n.at(m.Mountpoint) {
			holders = append(holders, fmt.Sprintf("namespace %s of %s is mounted on %s", m.Root, n.of, m.Mountpoint))
		}
	}
	return holders, nil
}

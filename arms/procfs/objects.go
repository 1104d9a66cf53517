package procfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// separated are the kinds of namespaces that a slot has of its own.
var separated = []string{"pid", "mnt", "net", "ipc", "uts"}

// memoryDevices are character devices of major number 1 (devices.txt) by their minor one.
var memoryDevices = map[uint32]string{3: "/dev/null", 5: "/dev/zero", 7: "/dev/full", 8: "/dev/random", 9: "/dev/urandom"}

// Objects lists what the processes of a slot hold of the kernel that another slot could hold too: themselves, their
// namespaces, and of their descriptors and shared mappings pipes, sockets, eventfds, locks, regular files that can be
// written, and devices. Each has the number that the kernel knows it by on the whole host. Of other anonymous
// inodes (epoll, timerfd, inotify) the kernel gives none; they are not listed. What closes meanwhile is left out.
func Objects(initPid int) ([]engine.Object, error) {
	tasks, err := Tasks(initPid)
	if err != nil {
		return nil, err
	}
	l := objects{seen: map[engine.Object]bool{}}
	for _, t := range tasks {
		err := l.task(t, true)
		if errors.Is(err, engine.ErrDead) && t.Pid != initPid {
			continue // it has ended, and holds nothing any more
		}
		if err != nil {
			return nil, err
		}
	}
	return l.list, nil
}

// ProcessObjects is Objects of one process in the host's own namespaces, such as a virtual machine, whose guest sees none
// of them: no namespace is listed. A file of those that are named private is left out though it is open for writing, as
// long as the process maps it, and each of its mappings is a private one; a name that leads nowhere is an error.
func ProcessObjects(pid int, private ...string) ([]engine.Object, error) {
	status, err := observe.ReadStatus(os.DirFS(root), pid)
	if err != nil {
		return nil, gone(pid, err)
	}
	l := objects{seen: map[engine.Object]bool{}}
	if err := l.task(Task{Pid: pid, Inner: pid, Status: status}, false); err != nil {
		return nil, err
	}
	for _, path := range private {
		st, err := statLink(path)
		if err != nil {
			return nil, err
		}
		only, err := privateOnly(pid, st)
		if err != nil {
			return nil, err
		}
		if only {
			l.list = slices.DeleteFunc(l.list, func(o engine.Object) bool { return o.Kind == engine.ObjectFile && o.ID == file(st.Dev, st.Ino) })
		}
	}
	return l.list, nil
}

// privateOnly says whether a process maps a file, and has no mapping of it that others see writes of.
func privateOnly(pid int, of Stat) (bool, error) {
	dir := filepath.Join(root, strconv.Itoa(pid))
	maps, err := mappings(dir)
	if err != nil {
		return false, gone(pid, err)
	}
	found := false
	for _, m := range maps {
		if m.path == "" || len(m.perms) < 4 {
			continue
		}
		st, err := statLink(filepath.Join(dir, "map_files", m.span))
		switch {
		case vanished(err):
			continue
		case err != nil:
			return false, err
		case st.Dev != of.Dev || st.Ino != of.Ino:
			continue
		case m.perms[3] != 'p':
			return false, nil
		}
		found = true
	}
	return found, nil
}

type objects struct {
	list []engine.Object
	seen map[engine.Object]bool // without holders: each is listed once
}

func (l *objects) add(kind engine.ObjectKind, id, holder string) {
	if key := (engine.Object{Kind: kind, ID: id}); !l.seen[key] {
		l.seen[key] = true
		l.list = append(l.list, engine.Object{Kind: kind, ID: id, Holder: holder})
	}
}

// task lists what a process holds, with its namespaces where they are to be its slot's own.
func (l *objects) task(t Task, namespaces bool) error {
	id, err := Identity(t.Pid)
	if err != nil {
		return err
	}
	l.add(engine.ObjectProcess, fmt.Sprintf("%d, started %s", t.Pid, id.StartTicks), t.subject())
	if t.Zombie() {
		return nil
	}
	for _, kind := range separated {
		if !namespaces {
			break
		}
		ns, err := NamespaceOf(t.Pid, kind)
		if err != nil {
			return err
		}
		l.add(engine.ObjectNamespace, fmt.Sprintf("%s:[%d]", kind, ns.Ino), t.subject())
	}
	fds, err := Descriptors(t)
	if err != nil {
		return err
	}
	for _, d := range fds {
		if err := l.descriptor(t, d); err != nil {
			return err
		}
	}
	return l.mappings(t)
}

func (l *objects) descriptor(t Task, d Descriptor) error {
	holder := fmt.Sprintf("%s descriptor %d %s", t.subject(), d.FD, d.Link)
	for _, k := range d.Info.Locks {
		l.add(engine.ObjectLock, fmt.Sprintf("%s bytes %d-%d", file(k.Dev, k.Ino), k.Start, k.End), holder)
	}
	switch {
	case strings.HasPrefix(d.Link, "pipe:["):
		l.add(engine.ObjectPipe, d.Link, holder)
		return nil
	case strings.HasPrefix(d.Link, "socket:["):
		l.add(engine.ObjectSocket, d.Link, holder)
		return nil
	case d.Link == linkEventfd:
		id := d.Info.Fields[fieldEventfd]
		if id == "" {
			return fmt.Errorf("%w: the kernel gives descriptor %d of pid %d no eventfd-id", engine.ErrUnknown, d.FD, d.Pid)
		}
		l.add(engine.ObjectEventFD, id, holder)
		return nil
	case strings.HasPrefix(d.Link, "anon_inode:"):
		return nil
	}
	st, err := d.Stat()
	switch {
	case vanished(err):
		return nil
	case err != nil:
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == tunDevice {
		return l.tap(d, holder)
	}
	l.file(st, d.Info.Flags&unix.O_ACCMODE != unix.O_RDONLY, holder)
	return nil
}

// tunDevice is /dev/net/tun (devices.txt).
var tunDevice = unix.Mkdev(10, 200)

// tap adds the network interface that a descriptor of /dev/net/tun is: by the device alone all such would be
// one, and each is of its own. Of one that has no interface yet the device is listed.
func (l *objects) tap(d Descriptor, holder string) error {
	pidfd, err := unix.PidfdOpen(d.Pid, 0)
	if err != nil {
		return gone(d.Pid, err)
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, d.FD, 0)
	switch {
	case errors.Is(err, unix.EBADF) || errors.Is(err, unix.ESRCH): // closed meanwhile
		return nil
	case err != nil:
		return fmt.Errorf("look at descriptor %d of pid %d: %w", d.FD, d.Pid, err)
	}
	defer unix.Close(fd)
	fail := func(err error) error {
		if errors.Is(err, unix.EBADFD) {
			l.add(engine.ObjectDevice, "character 10:200", holder)
			return nil
		}
		return fmt.Errorf("read the interface of descriptor %d of pid %d: %w", d.FD, d.Pid, err)
	}
	name, err := unix.NewIfreq("")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, name); err != nil {
		return fail(err)
	}
	ns, err := unix.IoctlRetInt(fd, unix.TUNGETDEVNETNS)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(ns)
	var st unix.Stat_t
	if err := unix.Fstat(ns, &st); err != nil {
		return fail(err)
	}
	l.add(engine.ObjectDevice, fmt.Sprintf("interface %s in net:[%d]", name.Name(), st.Ino), holder)
	return nil
}

// file adds a path's file by its kind.
func (l *objects) file(st Stat, writable bool, holder string) {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO:
		l.add(engine.ObjectPipe, file(st.Dev, st.Ino), holder)
	case unix.S_IFREG:
		if writable {
			l.add(engine.ObjectFile, file(st.Dev, st.Ino), holder)
		}
	case unix.S_IFCHR:
		l.add(engine.ObjectDevice, character(st), holder)
	case unix.S_IFBLK:
		l.add(engine.ObjectDevice, fmt.Sprintf("block %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), holder)
	}
}

func file(dev, ino uint64) string {
	return fmt.Sprintf("device %d:%d inode %d", unix.Major(dev), unix.Minor(dev), ino)
}

// character is what a character device is the same by: its number, but for terminals, whose numbers each devpts gives out
// anew, and /dev/tty, which is everybody's own.
func character(st Stat) string {
	major, minor := unix.Major(st.Rdev), unix.Minor(st.Rdev)
	switch name := memoryDevices[minor]; {
	case major == 1 && name != "":
		return name
	case major == 10 && minor == 232: // each machine is a descriptor of its own
		return "/dev/kvm"
	}
	text := fmt.Sprintf("character %d:%d", major, minor)
	if major == 5 || major >= 136 && major <= 143 { // TTYAUX_MAJOR, UNIX98_PTY_SLAVE_MAJOR
		return fmt.Sprintf("%s on device %d:%d", text, unix.Major(st.Dev), unix.Minor(st.Dev))
	}
	return text
}

// mappings adds what is mapped shared and writable.
func (l *objects) mappings(t Task) error {
	dir := filepath.Join(root, strconv.Itoa(t.Pid))
	maps, err := mappings(dir)
	if err != nil {
		return gone(t.Pid, err)
	}
	for _, m := range maps {
		if len(m.perms) < 4 || m.perms[1] != 'w' || m.perms[3] != 's' {
			continue
		}
		st, err := statLink(filepath.Join(dir, "map_files", m.span))
		switch {
		case vanished(err):
			continue
		case err != nil:
			return err
		}
		holder := fmt.Sprintf("%s mapping %s", t.subject(), m.path)
		if id, err := segment(t.Pid, m, st); err != nil {
			return err
		} else if id != "" {
			l.add(engine.ObjectFile, id, holder)
			continue
		}
		l.file(st, true, holder)
	}
	return nil
}

// segment is what a segment of System V memory is the same by; empty for another mapping. Its file lies on a mount of
// the kernel's own, which all memory without a name shares, and has the segment's number for an inode, which each IPC
// namespace counts from 0 (newseg in ipc/shm.c).
func segment(pid int, m mapping, st Stat) (string, error) {
	if !strings.HasPrefix(m.path, "/SYSV") {
		return "", nil
	}
	kernels, err := memoryMount()
	if err != nil || st.Dev != kernels {
		return "", err
	}
	ns, err := NamespaceOf(pid, "ipc")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("System V segment %d of ipc:[%d]", st.Ino, ns.Ino), nil
}

// memoryMount is the device number of the kernel's own tmpfs: a memfd is a file of it.
var memoryMount = sync.OnceValues(func() (uint64, error) {
	fd, err := unix.MemfdCreate("drums", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("make memfd: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("stat memfd: %w", err)
	}
	return st.Dev, nil
})

// ReadObjects is Objects as a reading.
func ReadObjects(initPid int, view bench.View) engine.Reading[[]engine.Object] {
	list, err := Objects(initPid)
	if err != nil {
		return engine.Unknown[[]engine.Object](err.Error(), view)
	}
	return engine.Known(list, fmt.Sprintf("/proc/%d/ of the tree", initPid), view)
}

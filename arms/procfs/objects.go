package procfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

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
// of them: no namespace is listed.
func ProcessObjects(pid int) ([]engine.Object, error) {
	status, err := observe.ReadStatus(os.DirFS(root), pid)
	if err != nil {
		return nil, gone(pid, err)
	}
	l := objects{seen: map[engine.Object]bool{}}
	err = l.task(Task{Pid: pid, Inner: pid, Status: status}, false)
	return l.list, err
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
	l.file(st, d.Info.Flags&unix.O_ACCMODE != unix.O_RDONLY, holder)
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
		l.file(st, true, fmt.Sprintf("%s mapping %s", t.subject(), m.path))
	}
	return nil
}

// ReadObjects is Objects as a reading.
func ReadObjects(initPid int, view bench.View) engine.Reading[[]engine.Object] {
	list, err := Objects(initPid)
	if err != nil {
		return engine.Unknown[[]engine.Object](err.Error(), view)
	}
	return engine.Known(list, fmt.Sprintf("/proc/%d/ of the tree", initPid), view)
}

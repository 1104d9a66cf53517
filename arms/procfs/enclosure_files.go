package procfs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/observe"
)

const (
	linkEventfd  = "anon_inode:[eventfd]"
	linkPidfd    = "anon_inode:[pidfd]"
	fieldEventfd = "eventfd-id"
	fieldTTY     = "tty-index"
	fieldPid     = "Pid"

	hintMount  = "open it inside the slot, and close every inherited descriptor before the slot's first program starts"
	hintShared = "close the copy outside, and hand no descriptor across the slot's border"
	hintDump   = "CRIU has no image for it: close it before the checkpoint"
)

// dumpable are the anonymous files that CRIU has an image for (criu/files.c, dump_one_file).
var dumpable = []string{
	linkEventfd, linkPidfd, "anon_inode:[eventpoll]", "anon_inode:inotify", "anon_inode:[fanotify]",
	"anon_inode:[signalfd]", "anon_inode:[timerfd]", "anon_inode:bpf-map",
}

// pathless says that a path-like link is not on any mount of a slot but in memory of its own.
func pathless(link string) bool {
	for _, p := range []string{"/memfd:", "/dev/zero (deleted)", "/SYSV"} {
		if strings.HasPrefix(link, p) {
			return true
		}
	}
	return false
}

// checkMounts looks at everything with a path: open files, directories, roots and mappings.
func (e *enclosure) checkMounts() error {
	self, err := namespace(filepath.Join(root, "thread-self", "ns", "mnt"))
	if err != nil {
		return err
	}
	ids := map[uint64]bool{}
	for _, t := range e.tasks {
		// A nested mount namespace is the slot's as long as nobody outside is in it, which checkNamespaces says.
		if ns, err := NamespaceOf(t.Pid, "mnt"); t.Zombie() || err == nil && ns == self {
			continue
		}
		ms, err := mountIDs(strconv.Itoa(t.Pid))
		if (vanished(err) || errors.Is(err, unix.EINVAL) && leaving(t.Pid)) && t.Pid != e.init {
			continue
		}
		if err != nil {
			return err
		}
		for id := range ms {
			ids[id] = true
		}
	}
	host, err := mountIDs("thread-self")
	if err != nil {
		return err
	}
	judge := func(subject, what string, st Stat) {
		if ids[st.Mount] {
			return
		}
		where := "a mount that is in no mount table of the slot, unmounted or of another namespace"
		if point, ok := host[st.Mount]; ok {
			where = fmt.Sprintf("the host's mount %s", point)
		}
		e.add(subject, fmt.Sprintf("%s is on %s", what, where), hintMount)
	}
	for _, d := range e.fds {
		if !strings.HasPrefix(d.Link, "/") || pathless(d.Link) {
			continue
		}
		st, err := d.Stat()
		if vanished(err) {
			continue
		}
		if err != nil {
			return err
		}
		judge(e.subject(d), "open file "+d.Link, st)
	}
	seen := map[string]bool{}
	for _, t := range e.tasks {
		if t.Zombie() {
			continue
		}
		dir := filepath.Join(root, strconv.Itoa(t.Pid))
		for _, name := range []string{"cwd", "root", "exe"} {
			st, err := statLink(filepath.Join(dir, name))
			if vanished(err) {
				continue
			}
			if err != nil {
				return err
			}
			judge(t.subject(), name, st)
		}
		maps, err := mappings(dir)
		if vanished(err) && t.Pid != e.init {
			continue
		}
		if err != nil {
			return err
		}
		for _, m := range maps {
			if pathless(m.path) {
				continue
			}
			if strings.HasPrefix(m.path, "anon_inode:") {
				if !slices.Contains(dumpable, m.path) {
					e.add(t.subject(), "maps "+m.path, hintDump)
				}
				continue
			}
			key := m.dev + m.ino + m.path
			if seen[key] || !strings.HasPrefix(m.path, "/") {
				continue
			}
			st, err := statLink(filepath.Join(dir, "map_files", m.span))
			if vanished(err) {
				continue
			}
			if err != nil {
				return err
			}
			seen[key] = ids[st.Mount]
			judge(t.subject(), "mapped file "+m.path, st)
		}
	}
	return nil
}

// leaving: a process that has no namespaces any more, for which mountinfo gives
// EINVAL (fs/proc_namespace.c, mounts_open_common), is on its way out and no zombie
// yet; unless only its first thread is, and others live on.
func leaving(pid int) bool {
	st, err := observe.ReadStatus(os.DirFS(root), pid)
	return vanished(err) || err == nil && st.Threads <= 1
}

// mountIDs are the mounts of a process's namespace: number and mount point.
func mountIDs(pid string) (map[uint64]string, error) {
	f, err := os.Open(filepath.Join(root, pid, "mountinfo"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	infos, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return nil, fmt.Errorf("read mounts of pid %s: %w", pid, err)
	}
	ids := make(map[uint64]string, len(infos))
	for _, i := range infos {
		ids[uint64(i.ID)] = i.Mountpoint
	}
	return ids, nil
}

// mapping is a file mapping; span is its name in map_files.
type mapping struct{ span, perms, dev, ino, path string }

// MappedFile is a file that a process maps, as its list of mappings names it: before Linux 6.8 the numbers of one of
// an overlay are of another inode than those of its descriptors, and the path is the same.
type MappedFile struct {
	Dev, Ino uint64
	Path     string
}

// MappedFiles lists them, each as often as it is mapped. None of a process that is gone.
func MappedFiles(pid int) ([]MappedFile, error) {
	list, err := mappings(filepath.Join(root, strconv.Itoa(pid)))
	if vanished(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read mappings of pid %d: %w", pid, err)
	}
	out := make([]MappedFile, 0, len(list))
	for _, m := range list {
		major, minor, _ := strings.Cut(m.dev, ":")
		x, err1 := strconv.ParseUint(major, 16, 32)
		y, err2 := strconv.ParseUint(minor, 16, 32)
		ino, err3 := strconv.ParseUint(m.ino, 10, 64)
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("read mappings of pid %d: %w: %w", pid, engine.ErrUnknown, err)
		}
		out = append(out, MappedFile{unix.Mkdev(uint32(x), uint32(y)), ino, m.path})
	}
	return out, nil
}

// mappings reads the file mappings of /proc/PID/maps. prometheus/procfs parses addresses into numbers, but map_files needs their text.
func mappings(dir string) ([]mapping, error) {
	f, err := os.Open(filepath.Join(dir, "maps"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMappings(f)
}

func parseMappings(r io.Reader) ([]mapping, error) {
	var out []mapping
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		// address perms offset dev inode, then the path up to the line's end
		fields := strings.Fields(s.Text())
		if len(fields) < 6 || fields[4] == "0" && fields[3] == "00:00" { // the first System V segment is inode 0 of a device
			continue
		}
		_, path, _ := strings.Cut(s.Text(), " "+fields[4]+" ")
		out = append(out, mapping{span: fields[0], perms: fields[1], dev: fields[3], ino: fields[4], path: strings.TrimLeft(path, " ")})
	}
	return out, s.Err()
}

// checkShared finds open files that a process outside holds too.
func (e *enclosure) checkShared() error {
	for _, d := range e.fds {
		var hs []holder
		var err error
		switch {
		case strings.HasPrefix(d.Link, "pipe:["), strings.HasPrefix(d.Link, "socket:["):
			hs = e.outside.links[d.Link]
		case d.Link == linkEventfd:
			hs, err = e.outside.event(d.Info.Fields[fieldEventfd])
		case strings.HasPrefix(d.Link, "anon_inode:"):
			hs, err = e.sameFile(d, e.outside.links[d.Link])
		case strings.HasPrefix(d.Link, "/"):
			var st Stat
			if st, err = d.Stat(); err == nil && (st.Mode&unix.S_IFMT == unix.S_IFIFO || strings.HasPrefix(d.Link, "/memfd:")) {
				hs, err = e.outside.file(fileID{st.Dev, st.Ino})
			}
		}
		if vanished(err) {
			continue
		}
		if err != nil {
			return err
		}
		if len(hs) > 0 {
			e.add(e.subject(d), fmt.Sprintf("%s is also held outside the slot by %s", d.Link, e.strangers(hs)), hintShared)
		}
	}
	return nil
}

// sameFile keeps the holders that share the open file description with d.
func (e *enclosure) sameFile(d Descriptor, hs []holder) ([]holder, error) {
	var out []holder
	for _, h := range hs {
		same, err := SameFile(d.Pid, d.FD, h.pid, h.fd)
		if vanished(err) || isClosed(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if same {
			out = append(out, h)
		}
	}
	return out, nil
}

// checkKinds finds files of kinds that CRIU cannot dump, terminals with one side missing, and pidfds that point out of the slot.
func (e *enclosure) checkKinds() error {
	masters := map[string]bool{}
	for _, d := range e.fds {
		if n, ok := d.Info.Fields[fieldTTY]; ok {
			masters[n] = true
		}
	}
	for _, d := range e.fds {
		if strings.HasPrefix(d.Link, "anon_inode:") || strings.HasPrefix(d.Link, "/secretmem") {
			if !slices.Contains(dumpable, d.Link) {
				e.add(e.subject(d), "cannot be dumped: "+d.Link, hintDump)
			}
			if d.Link == linkPidfd {
				pid, err := strconv.Atoi(d.Info.Fields[fieldPid])
				if _, ok := e.byPid[pid]; err != nil || !ok && pid > 0 {
					e.add(e.subject(d), fmt.Sprintf("is a pidfd of %s, outside the slot", e.stranger(pid)), "close it before the checkpoint")
				}
			}
			continue
		}
		if !strings.HasPrefix(d.Link, "/") || pathless(d.Link) {
			continue
		}
		st, err := d.Stat()
		if vanished(err) {
			continue
		}
		if err != nil {
			return err
		}
		if d.Info.Flags&unix.O_PATH != 0 {
			continue
		}
		major, minor := unix.Major(st.Rdev), unix.Minor(st.Rdev)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFBLK:
			e.add(e.subject(d), fmt.Sprintf("block device %s (%d:%d) is open", d.Link, major, minor), hintDump)
		case unix.S_IFCHR:
			switch {
			case major >= 136 && major <= 143: // slaves of unix98 terminals
				if !masters[strconv.Itoa(int(major-136)<<8+int(minor))] {
					e.add(e.subject(d), fmt.Sprintf("no process of the slot holds the master side of terminal %s", d.Link), "give the process a terminal of the slot's own, or /dev/null")
				}
			case !dumpableDevice(major, minor):
				e.add(e.subject(d), fmt.Sprintf("character device %s (%d:%d) is open", d.Link, major, minor), hintDump)
			}
		}
	}
	return nil
}

// dumpableDevice follows CRIU's dump_chrdev: memory devices, terminals, and of the misc devices only tun and autofs.
func dumpableDevice(major, minor uint32) bool {
	switch {
	case major == 1, major == 4, major == 5, major >= 128 && major <= 143:
		return true
	case major == 10:
		return minor == 200 || minor == 235
	}
	return false
}

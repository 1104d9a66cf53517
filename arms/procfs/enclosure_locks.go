package procfs

import (
	"fmt"
	"strings"

	"github.com/drumsbench/drumsbench/engine/observe"
)

const (
	hintLockSetting = "set the arm's locks to repair"
	hintLockShared  = "share no file between the slot and the host, or let the process outside give up its lock before the checkpoint"
)

// inode is a file as the kernel's lock lines name it.
type inode struct{ dev, ino uint64 }

// checkLocks compares the locks of the slot's descriptors with the host's table.
//
// Whose a line of the table is: of POSIX locks and of all waiters the pid says
// it; a held OFDLCK, FLOCK or LEASE belongs to an open file description, so only
// the descriptors themselves tell.
func (e *enclosure) checkLocks() error {
	ours := map[inode]Descriptor{}
	for _, d := range e.fds {
		for _, l := range d.Info.Locks {
			if _, ok := ours[inode{l.Dev, l.Ino}]; !ok {
				ours[inode{l.Dev, l.Ino}] = d
			}
			subject := fmt.Sprintf("%s %s", e.byPid[d.Pid].subject(), d.Link)
			if l.Type == observe.LockLease || l.Type == "DELEG" || l.Type == "LAYOUT" {
				e.add(subject, fmt.Sprintf("%s lease is held", l.Mode), "let the process give up its lease before the checkpoint")
			} else if e.options.Locks != "repair" && e.options.Locks != "criu" {
				e.add(subject, fmt.Sprintf("%s %s lock on bytes %s is held", l.Type, l.Mode, span(l)), hintLockSetting)
			}
		}
	}
	table, err := observe.ReadLocks(e.proc)
	if err != nil {
		return err
	}
	for _, l := range table {
		if t, inside := e.byPid[l.Pid]; inside && l.Waiting {
			if _, ok := ours[inode{l.Dev, l.Ino}]; !ok {
				// It waits for somebody: find the descriptor for the file's name.
				ours[inode{l.Dev, l.Ino}] = Descriptor{Pid: t.Pid, Inner: t.Inner, FD: -1, Link: "a file"}
			}
		}
	}
	for _, l := range table {
		d, shared := ours[inode{l.Dev, l.Ino}]
		if _, inside := e.byPid[l.Pid]; !shared || inside || l.Type != observe.LockPOSIX && !l.Waiting {
			continue
		}
		if l.Pid <= 0 {
			// Who waits for an OFDLCK is not told. It is one of the slot unless somebody outside has the file open.
			foreign, err := e.openOutside(d)
			if err != nil {
				return err
			}
			if !foreign {
				continue
			}
		}
		does := "holds"
		if l.Waiting {
			does = "waits for"
		}
		e.add(e.lockSubject(d), fmt.Sprintf("%s, outside the slot, %s a %s %s lock on bytes %s of it", e.stranger(l.Pid), does, l.Type, l.Mode, span(l)), hintLockShared)
	}
	return e.checkOpenFiles()
}

// openOutside says whether a process outside has the descriptor's file open.
func (e *enclosure) openOutside(d Descriptor) (bool, error) {
	st, err := d.Stat()
	if vanished(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	hs, err := e.outside.file(fileID{st.Dev, st.Ino})
	return len(hs) > 0, err
}

func (e *enclosure) lockSubject(d Descriptor) string {
	return fmt.Sprintf("%s %s", e.byPid[d.Pid].subject(), d.Link)
}

func span(l observe.FileLock) string {
	if l.End < 0 {
		return fmt.Sprintf("%d to the end", l.Start)
	}
	return fmt.Sprintf("%d to %d", l.Start, l.End)
}

// checkOpenFiles finds locks that a process outside holds on files that the slot has open.
func (e *enclosure) checkOpenFiles() error {
	seen := map[fileID]bool{}
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
		id := fileID{st.Dev, st.Ino}
		if seen[id] {
			continue
		}
		seen[id] = true
		hs, err := e.outside.file(id)
		if err != nil {
			return err
		}
		for _, h := range hs {
			info, err := h.info()
			if vanished(err) {
				continue
			}
			if err != nil {
				return err
			}
			for _, l := range info.Locks {
				e.add(e.lockSubject(d), fmt.Sprintf("%s, outside the slot, holds a %s %s lock on bytes %s of it", e.stranger(h.pid), l.Type, l.Mode, span(l)), hintLockShared)
			}
		}
	}
	return nil
}

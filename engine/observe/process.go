package observe

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
)

// Status holds the lines of /proc/PID/status that tie a process to its
// namespaces and that prometheus/procfs leaves out (NStgid, NSpgid, NSsid,
// TracerPid, Groups).
type Status struct {
	// Name is the task's comm as the kernel escapes it.
	Name string
	// State is the letter: R, S, D, T (stopped), t (tracing stop), Z, X, I.
	State byte
	// Pids in the namespace of the procfs mount. PPid is 0 for a parent outside it.
	Tgid, Pid, PPid, TracerPid int
	// Real, effective, saved and file system ids.
	Uids, Gids [4]int64
	Groups     []int64
	// Ids in each pid namespace, from that of the procfs mount to the task's
	// own. An id is 0 where the leader is outside that namespace.
	NStgid, NSpid, NSpgid, NSsid []int
	Threads                      int
	// Seccomp is 0 (none), 1 (strict) or 2 (filter).
	Seccomp int
}

// ParseStatus reads the text of /proc/PID/status. Every field of Status must be
// there; a missing one is an error, never a zero.
func ParseStatus(r io.Reader) (Status, error) {
	var s Status
	want := map[string]func(string) error{
		"Name": func(v string) error { s.Name = v; return nil },
		"State": func(v string) error {
			if v == "" {
				return errors.New("empty")
			}
			s.State = v[0]
			return nil
		},
		"Tgid":      intInto(&s.Tgid),
		"Pid":       intInto(&s.Pid),
		"PPid":      intInto(&s.PPid),
		"TracerPid": intInto(&s.TracerPid),
		"Threads":   intInto(&s.Threads),
		"Uid":       idsInto(&s.Uids),
		"Gid":       idsInto(&s.Gids),
		"Groups": func(v string) (err error) {
			s.Groups, err = int64s(v)
			return err
		},
		"NStgid": listInto(&s.NStgid),
		"NSpid":  listInto(&s.NSpid),
		"NSpgid": listInto(&s.NSpgid),
		"NSsid":  listInto(&s.NSsid),
	}
	err := eachLine(r, func(line string) error {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil
		}
		value = strings.TrimSpace(value)
		if key == "Seccomp" { // absent in a kernel without it
			if err := intInto(&s.Seccomp)(value); err != nil {
				return fmt.Errorf("parse status: %w: line %q", ErrFormat, line)
			}
			return nil
		}
		set, ok := want[key]
		if !ok {
			return nil
		}
		delete(want, key)
		if err := set(value); err != nil {
			return fmt.Errorf("parse status: %w: line %q", ErrFormat, line)
		}
		return nil
	})
	if err != nil {
		return Status{}, err
	}
	for key := range want {
		return Status{}, fmt.Errorf("parse status: %w: no line %s", ErrFormat, key)
	}
	n := len(s.NSpid)
	if n == 0 || len(s.NStgid) != n || len(s.NSpgid) != n || len(s.NSsid) != n {
		return Status{}, fmt.Errorf("parse status: %w: NS lines of different lengths", ErrFormat)
	}
	return s, nil
}

// ReadStatus reads the status of a process, or of a thread by its own number, from a procfs.
func ReadStatus(proc fs.FS, pid int) (Status, error) {
	f, err := proc.Open(strconv.Itoa(pid) + "/status")
	if err != nil {
		return Status{}, fmt.Errorf("read status: %w", err)
	}
	defer f.Close()
	return ParseStatus(f)
}

func intInto(p *int) func(string) error {
	return func(v string) error {
		n, err := strconv.Atoi(v)
		if err == nil && n < 0 {
			err = errors.New("negative")
		}
		*p = n
		return err
	}
}

func listInto(p *[]int) func(string) error {
	return func(v string) error {
		for _, f := range strings.Fields(v) {
			var n int
			if err := intInto(&n)(f); err != nil {
				return err
			}
			*p = append(*p, n)
		}
		return nil
	}
}

func idsInto(p *[4]int64) func(string) error {
	return func(v string) error {
		ids, err := int64s(v)
		if err == nil && len(ids) != len(p) {
			err = errors.New("not four ids")
		}
		if err == nil {
			copy(p[:], ids)
		}
		return err
	}
}

func int64s(v string) ([]int64, error) {
	out := []int64{}
	for _, f := range strings.Fields(v) {
		n, err := strconv.ParseUint(f, 10, 32)
		if err != nil {
			return nil, err
		}
		out = append(out, int64(n))
	}
	return out, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func (s *server) observe(w http.ResponseWriter, r *http.Request) {
	var q proto.ObserveRequest
	if err := decode(w, r, &q); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	for _, path := range q.Exclude {
		if !filepath.IsAbs(path) {
			refuse(w, http.StatusBadRequest, fmt.Sprintf("exclude: %q is no absolute path", path))
			return
		}
	}
	o := proto.Observation{Version: proto.Version}
	for _, aspect := range q.Aspects {
		if err := s.observeAspect(r.Context(), &o, aspect, q.Exclude); err != nil {
			if o.Unknown == nil {
				o.Unknown = map[string]string{}
			}
			o.Unknown[aspect] = err.Error()
		}
	}
	answer(w, http.StatusOK, o)
}

func (s *server) observeAspect(ctx context.Context, o *proto.Observation, aspect string, exclude []string) error {
	switch aspect {
	case proto.AspectMounts:
		p, err := s.self.view()
		if err == nil {
			o.Mounts = &p.Mounts
		}
		return err
	case proto.AspectNetwork:
		p, err := s.self.view()
		if err == nil {
			o.Network = &p.Network
		}
		return err
	case proto.AspectProcesses:
		list, err := readProcesses()
		if err == nil {
			o.Processes = &list
		}
		return err
	case proto.AspectLocks:
		list, err := readLocks()
		if err == nil {
			o.Locks = &list
		}
		return err
	case proto.AspectState:
		p, err := s.self.view()
		if err != nil {
			return err
		}
		m, err := readState(ctx, p.Mounts, exclude)
		if err == nil {
			o.State = &m
		}
		return err
	case proto.AspectLimits:
		l, err := s.machine.readLimits()
		o.Limits = l
		return err
	}
	return fmt.Errorf("there is no aspect %q", aspect)
}

// stateTries is how often a state is read anew because the tree changed it meanwhile.
const stateTries = 5

func readState(ctx context.Context, mounts []bench.Mount, exclude []string) (m bench.StateManifest, err error) {
	for range stateTries {
		var listing *os.File
		if listing, err = os.Open(observe.ListingPath); err != nil {
			return m, fmt.Errorf("the image has no listing of itself: %w", err)
		}
		m, err = observe.Changes(ctx, listing, "/", mounts, exclude)
		listing.Close()
		if !errors.Is(err, observe.ErrChanged) {
			break
		}
	}
	return m, err
}

// kernelThread is PF_KTHREAD of include/linux/sched.h.
const kernelThread = 0x00200000

// pids lists the processes of the guest, sorted; a machine's kernel threads are none.
func pids() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return nil, err
	}
	var out []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if ended(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		// Fields after the name: state, parent, group, session, terminal, its group, flags (proc_pid_stat(5)).
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(f) < 7 {
			return nil, fmt.Errorf("/proc/%s/stat has %d fields", name, len(f))
		}
		flags, err := strconv.ParseUint(f[6], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("/proc/%s/stat: flags %q", name, f[6])
		}
		if flags&kernelThread == 0 {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out, nil
}

// ended says whether an error means that the process ended meanwhile.
func ended(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

func readProcesses() ([]bench.Process, error) {
	list, err := pids()
	if err != nil {
		return nil, err
	}
	out := []bench.Process{}
	for _, pid := range list {
		p, err := readProcess(pid)
		if ended(err) && pid != 1 {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read process %d: %w", pid, err)
		}
		out = append(out, p)
	}
	return out, nil
}

func readProcess(pid int) (bench.Process, error) {
	st, err := observe.ReadStatus(os.DirFS("/proc"), pid)
	if err != nil {
		return bench.Process{}, err
	}
	inner := len(st.NSpid) - 1
	p := bench.Process{
		Pid: int64(pid), Parent: int64(st.PPid), Group: int64(st.NSpgid[inner]), Session: int64(st.NSsid[inner]),
		Argv: []string{}, Uids: st.Uids[:], Gids: st.Gids[:], Groups: st.Groups, Threads: int64(st.Threads),
	}
	if st.State == 'Z' || st.State == 'X' {
		return p, nil
	}
	base := "/proc/" + strconv.Itoa(pid)
	line, err := os.ReadFile(base + "/cmdline")
	if err != nil {
		return p, err
	}
	if len(line) > 0 {
		p.Argv = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	}
	for name, to := range map[string]*string{"exe": &p.Exe, "cwd": &p.Cwd} {
		if *to, err = os.Readlink(base + "/" + name); err != nil {
			return p, err
		}
	}
	return p, nil
}

package sweep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
)

// ending says what became of a group's or a single process.
type ending struct {
	// count of processes that were ended.
	count int
	err   error
}

// endProcesses ends every process of the run before anything is taken away: a
// criu or a slot that still runs could make more, and holds what there is. All
// that is in an ownership group is the run's, since it was born there.
func (s *sweeper) endProcesses(ctx context.Context) {
	s.ended, s.killed = map[int64]ending{}, map[int]bool{}
	if s.DryRun {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, o := range s.open { // the topmost group comes first and takes those below along
		if o.Kind != "cgroup" && o.Kind != "scope" || o.Boot != s.boot || s.claim.refuses(o) != "" {
			continue
		}
		g, _, err := s.findGroup(o)
		if err != nil || g == nil || !g.v2 {
			continue // said when its turn comes; on v1 there are only groups of limits
		}
		if s.Spare.Things[o.ID] {
			if !s.Spare.Slots[o.ID] {
				s.endOthers(ctx, g.path)
			}
			continue
		}
		pids, err := endGroup(ctx, g.path)
		s.ended[o.ID] = ending{len(pids), err}
		for _, pid := range pids {
			s.killed[pid] = true
		}
	}
	for _, o := range s.open {
		if o.Kind != "process" && o.Kind != "export" || o.Boot != s.boot || o.Identity == nil || s.claim.refuses(o) != "" || s.Spare.Things[o.ID] {
			continue
		}
		alive, err := procfs.Alive(*o.Identity)
		if err == nil && alive {
			err = s.claim.holds(int(o.Identity.Pid))
		}
		if err == nil && alive {
			err = procfs.Kill(ctx, *o.Identity)
			s.ended[o.ID] = ending{1, err}
		} else if err != nil {
			s.ended[o.ID] = ending{0, err}
		}
	}
}

// endOthers ends who is in a group that is spared, but for the processes that are.
func (s *sweeper) endOthers(ctx context.Context, path string) {
	spared := func(pid int) bool {
		return slices.ContainsFunc(s.open, func(o record.Owned) bool {
			if !s.Spare.Things[o.ID] || o.Identity == nil || int(o.Identity.Pid) != pid {
				return false
			}
			alive, err := procfs.Alive(*o.Identity)
			return err == nil && alive
		})
	}
	err := poll(ctx, func() (bool, error) {
		pids, err := pidsIn(path)
		if err != nil {
			return false, err
		}
		pids = slices.DeleteFunc(pids, spared)
		for _, pid := range pids {
			s.killed[pid] = true
			if err := killMember(pid, path); err != nil {
				return false, err
			}
		}
		return len(pids) == 0, nil
	})
	if err != nil {
		s.stuck = errors.Join(s.stuck, &engine.Error{Op: "sweep " + s.RunDir, Err: fmt.Errorf("end processes in %s: %w", path, err)})
	}
}

// endGroup kills every process in and below a v2 group and returns which there
// were once the kernel says that none is left.
func endGroup(ctx context.Context, path string) ([]int, error) {
	pids, err := pidsBelow(path)
	if err != nil {
		return nil, err
	}
	if slices.Contains(pids, os.Getpid()) {
		return nil, fmt.Errorf("%w: we are in %s ourselves", engine.ErrRefused, path)
	}
	if len(pids) == 0 {
		return nil, nil
	}
	err = os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0)
	missing := errors.Is(err, fs.ErrNotExist) // before Linux 5.14
	if err != nil && !missing {
		return nil, err
	}
	var left []int
	err = poll(ctx, func() (bool, error) {
		if left, err = pidsBelow(path); err != nil {
			return false, err
		}
		if missing {
			for _, pid := range left {
				if err := killMember(pid, path); err != nil {
					return false, err
				}
			}
		}
		return len(left) == 0, nil
	})
	if err != nil {
		return nil, fmt.Errorf("end processes %v in %s: %w", left, path, err)
	}
	return pids, nil
}

// killMember kills a process of a group. Membership is looked at again once a
// pidfd pins the process: its number may have become somebody else's.
func killMember(pid int, path string) error {
	if pid == 0 {
		return fmt.Errorf("%w: a process of another pid namespace is in %s", engine.ErrRefused, path)
	}
	id, err := procfs.Identity(pid)
	if errors.Is(err, engine.ErrDead) {
		return nil
	}
	if err != nil {
		return err
	}
	h, err := procfs.Open(id)
	if errors.Is(err, engine.ErrDead) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.Close()
	pids, err := pidsBelow(path)
	if err != nil || !slices.Contains(pids, pid) {
		return err
	}
	if err := h.Signal(unix.SIGKILL); err != nil && !errors.Is(err, engine.ErrDead) {
		return err
	}
	return nil
}

// process says whether a process is gone; endProcesses has ended it.
// holds is an error where a process is in no group that bears the claim. A ledger
// may name any pid with its true start time; what is the run's was born in such a
// group, and nothing of the run's leaves one. A pid that was given away since has
// another start time, which whoever signals it looks at.
func (c claim) holds(pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", engine.ErrUnknown, err)
	}
	for line := range strings.Lines(string(text)) {
		_, path, _ := strings.Cut(line, ":")
		_, path, _ = strings.Cut(path, ":")
		path = strings.TrimSuffix(strings.TrimSuffix(path, "\n"), " (deleted)")
		if slices.ContainsFunc(strings.Split(path, "/"), c.named) {
			return nil
		}
	}
	return fmt.Errorf("%w: process %d is in no control group of the run's: %s", engine.ErrUnknown, pid, strings.Join(strings.Fields(string(text)), " "))
}

func (s *sweeper) process(o record.Owned) Thing {
	end := s.ended[o.ID]
	if end.err != nil {
		return failed(end.err, "")
	}
	if o.Identity == nil {
		// It was born in its group or not at all.
		pids, err := pidsBelow(o.Claim.Cgroup)
		switch {
		case err != nil:
			return failed(fmt.Errorf("%w: %w", engine.ErrUnknown, err), "")
		case len(pids) == 0:
			return Thing{Outcome: Absent}
		case s.DryRun:
			return Thing{Outcome: Planned, Reason: "with " + processes(len(pids))}
		}
		return Thing{Outcome: Failed, Reason: fmt.Sprintf("%s still holds processes %v", o.Claim.Cgroup, pids)}
	}
	alive, err := procfs.Alive(*o.Identity)
	switch {
	case err != nil:
		return failed(fmt.Errorf("%w: %w", engine.ErrUnknown, err), "")
	case alive && s.DryRun:
		return Thing{Outcome: Planned}
	case alive:
		return Thing{Outcome: Failed, Reason: "it does not end after SIGKILL", Hint: "a process that the kernel holds in a call ends when the call does; sweep again"}
	case end.count > 0 || s.killed[int(o.Identity.Pid)]:
		return Thing{Outcome: Taken}
	}
	if now, err := procfs.Identity(int(o.Identity.Pid)); err == nil && now.StartTicks != o.Identity.StartTicks {
		return Thing{Outcome: Foreign, Reason: "another process has its pid"}
	}
	return Thing{Outcome: Absent}
}

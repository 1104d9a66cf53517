package procfs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
)

// rollup are the lines of smaps_rollup that are added up. A prometheus
// ProcSMapsRollup has no Private_Hugetlb, and a process that ended while it was
// read (an empty file) is a zero there.
type rollup struct{ pss, privateDirty, privateHuge int64 }

// parseRollup parses /proc/PID/smaps_rollup (proc(5)). Each of the lines must be there.
func parseRollup(text []byte) (r rollup, err error) {
	lines := map[string]*int64{"Pss": &r.pss, "Private_Dirty": &r.privateDirty, "Private_Hugetlb": &r.privateHuge}
	scan := bufio.NewScanner(bytes.NewReader(text))
	for scan.Scan() {
		name, value, _ := strings.Cut(scan.Text(), ":")
		to, wanted := lines[name]
		if !wanted {
			continue
		}
		delete(lines, name)
		number, isKB := strings.CutSuffix(strings.TrimSpace(value), " kB")
		kb, err := strconv.ParseInt(number, 10, 53)
		if err != nil || !isKB || kb < 0 {
			return r, fmt.Errorf("line %q is no size in kB", scan.Text())
		}
		*to = kb << 10
	}
	if err := scan.Err(); err != nil {
		return r, err
	}
	for name := range lines {
		return r, fmt.Errorf("no line %s", name)
	}
	return r, nil
}

// memory sums over processes; engine.ErrDead if one of them has ended, zombies included.
func memory(pids []int) (m engine.Memory, err error) {
	for _, pid := range pids {
		text, err := os.ReadFile(filepath.Join(root, strconv.Itoa(pid), "smaps_rollup"))
		if err != nil {
			return engine.Memory{}, fmt.Errorf("read memory: %w", gone(pid, err))
		}
		r, err := parseRollup(text)
		if err != nil {
			return engine.Memory{}, fmt.Errorf("read memory of pid %d: %w", pid, err)
		}
		m.Pss += r.pss
		m.PrivateDirty += r.privateDirty + r.privateHuge
		m.Processes++
	}
	return m, nil
}

const memorySource = "/proc/PID/smaps_rollup of each process"

// ReadMemory sums the private dirty and the proportional memory of processes by
// their host pids. Every one must be read, or the reading is unknown: also if one
// has ended, so a caller lists a tree again. No pid is no reading either. A
// thread has its process's memory: give processes only. Harness stays 0.
func ReadMemory(pids []int) engine.Reading[engine.Memory] {
	m, err := memory(pids)
	if err == nil && len(pids) == 0 {
		err = errors.New("read memory: there is no process")
	}
	if err != nil {
		return engine.Unknown[engine.Memory](err.Error(), engine.ViewHost)
	}
	return engine.Known(m, memorySource, engine.ViewHost)
}

// SlotMemory reads the memory of each process in the pid namespace of the slot
// whose pid 1 is initPid, but of zombies, which have none. The tree is listed
// before and after and must be the same, else it is read again; one that does not rest
// is unknown.
func SlotMemory(initPid int) engine.Reading[engine.Memory] {
	m, err := atRest(func() ([]int, error) { return living(initPid) }, memory)
	if err != nil {
		return engine.Unknown[engine.Memory](err.Error(), engine.ViewHost)
	}
	return engine.Known(m, memorySource, engine.ViewHost)
}

// atRest reads processes that are the same before and after.
func atRest(list func() ([]int, error), read func([]int) (engine.Memory, error)) (engine.Memory, error) {
	const tries = 5
	before, err := list()
	for range tries {
		if err != nil {
			return engine.Memory{}, err
		}
		m, failed := read(before)
		if failed != nil && !errors.Is(failed, engine.ErrDead) {
			return engine.Memory{}, failed
		}
		var after []int
		if after, err = list(); err == nil && failed == nil && slices.Equal(before, after) {
			return m, nil
		}
		before = after
	}
	if err != nil {
		return engine.Memory{}, err
	}
	return engine.Memory{}, fmt.Errorf("read memory of slot: processes came and went in each of %d readings", tries)
}

// living lists a slot's processes that have memory, by host pid.
func living(initPid int) (pids []int, err error) {
	tasks, err := Tasks(initPid)
	for _, t := range tasks {
		if !t.Zombie() {
			pids = append(pids, t.Pid)
		}
	}
	return pids, err
}

package confine

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Sets are the capabilities that tasks hold, all of them together.
type Sets struct {
	// Bounding and Held: what a task can come to hold, and what one holds in any other set.
	Bounding, Held uint64
	// Beyond names each task that holds or can come to hold more than Kept.
	Beyond []string
	// Own counts tasks in user namespaces of their own, where a capability reaches
	// what belongs to that namespace and nothing else (user_namespaces(7)).
	Own int
}

// Read reads the capabilities of every thread of these processes. One that has
// ended meanwhile is left out.
func Read(pids []int) (Sets, error) {
	var all Sets
	ours, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		return all, err
	}
	for _, pid := range pids {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if gone(err) {
			continue
		}
		if err != nil {
			return all, err
		}
		for _, t := range threads {
			if err := all.add(fmt.Sprintf("/proc/%d/task/%s/", pid, t.Name()), ours); err != nil && !gone(err) {
				return all, err
			}
		}
	}
	return all, nil
}

func (s *Sets) add(task, ours string) error {
	bounding, held, state, err := status(task + "status")
	if err != nil || state == 'Z' || state == 'X' {
		return err
	}
	if more := (bounding | held) &^ KeptMask(); more != 0 {
		theirs, err := os.Readlink(task + "ns/user")
		if err != nil {
			return err
		}
		if theirs != ours {
			s.Own++
			return nil
		}
		s.Beyond = append(s.Beyond, fmt.Sprintf("task %s has capabilities %s", strings.Split(task, "/")[4], Names(more)))
	}
	s.Bounding |= bounding
	s.Held |= held
	return nil
}

// status reads the capability sets of a task: CapBnd, and all others together.
func status(file string) (bounding, held uint64, state byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, 0, 0, err
	}
	defer f.Close()
	found := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "State":
			if value != "" {
				state = value[0]
			}
		case "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb":
			set, err := strconv.ParseUint(value, 16, 64)
			if err != nil {
				return 0, 0, 0, fmt.Errorf("read %s: %w", file, err)
			}
			found++
			if key == "CapBnd" {
				bounding = set
			} else {
				held |= set
			}
		}
	}
	if found != 5 || state == 0 {
		if state == 0 {
			return 0, 0, 0, unix.ESRCH
		}
		return 0, 0, 0, fmt.Errorf("read %s: it has %d of 5 capability sets", file, found)
	}
	return bounding, held, state, nil
}

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// Names names the capabilities of a set, by number where they are not of Kept.
func Names(set uint64) string {
	var names []string
	for bit := uint(0); bit < 64; bit++ {
		if set&(1<<bit) == 0 {
			continue
		}
		name := fmt.Sprintf("number %d", bit)
		for _, c := range Kept {
			if c.Bit == bit {
				name = c.Name
			}
		}
		names = append(names, name)
	}
	slices.Sort(names)
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, " ")
}

// Unusable are leaves that runc gives every container: a slot has no node of these
// devices, and without CAP_MKNOD it makes none (libcontainer/specconv, AllowedDevices;
// the tunnel until 1.2).
var Unusable = []string{"b *:* m", "c *:* m", "c 10:200 rwm"}

// Allowed judges what Devices of the limits says: each line of v1's list that
// reaches further than Devices, and is not of Unusable, is named. Programs of v2
// cannot be read so.
func Allowed(lines []string) (beyond []string) {
	allowed := map[string]bool{}
	for _, u := range Unusable {
		allowed[u] = true
	}
	for _, d := range Devices {
		minor := strconv.FormatInt(d.Minor, 10)
		if d.Minor < 0 {
			minor = "*"
		}
		allowed[fmt.Sprintf("c %d:%s rwm", d.Major, minor)] = true
	}
	for _, l := range lines {
		if !allowed[l] && !strings.Contains(l, " program ") {
			beyond = append(beyond, "device rule "+strconv.Quote(l))
		}
	}
	return beyond
}

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/drumsbench/drumsbench/engine"
)

// The file that bounds memory and swap, and what is said where there is none.
const (
	v1SwapLimit = "memory.memsw.limit_in_bytes"
	v1NoSwap    = "the kernel accounts no swap: " + v1SwapLimit + " is missing (boot with swapaccount=1)"
)

// makeV1 makes one group for each hierarchy that holds a needed controller.
func makeV1(ws *engine.Workspace, owner *Owner, slot, name string) (*Limits, error) {
	l := &Limits{kernel: v1{}, places: map[string]place{}}
	made := map[string]bool{}
	for _, c := range []string{controllerCPU, controllerCPUAcct, controllerMemory, controllerPids} {
		h, ok := owner.at.v1[c]
		if !ok {
			if c == controllerCPUAcct { // counts only
				continue
			}
			return l, &engine.Error{
				Op:   "make limits",
				Err:  fmt.Errorf("%w: no mounted v1 hierarchy holds the %s controller", engine.ErrRefused, c),
				Hint: "mount the controller, or boot the kernel with it",
			}
		}
		p := place{dir: filepath.Join(h.dir(), name), mount: h.mount, path: filepath.Join(h.path, name)}
		if !made[p.dir] {
			n, err := makeNode(ws.Ledger, owner.mkdir, p.dir, "limits of "+slot)
			if err != nil {
				return l, err
			}
			made[p.dir] = true
			l.nodes = append(l.nodes, n)
			if c == controllerMemory {
				if err := hierarchical(p.dir); err != nil {
					return l, err
				}
			}
			if err := n.makeLeaf(); err != nil {
				return l, err
			}
		}
		l.places[c] = p
	}
	if _, err := os.Lstat(filepath.Join(l.places[controllerMemory].dir, v1SwapLimit)); err != nil {
		l.noSwap = v1NoSwap
	}
	return l, nil
}

// Leaf is the group below those of v1 limits that a slot's tasks are in. Its root
// user can mount the hierarchy from a user and a cgroup namespace of its own, where
// the group that it is in is the topmost, and write that one's files: the bounds
// stand above it. On v2 the kernel keeps such files from it (nsdelegate, with which
// systemd mounts it; cgroup_file_write).
const Leaf = "slot"

// home is the group that tasks are put into.
func (n *node) home() string {
	if n.leaf {
		return filepath.Join(n.path, Leaf)
	}
	return n.path
}

// makeLeaf makes the group that tasks are put into. It goes with the group above.
func (n *node) makeLeaf() error {
	if err := n.mkdir(filepath.Join(n.path, Leaf), 0o755); err != nil {
		return &engine.Error{Op: "make limits", Err: err}
	}
	n.leaf = true
	return nil
}

// hasLeaf looks whether a group that is adopted has one.
func (n *node) hasLeaf() {
	info, err := os.Lstat(filepath.Join(n.path, Leaf))
	n.leaf = err == nil && info.IsDir()
}

// hierarchical has a memory group bound those below it: before Linux 5.11 that is a
// setting, to be made before there is one.
func hierarchical(dir string) error {
	const file = "memory.use_hierarchy"
	have, err := read(dir, file)
	if errors.Is(err, fs.ErrNotExist) || err == nil && have == "1" {
		return nil
	}
	if err == nil {
		err = write(filepath.Join(dir, file), "1")
	}
	if err != nil {
		return &engine.Error{Op: "make limits", Err: err}
	}
	return nil
}

type v1 struct{}

// set writes through the library, whose subsystems find their directory as
// ROOT/NAME/PATH: co-mounted controllers are found through the customary
// symbolic links, and one that is not is refused.
func (v1) set(l *Limits, b bounds) error {
	period := uint64(cfsPeriod / time.Microsecond)
	quota := int64(b.vcpus) * int64(period)
	both := b.memory + b.swap
	r := &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Period: &period, Quota: &quota},
		Memory: &specs.LinuxMemory{Limit: &b.memory, Swap: &both},
		Pids:   &specs.LinuxPids{Limit: &b.pids},
	}
	if l.noSwap != "" {
		r.Memory.Swap = nil
	} else if both < b.memory {
		return fmt.Errorf("%w: memory and swap together overflow", engine.ErrUsage)
	}
	root := func(c string) string { return filepath.Dir(l.places[c].mount) }
	subsystems := []cgroup1.Subsystem{
		cgroup1.NewCpu(root(controllerCPU)),
		cgroup1.NewMemory(root(controllerMemory)),
		cgroup1.NewPids(root(controllerPids)),
	}
	path := func(name cgroup1.Name) (string, error) {
		p := l.places[string(name)]
		want, err := os.Stat(p.mount)
		if err != nil {
			return "", err
		}
		have, err := os.Stat(filepath.Join(filepath.Dir(p.mount), string(name)))
		if err != nil || !os.SameFile(want, have) {
			return "", fmt.Errorf("%w: %s is not reachable as %s beside it", engine.ErrRefused, p.mount, name)
		}
		return filepath.Rel(p.mount, p.dir)
	}
	_, err := cgroup1.New(path, r, cgroup1.WithHierarchy(func() ([]cgroup1.Subsystem, error) { return subsystems, nil }))
	return err
}

func (v1) vcpus(dir string) (float64, error) {
	quota, err := readInt(dir, "cpu.cfs_quota_us")
	if err != nil || quota < 0 {
		return unlimited, err
	}
	period, err := readInt(dir, "cpu.cfs_period_us")
	if err != nil {
		return 0, err
	}
	if period <= 0 {
		return 0, fmt.Errorf("%w: %s has a period of %d", engine.ErrUnknown, dir, period)
	}
	return float64(quota) / float64(period), nil
}

func (v1) memory(dir string) (int64, error) { return readV1Bytes(dir, "memory.limit_in_bytes") }

func (v1) swap(dir string) (int64, error) { return readV1Bytes(dir, "memory.memsw.limit_in_bytes") }

func (v1) swapWithMemory() bool { return true }

func (v1) pids(dir string) (int64, error) { return readMax(dir, "pids.max") }

func (v1) files() string {
	return "cpu.cfs_quota_us, cpu.cfs_period_us, memory.limit_in_bytes, memory.memsw.limit_in_bytes, pids.max"
}

func (v1) usage(l *Limits) Usage {
	memory := l.places[controllerMemory].dir
	u := Usage{
		Memory:     counter(memory, "memory.usage_in_bytes", parseInt),
		MemoryPeak: counter(memory, "memory.max_usage_in_bytes", parseInt),
		CPU:        engine.Unknown[time.Duration]("the cpuacct controller is not mounted", engine.ViewHost),
	}
	if p, ok := l.places[controllerCPUAcct]; ok {
		u.CPU = counter(p.dir, "cpuacct.usage", func(s string) (time.Duration, error) {
			n, err := parseInt(s)
			return time.Duration(n), err
		})
	}
	return u
}

// readV1Bytes: v1 writes "no limit" as the greatest number of whole pages.
func readV1Bytes(dir, file string) (int64, error) {
	n, err := readInt(dir, file)
	if err == nil && n >= math.MaxInt64-math.MaxInt64%pageSize {
		return unlimited, nil
	}
	return n, err
}

func readInt(dir, file string) (int64, error) {
	text, err := read(dir, file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s/%s: %w", dir, file, err)
	}
	return n, nil
}

// readMax reads a file that holds a number or "max".
func readMax(dir, file string) (int64, error) {
	text, err := read(dir, file)
	if err != nil {
		return 0, err
	}
	if text == "max" {
		return unlimited, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, errors.Join(fs.ErrInvalid, fmt.Errorf("%s/%s: %w", dir, file, err))
	}
	return n, nil
}

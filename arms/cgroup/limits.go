package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// cfsPeriod is the kernel's default; quota is vcpus times it.
const cfsPeriod = 100 * time.Millisecond

// Limits are the groups in which the kernel enforces one slot's bounds. They
// are made afresh for each reset, so that counters start at zero and no task of
// the reset before can be in them.
type Limits struct {
	// ledger number, path and identity of each directory.
	nodes []*node
	// places by controller; "" is v2. Several may share a directory.
	places map[string]place
	kernel kernel
	// dir is the v2 group, held open for FD; nil on v1.
	dir *os.File
	// scope is the group where systemd makes it, want what it is to enforce; nil and
	// nothing for limits that we make.
	scope *Group
	want  bounds
	// devices is the group on v1's devices hierarchy; empty without one.
	devices string
	// noSwap says why swap cannot be bounded or read; empty when it can.
	noSwap string
}

// place is one directory of the limits and how the kernel names it.
type place struct {
	dir   string
	mount string
	// path as /proc/PID/cgroup shows it.
	path string
}

// bounds is what was asked for, or what is enforced.
type bounds struct {
	vcpus              float64
	memory, swap, pids int64
}

// kernel reads and writes the files of one cgroup version.
type kernel interface {
	// set writes the bounds.
	set(l *Limits, b bounds) error
	// The readers give unlimited where a level sets no bound and
	// fs.ErrNotExist where the level has no such file, as the root has not.
	vcpus(dir string) (float64, error)
	memory(dir string) (int64, error)
	// swap is a bound on swap alone (v2) or on memory and swap together (v1).
	swap(dir string) (int64, error)
	swapWithMemory() bool
	pids(dir string) (int64, error)
	usage(l *Limits) Usage
	// files are those that set reads and writes.
	files() string
}

// NewLimits makes and sets the limits of a slot and reads them back, bounds of
// the groups above ours included: what is enforced must be what was asked for,
// but for rounding down to a page, else ErrRefused with a finding for each
// difference, and nothing is left behind. Each call makes new groups.
//
// Where the kernel accounts no swap, the limits are made without a bound on it
// and Read stays unknown with that reason.
func NewLimits(ws *engine.Workspace, owner *Owner, slot string, r bench.Resources) (*Limits, error) {
	want, err := wanted(r)
	if err != nil {
		return nil, &engine.Error{Op: "set limits", Err: err}
	}
	if !groupName.MatchString(slot) {
		return nil, &engine.Error{Op: "set limits", Err: fmt.Errorf("%w: slot name %q", engine.ErrUsage, slot)}
	}
	owner.mu.Lock()
	owner.limits[slot]++
	name := fmt.Sprintf("drums-%s-%s-%d", ws.ID, slot, owner.limits[slot])
	owner.mu.Unlock()

	var l *Limits
	if owner.at.unified {
		l, err = makeV2(ws, owner, slot, name)
	} else {
		l, err = makeV1(ws, owner, slot, name)
	}
	if err == nil {
		if err = l.kernel.set(l, want); err != nil {
			err = &engine.Error{Op: "set limits", Err: err}
		}
	}
	if err == nil {
		err = l.verify(want)
	}
	if err != nil {
		if l != nil {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			err = errors.Join(err, l.Remove(ctx))
		}
		return nil, err
	}
	return l, nil
}

func wanted(r bench.Resources) (bounds, error) {
	memory, err := parseBytes(r.Memory)
	if err != nil {
		return bounds{}, err
	}
	swap, err := parseBytes(r.Swap)
	if err != nil {
		return bounds{}, err
	}
	if r.Vcpus < 1 || memory < 1 || r.Pids < 1 {
		return bounds{}, fmt.Errorf("%w: resources %+v", engine.ErrUsage, r)
	}
	return bounds{vcpus: float64(r.Vcpus), memory: memory, swap: swap, pids: r.Pids}, nil
}

// verify compares what is enforced with what was asked for.
func (l *Limits) verify(want bounds) error {
	have, err := l.effective()
	if err != nil {
		return &engine.Error{Op: "read limits back", Err: err}
	}
	var findings []bench.Finding
	differ := func(subject string, want, have any) {
		findings = append(findings, bench.Finding{
			Verdict: engine.Fail, Subject: subject, Text: "the kernel enforces another bound than was asked for",
			Want: fmt.Sprint(want), Have: fmt.Sprint(have),
			Hint: "a group above ours may be tighter, or the file system rounds more than a page",
		})
	}
	if have.vcpus != want.vcpus {
		differ("vcpus", want.vcpus, have.vcpus)
	}
	if !pageEqual(want.memory, have.memory) {
		differ("memory", want.memory, have.memory)
	}
	if l.noSwap == "" && !pageEqual(want.swap, have.swap) {
		differ("swap", want.swap, have.swap)
	}
	if have.pids != want.pids {
		differ("pids", want.pids, have.pids)
	}
	if len(findings) == 0 {
		return nil
	}
	var texts []string
	for _, f := range findings {
		texts = append(texts, fmt.Sprintf("%s %s instead of %s", f.Subject, f.Have, f.Want))
	}
	return &engine.Error{
		Op:       "set limits",
		Err:      fmt.Errorf("%w: the kernel enforces %s", engine.ErrRefused, strings.Join(texts, ", ")),
		Hint:     findings[0].Hint,
		Findings: findings,
	}
}

// pageEqual: the kernel counts whole pages and rounds down (page_counter_memparse).
func pageEqual(want, have int64) bool { return have == want-want%pageSize }

// effective is the tightest bound of our group and of every group above it that
// we can see. Above the mount's root nothing can be seen.
func (l *Limits) effective() (bounds, error) {
	k := l.kernel
	cpu, err := tightest(l.places[l.key(controllerCPU)], k.vcpus)
	if err != nil {
		return bounds{}, err
	}
	memory, err := tightest(l.places[l.key(controllerMemory)], k.memory)
	if err != nil {
		return bounds{}, err
	}
	pids, err := tightest(l.places[l.key(controllerPids)], k.pids)
	if err != nil {
		return bounds{}, err
	}
	b := bounds{vcpus: cpu, memory: memory, pids: pids, swap: unlimited}
	if l.noSwap != "" {
		return b, nil
	}
	if b.swap, err = tightest(l.places[l.key(controllerMemory)], k.swap); err != nil {
		return bounds{}, err
	}
	if k.swapWithMemory() && b.swap != unlimited {
		b.swap = max(0, b.swap-b.memory)
	}
	return b, nil
}

// key of a controller's place: on v2 one directory serves all.
func (l *Limits) key(controller string) string {
	if l.Unified() {
		return ""
	}
	return controller
}

func tightest[T int64 | float64](p place, read func(string) (T, error)) (T, error) {
	low, err := read(p.dir)
	if err != nil {
		return 0, err
	}
	for dir := p.dir; dir != p.mount; {
		dir = filepath.Dir(dir)
		v, err := read(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if v != unlimited && (low == unlimited || v < low) {
			low = v
		}
	}
	return low, nil
}

// Unified says whether the limits are one v2 group.
func (l *Limits) Unified() bool {
	_, unified := l.places[""]
	return unified
}

// FD of the v2 limits group, to start the slot's processes in on a unified
// host; -1 on v1, where they start in the slot's ownership Group and join by Dirs,
// and for a scope, which systemd moves them into.
func (l *Limits) FD() int {
	if l.dir == nil {
		return -1
	}
	return int(l.dir.Fd())
}

// Dirs are the cgroup.procs files, one for each directory. A process that
// writes its own pid into each of them is under all limits, and so is whatever
// it starts afterwards.
func (l *Limits) Dirs() []string {
	files := make([]string, len(l.nodes))
	for i, n := range l.nodes {
		files[i] = filepath.Join(n.home(), "cgroup.procs")
	}
	return files
}

// Paths are the limits' own groups, one for each hierarchy.
func (l *Limits) Paths() []string {
	paths := make([]string, len(l.nodes))
	for i, n := range l.nodes {
		paths[i] = n.path
	}
	return paths
}

// Add puts a process with all its threads under the limits and reads its membership back.
func (l *Limits) Add(pid int) error {
	for _, f := range l.Dirs() {
		if err := write(f, strconv.Itoa(pid)); err != nil {
			return &engine.Error{Op: "add process to limits", Err: err}
		}
	}
	inside, err := l.holds(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return &engine.Error{Op: "add process to limits", Err: err}
	}
	if !inside {
		return &engine.Error{Op: "add process to limits", Err: fmt.Errorf("%w: process %d reads back in another group", engine.ErrUnknown, pid)}
	}
	return nil
}

// Read reads the enforced bounds and looks for each of pids, threads included,
// whether it is under all of them. A pid that has ended in between is left out;
// one that is dead but not waited for is a task, and never outside.
func (l *Limits) Read(pids []int) engine.Reading[engine.Limits] {
	unknown := func(reason string) engine.Reading[engine.Limits] {
		return engine.Unknown[engine.Limits](reason, engine.ViewHost)
	}
	for _, n := range l.nodes {
		if ours, err := n.present(); err != nil || !ours {
			return unknown(fmt.Sprintf("the limits group %s is gone", n.path))
		}
	}
	if l.noSwap != "" {
		return unknown(l.noSwap)
	}
	have, err := l.effective()
	if err != nil {
		return unknown(err.Error())
	}
	out := engine.Limits{VCPUs: have.vcpus, Memory: have.memory, Swap: have.swap, Pids: have.pids, Groups: map[string]string{}}
	for c, p := range l.places {
		out.Groups[c] = p.path
	}
	for _, pid := range pids {
		inside, err := l.task(pid)
		if gone(err) {
			continue
		}
		if err != nil {
			return unknown(fmt.Sprintf("read the groups of task %d: %v", pid, err))
		}
		out.Tasks = append(out.Tasks, pid)
		if !inside {
			out.Outside = append(out.Outside, pid)
		}
	}
	slices.Sort(out.Tasks)
	slices.Sort(out.Outside)
	return engine.Known(out, l.kernel.files()+" of the groups above and of those with "+strings.Join(l.Dirs(), ", ")+"; /proc/PID/cgroup", engine.ViewHost)
}

// Remove takes the groups away, as Group.Remove. Idempotent.
func (l *Limits) Remove(ctx context.Context) error {
	if l.scope != nil {
		return l.scope.Remove(ctx)
	}
	var errs *multierror.Error
	for i := len(l.nodes) - 1; i >= 0; i-- {
		errs = multierror.Append(errs, l.nodes[i].remove(ctx))
	}
	if l.dir != nil {
		if err := l.dir.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			errs = multierror.Append(errs, err)
		}
	}
	return errs.ErrorOrNil()
}

// Usage is what the kernel counted since the groups were made.
type Usage struct {
	// Memory and MemoryPeak in bytes.
	Memory, MemoryPeak engine.Reading[int64]
	CPU                engine.Reading[time.Duration]
}

// Usage reads the counters: three small files. A counter that the kernel lacks is unknown.
func (l *Limits) Usage() Usage { return l.kernel.usage(l) }

func counter[T int64 | time.Duration](dir, file string, parse func(string) (T, error)) engine.Reading[T] {
	text, err := read(dir, file)
	if err == nil {
		var v T
		if v, err = parse(text); err == nil {
			return engine.Known(v, filepath.Join(dir, file), engine.ViewHost)
		}
	}
	return engine.Unknown[T](err.Error(), engine.ViewHost)
}

func parseInt(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) }

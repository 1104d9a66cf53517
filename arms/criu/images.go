package criu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	criu_core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v7/magic"
	"google.golang.org/protobuf/proto"

	"github.com/drumsbench/drumsbench/engine"
)

// Images is a directory of CRIU's images. Its methods are pure functions of the
// directory; pids are those inside the slot. A missing, short or damaged image
// is an error that wraps engine.ErrUnknown.
type Images struct {
	fsys fs.FS
}

// OpenImages reads images in a directory.
func OpenImages(dir string) Images { return Images{os.DirFS(dir)} }

// ImagesIn reads images at the root of a file system.
func ImagesIn(fsys fs.FS) Images { return Images{fsys} }

// magics by image name without numbers, from go-criu's copy of CRIU's list.
var magics = func() map[string]uint32 {
	byName := magic.LoadMagic().ByName
	names := map[string]string{
		"inventory": "INVENTORY", "cgroup": "CGROUP", "pstree": "PSTREE", "core": "CORE", "ids": "IDS", "fdinfo": "FDINFO", "files": "FILES",
		"mm": "MM", "pagemap": "PAGEMAP", "mountpoints": "MNTS", "filelocks": "FILE_LOCKS", "remap-fpath": "REMAP_FPATH", "memfd": "MEMFD_INODE",
		"stats-dump": "STATS", "stats-restore": "STATS", "common": "IMG_COMMON", "service": "IMG_SERVICE",
	}
	m := make(map[string]uint32, len(names))
	for name, in := range names {
		m[name] = uint32(byName[in])
	}
	return m
}()

// entries decodes an image of messages of one kind. kind is its name without numbers.
func entries[M any, P interface {
	*M
	proto.Message
}](im Images, kind, name string) ([]P, error) {
	all, err := im.messages(kind, name)
	if err != nil {
		return nil, err
	}
	var found []P
	for _, data := range all {
		m := P(new(M))
		if err := proto.Unmarshal(data, m); err != nil {
			return nil, unknownImage(fmt.Errorf("decode %s: %w", name, err))
		}
		found = append(found, m)
	}
	return found, nil
}

// messages splits an image: magic numbers, then length and message until the end. go-criu's own
// decoder takes a short read for a whole message, so the framing is ours and the messages are its.
//
//	inventory        own magic
//	stats-*          service magic, own magic
//	everything else  common magic, own magic
func (im Images) messages(kind, name string) ([][]byte, error) {
	data, err := fs.ReadFile(im.fsys, name)
	if err != nil {
		return nil, unknownImage(err)
	}
	want := []uint32{magics["common"], magics[kind]}
	switch {
	case kind == "inventory":
		want = want[1:]
	case strings.HasPrefix(kind, "stats-"):
		want[0] = magics["service"]
	}
	for _, w := range want {
		if len(data) < 4 || binary.LittleEndian.Uint32(data) != w {
			return nil, unknownImage(fmt.Errorf("%s is no %s image", name, kind))
		}
		data = data[4:]
	}
	var found [][]byte
	for len(data) > 0 {
		if len(data) < 4 {
			return nil, unknownImage(fmt.Errorf("%s ends in the middle of a length", name))
		}
		size := int(binary.LittleEndian.Uint32(data))
		data = data[4:]
		if size > len(data) {
			return nil, unknownImage(fmt.Errorf("%s ends in the middle of a message of %d bytes", name, size))
		}
		found = append(found, data[:size])
		data = data[size:]
	}
	return found, nil
}

// one decodes an image that holds one message.
func one[M any, P interface {
	*M
	proto.Message
}](im Images, kind, name string) (P, error) {
	found, err := entries[M, P](im, kind, name)
	if err == nil && len(found) != 1 {
		err = unknownImage(fmt.Errorf("%s holds %d messages, not one", name, len(found)))
	}
	if err != nil {
		return nil, err
	}
	return found[0], nil
}

// optional is an image that CRIU writes only when there is something in it.
func optional[P any](found []P, err error) ([]P, error) {
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return found, err
}

func unknownImage(err error) error {
	return &engine.Error{Op: "read images", Err: fmt.Errorf("%w: %w", engine.ErrUnknown, err)}
}

// Complete says whether a dump was carried to its end: the inventory is written last.
func (im Images) Complete() error {
	inv, err := one[inventory.InventoryEntry](im, "inventory", "inventory.img")
	if err != nil {
		return err
	}
	if inv.GetImgVersion() == 0 {
		return unknownImage(errors.New("inventory.img names no version"))
	}
	tasks, err := im.tasks()
	if err != nil {
		return err
	}
	if len(tasks) == 0 {
		return unknownImage(errors.New("pstree.img holds no task"))
	}
	return nil
}

// State of a task at the dump (compel/include/uapi/task-state.h).
type State int

// The states.
const (
	Alive   State = 1
	Dead    State = 2
	Stopped State = 3
)

// Process is one task group of the dumped tree. Pids as inside the slot.
type Process struct {
	Pid, Parent, Group, Session int
	// Threads with the main thread first.
	Threads []int
	Comm    string
	State   State
	// Compat32 is an x86 task in 32-bit mode.
	Compat32 bool
}

type task struct {
	entry *pstree.PstreeEntry
	core  *criu_core.CoreEntry
}

func (t task) pid() int     { return int(t.entry.GetPid()) }
func (t task) dead() bool   { return State(t.core.GetTc().GetTaskState()) == Dead }
func (t task) state() State { return State(t.core.GetTc().GetTaskState()) }

func (im Images) tasks() ([]task, error) {
	tree, err := entries[pstree.PstreeEntry](im, "pstree", "pstree.img")
	if err != nil {
		return nil, err
	}
	tasks := make([]task, len(tree))
	for i, e := range tree {
		core, err := one[criu_core.CoreEntry](im, "core", fmt.Sprintf("core-%d.img", e.GetPid()))
		if err != nil {
			return nil, err
		}
		if core.GetTc() == nil {
			return nil, unknownImage(fmt.Errorf("core-%d.img describes no task", e.GetPid()))
		}
		tasks[i] = task{e, core}
	}
	return tasks, nil
}

// Processes of the tree by pid, zombies included (State Dead).
func (im Images) Processes() ([]Process, error) {
	tasks, err := im.tasks()
	if err != nil {
		return nil, err
	}
	found := make([]Process, len(tasks))
	for i, t := range tasks {
		p := Process{
			Pid: t.pid(), Parent: int(t.entry.GetPpid()), Group: int(t.entry.GetPgid()), Session: int(t.entry.GetSid()),
			Comm: t.core.GetTc().GetComm(), State: t.state(),
		}
		for _, tid := range t.entry.GetThreads() {
			p.Threads = append(p.Threads, int(tid))
		}
		if t.dead() {
			p.Threads = []int{p.Pid} // CRIU 4.2.1 writes uninitialised memory for a zombie's
		}
		p.Compat32 = compat(t.core)
		found[i] = p
	}
	slices.SortFunc(found, func(a, b Process) int { return a.Pid - b.Pid })
	return found, nil
}

// StoppedAtDump are the pids that a job control stop held when the tree was
// dumped, sorted: whoever lets a restored tree run leaves these alone.
func (im Images) StoppedAtDump() ([]int, error) {
	return im.pidsWhere(func(p Process) bool { return p.State == Stopped })
}

// Compat32 are the pids of 32-bit tasks, sorted. No code can be injected into them as into the others.
func (im Images) Compat32() ([]int, error) {
	return im.pidsWhere(func(p Process) bool { return p.Compat32 })
}

func (im Images) pidsWhere(is func(Process) bool) ([]int, error) {
	all, err := im.Processes()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, p := range all {
		if is(p) {
			pids = append(pids, p.Pid)
		}
	}
	return pids, nil
}

// NetworkImage is one image of a network namespace.
type NetworkImage struct {
	// Kind is netdev, ifaddr, route, route6, rule, netns, iptables, ip6tables, nftables, netns-ct or netns-exp.
	Kind string
	// Namespace is CRIU's number of it.
	Namespace int
	// Size in bytes. An image without an entry has its magic numbers only, which is 8 bytes, or nothing.
	Size int64
}

var networkImage = regexp.MustCompile(`^(netdev|ifaddr|route6?|rule|netns|ip6?tables|nftables|netns-ct|netns-exp)-(\d+)\.img$`)

// Network lists the images that the network namespaces come back from, by namespace and kind.
func (im Images) Network() ([]NetworkImage, error) {
	files, err := fs.ReadDir(im.fsys, ".")
	if err != nil {
		return nil, unknownImage(err)
	}
	var found []NetworkImage
	for _, f := range files {
		m := networkImage.FindStringSubmatch(f.Name())
		if m == nil {
			continue
		}
		info, err := f.Info()
		if err != nil {
			return nil, unknownImage(err)
		}
		ns, err := strconv.Atoi(m[2])
		if err != nil {
			return nil, unknownImage(err)
		}
		found = append(found, NetworkImage{m[1], ns, info.Size()})
	}
	slices.SortFunc(found, func(a, b NetworkImage) int {
		if a.Namespace != b.Namespace {
			return a.Namespace - b.Namespace
		}
		return strings.Compare(a.Kind, b.Kind)
	})
	return found, nil
}

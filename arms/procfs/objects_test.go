package procfs_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/procfs/slottest"
	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
)

// shared lists what two slots hold both, by kind; of devices and namespaces with their IDs.
func shared(t *testing.T, a, b *slottest.Slot) (list []string) {
	t.Helper()
	objects := func(s *slottest.Slot) []engine.Object {
		l, known := procfs.ReadObjects(s.Init, engine.ViewHost).Get()
		if !known || !slices.ContainsFunc(l, func(o engine.Object) bool { return o.Kind == engine.ObjectProcess }) {
			t.Fatalf("objects of pid %d: %+v, known %t", s.Init, l, known)
		}
		return l
	}
	other := objects(b)
	for _, o := range objects(a) {
		if !slices.ContainsFunc(other, func(x engine.Object) bool { return x.Kind == o.Kind && x.ID == o.ID }) {
			continue
		}
		word := string(o.Kind)
		if o.Kind == engine.ObjectDevice || o.Kind == engine.ObjectNamespace {
			word += " " + o.ID
		}
		list = append(list, word)
	}
	slices.Sort(list)
	return list
}

// Slots that hold one of everything share nothing of it but devices without a state; whatever one file descriptor leads
// to in both is found.
func TestObjects(t *testing.T) {
	a, b := slottest.Start(t), slottest.Start(t)
	busy(a)
	busy(b)
	for _, s := range shared(t, a, b) {
		if s != "device /dev/null" && s != "device /dev/urandom" {
			t.Errorf("two slots of their own share a %s", s)
		}
	}

	open := func(f *os.File, err error) *os.File {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	raw := func(fd int, err error) *os.File {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return open(os.NewFile(uintptr(fd), "planted"), nil)
	}
	r, w, err := os.Pipe()
	open(w, err)
	written := open(os.Create(filepath.Join(t.TempDir(), "written")))
	if err := unix.Flock(int(written.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	var options []slottest.Option
	for _, f := range []*os.File{
		open(r, err), written, raw(unix.Eventfd(0, unix.EFD_CLOEXEC)), raw(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)),
		open(os.Open(filepath.Join("/proc", "self", "exe"))), // read only: nothing of one shows in the other
	} {
		options = append(options, slottest.WithFile(f))
	}
	have := strings.Join(slices.DeleteFunc(shared(t, slottest.Start(t, options...), slottest.Start(t, options...)), func(s string) bool { return s == "device /dev/null" }), ", ")
	if want := "eventfd, lock, pipe, socket, writable file"; have != want {
		t.Errorf("found %q, planted were %q", have, want)
	}
}

// A process that is not in namespaces of its own has none listed, and what it holds is.
func TestProcessObjects(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	list, err := procfs.ProcessObjects(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[engine.ObjectKind]int{}
	for _, o := range list {
		kinds[o.Kind]++
	}
	if kinds[engine.ObjectProcess] != 1 || kinds[engine.ObjectNamespace] != 0 || kinds[engine.ObjectPipe] == 0 {
		t.Errorf("%v", kinds)
	}
	if _, err := procfs.ProcessObjects(1 << 30); err == nil {
		t.Error("a process that is not there has objects")
	}
}

// A file that a process may write to is left out where it is named, and mapped privately alone.
func TestPrivatelyMapped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory")
	f, err := os.Create(path)
	if err == nil {
		err = f.Truncate(1 << 16)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	listed := func(private ...string) bool {
		t.Helper()
		list, err := procfs.ProcessObjects(os.Getpid(), private...)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list, func(o engine.Object) bool {
			return o.Kind == engine.ObjectFile && strings.HasSuffix(o.Holder, " "+path)
		})
	}
	mapped := func(flags int) []byte {
		t.Helper()
		m, err := unix.Mmap(int(f.Fd()), 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, flags)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Munmap(m) })
		return m
	}
	if !listed() || !listed(path) {
		t.Error("a file that is open for writing, and not mapped, is left out")
	}
	mapped(unix.MAP_PRIVATE)
	if !listed() || listed(path) {
		t.Error("with a private mapping it is listed where it is named, or left out where it is not")
	}
	shared := mapped(unix.MAP_SHARED)
	if !listed(path) {
		t.Error("with a shared mapping beside the private one it is left out")
	}
	if err := unix.Munmap(shared); err != nil || listed(path) {
		t.Error("without the shared mapping it is listed", err)
	}
	if _, err := procfs.ProcessObjects(os.Getpid(), path+"x"); err == nil {
		t.Error("a name that leads nowhere is no error")
	}
}

// An interface that a descriptor is, is told from one of the same name in another network namespace.
func TestTaps(t *testing.T) {
	var files []*os.File
	for range 2 {
		err := thread.Run(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			files = append(files, os.NewFile(uintptr(fd), "tap"))
			name, err := unix.NewIfreq("drums0")
			if err != nil {
				return err
			}
			name.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
			return unix.IoctlIfreq(fd, unix.TUNSETIFF, name)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	again, err := unix.Dup(int(files[0].Fd()))
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, os.NewFile(uintptr(again), "tap"))
	bare, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(files, bare) {
		defer f.Close()
	}
	list, err := procfs.ProcessObjects(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	taps := 0
	for _, o := range list {
		if o.Kind == engine.ObjectDevice && strings.HasPrefix(o.ID, "interface drums0 in net:[") {
			taps++
		}
	}
	if taps != 2 || !slices.ContainsFunc(list, func(o engine.Object) bool { return o.Kind == engine.ObjectDevice && o.ID == "character 10:200" }) {
		t.Errorf("%d interfaces of two: %+v", taps, list)
	}
}

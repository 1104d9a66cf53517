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

package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// find returns the entry of a path, or fails.
func find(t testing.TB, m bench.StateManifest, path string) bench.StateEntry {
	t.Helper()
	for _, e := range m.Entries {
		if e.Path == path {
			return e
		}
	}
	t.Fatalf("no entry %s in %+v", path, m.Entries)
	return bench.StateEntry{}
}

func paths(m bench.StateManifest) []string {
	out := []string{}
	for _, e := range m.Entries {
		out = append(out, e.Path)
	}
	return out
}

// The manifest before the dump equals the one after a restore with copied-up files.
func TestStateIsTheSameAfterARestoreWithCopiedUpFiles(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	cache := &HashCache{}
	p := over(t, base, img)
	change(t, p)
	before := p.state(cache)
	layer := p.seal(cache)
	for range 2 { // the second time from the cache
		p = over(t, base, img, layer)
		must(t, CopyUp(p.Target, p.Upper, []string{
			"/etc/config", "/etc/plain", "/etc/shared", "/etc/alias", "/exe", "/dir/b", "/new-name", "/far/away/alias",
		}))
		equal(t, before, p.state(cache))
		equal(t, before, p.state(nil))
		// A checkpoint alone, without a slot.
		sealed, err := State(StateOptions{Image: img, Layers: []string{layer}, Cache: cache})
		must(t, err)
		equal(t, before, sealed)
		p.unmount()
	}
}

func TestPureCopyUpIsNoDifference(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	p := over(t, base, img)
	must(t, CopyUp(p.Target, p.Upper, []string{"/etc/config", "/etc/alias", "/exe", "/dir/sub/c", "/dir/a"}))
	// Touched, moved there and back, emptied and filled again.
	must(t, os.Chtimes(p.path("/dir/b"), time.Unix(1, 0), time.Unix(1, 0)))
	must(t, os.Chmod(p.path("/dir/sub"), 0o700))
	must(t, os.Chmod(p.path("/dir/sub"), 0o755))
	must(t, os.WriteFile(p.path("/etc/config"), []byte("config\n"), 0))
	if m := p.state(nil); len(m.Entries) != 0 {
		t.Errorf("differences: %+v", m.Entries)
	}
	// One byte, one bit, one attribute, one owner: each is a difference.
	must(t, os.WriteFile(p.path("/etc/config"), []byte("Config\n"), 0))
	must(t, os.Chmod(p.path("/dir/sub/c"), 0o600))
	must(t, unix.Removexattr(p.path("/exe"), "security.capability"))
	must(t, os.Chown(p.path("/dir/a"), 7, 9))
	if have, want := paths(p.state(nil)), []string{"/dir/a", "/dir/sub/c", "/etc/config", "/exe"}; !slices.Equal(have, want) {
		t.Errorf("differences: %v", have)
	}
}

func TestStateNamesEachKindOfChange(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	p := over(t, base, img)
	change(t, p)
	must(t, os.RemoveAll(p.path("/far"))) // new directory, then hidden inside an opaque one
	mkdir(t, p.path("/far"))
	m := p.state(nil)
	want := map[string]string{
		"/gone": "whiteout", "/old-name": "whiteout", "/new-name": "file", "/pipe": "fifo", "/zero": "char", "/null": "char",
		"/exe": "file", "/etc": "directory", "/link": "symlink", "/other": "file", "/dir": "directory", "/dir/b": "file",
		"/etc/alias": "file", "/etc/shared": "file", "/etc/second-name": "file", "/far": "directory",
	}
	for _, e := range m.Entries {
		if want[e.Path] != e.Type {
			t.Errorf("%s is %s, want %q", e.Path, e.Type, want[e.Path])
		}
		delete(want, e.Path)
	}
	if len(want) > 0 {
		t.Errorf("not told: %v", want)
	}
	for path, ok := range map[string]bool{
		"/dir": find(t, m, "/dir").Opaque, "/far": find(t, m, "/far").Opaque,
		"/etc":  !find(t, m, "/etc").Opaque && find(t, m, "/etc").Xattrs["trusted.drums"] == "00ff" && find(t, m, "/etc").Xattrs["trusted.overlay.opaque"] == "79" && len(find(t, m, "/etc").Xattrs) == 2,
		"/zero": find(t, m, "/zero").Rdev == bench.Int64(fmt.Sprint(unix.Mkdev(1, 5))),
		"/null": find(t, m, "/null").Mode == 0o600,
		"/exe":  strings.HasPrefix(find(t, m, "/exe").Xattrs["security.capability"], "0100000200040000"),
		"/link": find(t, m, "/link").Target == "/etc/plain",
		"/dir/b": find(t, m, "/dir/b").Size == "6" && find(t, m, "/dir/b").Mode == 0o600 &&
			find(t, m, "/dir/b").Sha256 == "ab1a29c10ccb9ceec5a9e4453f1aaf261b81869eaadbf3426e378a99347b08af",
	} {
		if !ok {
			t.Errorf("%+v", find(t, m, path))
		}
	}
	if _, err := Digest(m); err != nil {
		t.Error(err)
	}
}

// Whiteouts as an attribute, as newer tools write them.
func TestStateKnowsWhiteoutsByAttribute(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	layer := filepath.Join(base, "layer")
	mkdir(t, layer+"/etc", layer+"/dir")
	for _, f := range []string{"/etc/plain", "/dir/a"} {
		must(t, os.WriteFile(layer+f, nil, 0o600))
		must(t, unix.Setxattr(layer+f, overlayWhiteout, []byte("y"), 0))
	}
	must(t, unix.Setxattr(layer+"/etc", overlayOpaque, []byte("x"), 0))
	m, err := State(StateOptions{Image: img, Layers: []string{layer}})
	must(t, err)
	p := over(t, base, img, layer)
	for _, f := range []string{"/etc/plain", "/dir/a"} {
		if find(t, m, f).Type != "whiteout" {
			t.Errorf("%+v", find(t, m, f))
		}
		if _, err := os.Lstat(p.path(f)); !os.IsNotExist(err) {
			t.Errorf("the kernel disagrees: %v", err)
		}
	}
	if len(m.Entries) != 2 {
		t.Errorf("%+v", m.Entries)
	}
}

func TestStateRefusesForeignOverlayFeatures(t *testing.T) {
	img := image(t, sample(t))
	for _, name := range []string{overlayMetacopy, overlayRedirect} {
		layer := t.TempDir()
		mkdir(t, layer+"/dir")
		must(t, unix.Setxattr(layer+"/dir", name, []byte("/etc"), 0))
		if _, err := State(StateOptions{Image: img, Layers: []string{layer}}); !errors.Is(err, engine.ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStateOfHostileTrees(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	p := over(t, base, img)
	for _, name := range []string{"new\nline", "\xff\xfe", `back\slash`, `\xff`, "ü", "a b", "-rf", "\x01"} {
		must(t, os.WriteFile(p.path("/"+name), nil, 0o600))
	}
	must(t, os.Symlink("\xff/../../../etc/shadow", p.path("/evil")))
	must(t, os.Symlink("/", p.path("/root")))
	// A device and a fifo that would block or act if they were opened.
	must(t, unix.Mknod(p.path("/watchdog"), unix.S_IFCHR|0o600, int(unix.Mkdev(10, 130))))
	must(t, unix.Mkfifo(p.path("/blocks"), 0o600))
	dir, err := unix.Open(p.Target, unix.O_PATH|unix.O_CLOEXEC, 0)
	must(t, err)
	for range 60 { // 12,000 bytes of path: PATH_MAX is 4096
		name := strings.Repeat("d", 200)
		must(t, unix.Mkdirat(dir, name, 0o700))
		next, err := unix.Openat(dir, name, unix.O_PATH|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(dir)
		dir = next
	}
	unix.Close(dir)
	m := p.state(nil)
	if len(m.Entries) != 8+4+60 {
		t.Errorf("%d entries: %v", len(m.Entries), paths(m))
	}
	for _, want := range []string{`/\xff\xfe`, `/\x5cxff`, "/new\nline", `/back\x5cslash`, "/ü"} {
		find(t, m, want)
	}
	if e := find(t, m, "/evil"); e.Target != `\xff/../../../etc/shadow` {
		t.Errorf("%+v", e)
	}
	// No two names became one.
	if list := paths(m); len(slices.Compact(slices.Sorted(slices.Values(list)))) != len(list) {
		t.Error("two names read alike")
	}
}

func TestStateExcludesAndReadsTmpfs(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	p := over(t, base, img)
	mkdir(t, p.path("/run/hidden"), p.path("/tmp/.X11-unix/deep"), p.path("/tmp/.X11-unix2"))
	must(t, os.Remove(p.path("/gone")))
	tmpfs := filepath.Join(base, "tmpfs")
	mkdir(t, tmpfs)
	must(t, unix.Mount("tmpfs", tmpfs, "tmpfs", 0, "mode=0711"))
	defer unix.Unmount(tmpfs, unix.MNT_DETACH)
	mkdir(t, tmpfs+"/user", tmpfs+"/inner")
	must(t, os.WriteFile(tmpfs+"/user/token", []byte("t"), 0o600))
	must(t, unix.Setxattr(tmpfs+"/user", overlayOpaque, []byte("y"), 0)) // means nothing on a tmpfs
	must(t, unix.Mount("tmpfs", tmpfs+"/inner", "tmpfs", 0, ""))
	defer unix.Unmount(tmpfs+"/inner", unix.MNT_DETACH)
	must(t, os.WriteFile(tmpfs+"/inner/not-of-this-mount", nil, 0o600))
	m, err := State(StateOptions{
		Image: img, Upper: p.Upper, Work: p.Work, Tmpfs: map[string]string{"/run/": tmpfs},
		Exclude: []string{"/tmp/.X11-unix", "/gone"},
	})
	must(t, err)
	if have, want := paths(m), []string{"/run", "/run/user", "/run/user/token", "/tmp", "/tmp/.X11-unix2"}; !slices.Equal(have, want) {
		t.Errorf("have %v", have)
	}
	if e := find(t, m, "/run"); e.Mode != 0o711 || e.Type != "directory" {
		t.Errorf("%+v", e)
	}
	if e := find(t, m, "/run/user"); e.Xattrs[overlayOpaque] != "79" || e.Opaque {
		t.Errorf("%+v", e)
	}
	if !slices.Equal(m.Exclude, []string{"/gone", "/tmp/.X11-unix"}) {
		t.Errorf("exclude: %v", m.Exclude)
	}
}

// A write through a mapping that is dirty already leaves the times as they are;
// the state of an upper directory must see it all the same.
func TestStateSeesWritesThroughMappings(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	cache := &HashCache{}
	p := over(t, base, img)
	f, err := os.OpenFile(p.path("/etc/config"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, 7, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	defer unix.Munmap(mem)
	mem[0] = 'X'
	time.Sleep(150 * time.Millisecond)
	a := p.state(cache)
	mem[0] = 'Y'
	b := p.state(cache)
	if find(t, a, "/etc/config").Sha256 == find(t, b, "/etc/config").Sha256 {
		t.Error("the second write was not seen")
	}
}

func TestHashCacheMissesWhatChanged(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, []byte("one"), 0o600))
	cache := &HashCache{}
	hash := func() bench.SHA256 {
		o, err := openPath(file)
		must(t, err)
		defer o.close()
		s, err := o.sum(cache)
		must(t, err)
		return s
	}
	a := hash()
	if len(cache.sums) != 0 {
		t.Error("a file that was written just now is cached")
	}
	time.Sleep(150 * time.Millisecond)
	if hash() != a || len(cache.sums) != 1 {
		t.Errorf("cached: %v", cache.sums)
	}
	must(t, os.WriteFile(file, []byte("two"), 0o600))
	if hash() == a {
		t.Error("a stale hash")
	}
}

func TestDiffNamesPathsAndCountsTheRest(t *testing.T) {
	entry := func(path string, mode int64) bench.StateEntry {
		return bench.StateEntry{Path: path, Type: "file", Mode: mode, Size: "1", Sha256: "ab"}
	}
	a := bench.StateManifest{Entries: []bench.StateEntry{entry("/a", 1), entry("/b", 1), entry("/d", 1)}}
	b := bench.StateManifest{Entries: []bench.StateEntry{entry("/b", 2), entry("/c", 1), entry("/d", 1)}}
	var have []string
	for _, f := range Diff(a, b) {
		if f.Verdict != engine.Fail {
			t.Errorf("%+v", f)
		}
		have = append(have, f.Subject+": "+f.Text)
	}
	want := []string{"/a: the change against the image is gone", "/b: differs in mode", "/c: changed against the image"}
	if !slices.Equal(have, want) {
		t.Errorf("%q", have)
	}
	if f := Diff(a, a); len(f) != 0 {
		t.Errorf("equal states differ: %+v", f)
	}
	var many bench.StateManifest
	for i := range 50 {
		many.Entries = append(many.Entries, entry(fmt.Sprintf("/f%02d", i), 1))
	}
	f := Diff(bench.StateManifest{}, many)
	if len(f) != listed+1 || f[listed].Text != "30 more paths differ" {
		t.Errorf("%+v", f)
	}
	many.Exclude = []string{"/tmp"}
	if f := Diff(bench.StateManifest{}, many); len(f) != 1 || f[0].Verdict != engine.VerdictUnknown {
		t.Errorf("%+v", f)
	}
}

func BenchmarkState(b *testing.B) {
	base, img := b.TempDir(), image(b, sample(b))
	cache := &HashCache{}
	p := over(b, base, img)
	for i := range 500 {
		must(b, os.WriteFile(fmt.Sprintf("%s/file-%03d", p.Target, i), make([]byte, 16<<10), 0o600))
	}
	layer := p.seal(cache)
	p = over(b, base, img, layer)
	must(b, CopyUp(p.Target, p.Upper, []string{"/etc/plain", "/file-001"}))
	time.Sleep(200 * time.Millisecond)
	for b.Loop() {
		if m := p.state(cache); len(m.Entries) != 500 {
			b.Fatal(len(m.Entries))
		}
	}
}

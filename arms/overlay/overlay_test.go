package overlay

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// image builds an ext4 image of what populate makes and mounts it read-only, as a slot's image is.
func image(t testing.TB, populate func(dir string)) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("overlay tests need root")
	}
	base := t.TempDir()
	tree, file, point := filepath.Join(base, "tree"), filepath.Join(base, "image"), filepath.Join(base, "mnt")
	mkdir(t, tree, point)
	populate(tree)
	run(t, "mke2fs", "-q", "-t", "ext4", "-d", tree, file, "16M")
	run(t, "mount", "-o", "ro,loop,noload", file, point)
	t.Cleanup(func() { run(t, "umount", point) })
	return point
}

// sample has one of everything that is awkward.
func sample(t testing.TB) func(dir string) {
	return func(dir string) {
		mkdir(t, dir+"/etc", dir+"/dir/sub", dir+"/other", dir+"/run", dir+"/far/away")
		for name, text := range map[string]string{
			"etc/plain": "plain\n", "etc/shared": "shared\n", "etc/config": "config\n",
			"dir/a": "a\n", "dir/b": "b\n", "dir/sub/c": "c\n", "gone": "gone\n", "old-name": "renamed\n", "exe": "program\n",
		} {
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o640))
		}
		must(t, os.Link(dir+"/etc/shared", dir+"/etc/alias"))
		must(t, os.Link(dir+"/etc/shared", dir+"/far/away/alias"))
		must(t, os.Symlink("/etc/plain", dir+"/link"))
		must(t, unix.Mkfifo(dir+"/fifo", 0o600))
		must(t, unix.Mknod(dir+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		must(t, unix.Setxattr(dir+"/exe", "security.capability", []byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
		must(t, unix.Setxattr(dir+"/etc/plain", "user.note", []byte("hello"), 0))
		must(t, os.Chown(dir+"/dir/a", 7, 8))
		must(t, os.Chmod(dir+"/exe", 0o4755))
	}
}

// place is one overlay of a test.
type place struct {
	Options
	image  string
	layers []string // lowest first
	t      testing.TB
}

// over mounts a fresh overlay over image and layers, lowest first.
func over(t testing.TB, base, image string, layers ...string) *place {
	t.Helper()
	dir, err := os.MkdirTemp(base, "slot")
	must(t, err)
	p := &place{image: image, layers: layers, t: t, Options: Options{
		Upper: dir + "/upper", Work: dir + "/work", Target: dir + "/merged", NFSExport: true, Lower: lowers(image, layers),
	}}
	mkdir(t, p.Upper, p.Work, p.Target)
	must(t, Mount(p.Options))
	t.Cleanup(func() { unix.Unmount(p.Target, unix.MNT_DETACH) })
	return p
}

func (p *place) path(slot string) string { return p.Target + slot }

func (p *place) unmount() {
	p.t.Helper()
	must(p.t, unix.Unmount(p.Target, 0))
}

// seal unmounts and seals to a new layer.
func (p *place) seal(cache *HashCache) string {
	p.t.Helper()
	p.unmount()
	dest := filepath.Join(filepath.Dir(p.Upper), "layer")
	must(p.t, Seal(SealOptions{Upper: p.Upper, Work: p.Work, Image: p.image, Layers: p.layers, Dest: dest, Cache: cache}))
	return dest
}

func (p *place) state(cache *HashCache, exclude ...string) bench.StateManifest {
	p.t.Helper()
	m, err := State(StateOptions{Image: p.image, Layers: p.layers, Upper: p.Upper, Work: p.Work, Exclude: exclude, Cache: cache})
	must(p.t, err)
	return m
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mkdir(t testing.TB, dirs ...string) {
	t.Helper()
	for _, d := range dirs {
		must(t, os.MkdirAll(d, 0o755))
	}
}

func run(t testing.TB, argv ...string) {
	t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
}

func text(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

func appendTo(t testing.TB, path, line string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = f.WriteString(line)
	must(t, errors.Join(err, f.Close()))
}

func ino(t testing.TB, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return st.Ino
}

func TestMountHasTheOptionsItWasGiven(t *testing.T) {
	img := image(t, sample(t))
	p := over(t, t.TempDir(), img)
	info, err := mountAt(p.Target)
	must(t, err)
	t.Log(info.VFSOptions)
	for _, want := range []string{"uuid=null", "index=on", "nfs_export=on", "redirect_dir=nofollow", "xino=on"} {
		if !slices.Contains(strings.Split(info.VFSOptions, ","), want) {
			t.Errorf("%s is not shown in %s", want, info.VFSOptions)
		}
	}
	o := p.Options
	o.NFSExport = false
	if err := o.readBack(o.settings()); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("another nfs_export passes: %v", err)
	}
	o.Target = t.TempDir()
	if err := o.readBack(o.settings()); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("nothing mounted passes: %v", err)
	}
	o.Lower = []string{"relative"}
	if err := Mount(o); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("relative path: %v", err)
	}
}

// A ramfs has neither attributes nor file handles. The kernel would mount it
// with index=off and a line in its log; here that is refused and taken away.
func TestMountWithLessThanAskedForIsRefused(t *testing.T) {
	img, ram, target := image(t, sample(t)), t.TempDir(), t.TempDir()
	must(t, unix.Mount("ramfs", ram, "ramfs", 0, ""))
	defer unix.Unmount(ram, unix.MNT_DETACH)
	o := Options{Lower: []string{img}, Upper: ram + "/u", Work: ram + "/w", Target: target, NFSExport: true}
	mkdir(t, o.Upper, o.Work)
	err := Mount(o)
	t.Log(err)
	if !errors.Is(err, engine.ErrRefused) && !errors.Is(err, unix.EINVAL) {
		t.Errorf("on a ramfs: %v", err)
	}
	if _, err := mountAt(target); err == nil {
		t.Error("left mounted")
	}
	o.Upper = t.TempDir()
	must(t, os.WriteFile(o.Upper+"/used", nil, 0o600))
	if err := Mount(o); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("with an upper directory that is not empty: %v", err)
	}
}

func TestManyLayersAndOddNames(t *testing.T) {
	base := t.TempDir()
	var layers []string
	for i := range 80 {
		dir := filepath.Join(base, fmt.Sprintf("layer,with:odd\\name-%02d-%s", i, strings.Repeat("x", 60)))
		mkdir(t, dir)
		must(t, os.WriteFile(dir+"/top", fmt.Append(nil, i), 0o600))
		layers = append(layers, dir)
	}
	p := over(t, base, layers[0], layers[1:]...)
	if have := text(t, p.path("/top")); have != "79" {
		t.Errorf("the topmost layer is %s", have)
	}
	o := p.Options
	if _, err := o.optionString(o.settings()); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("an option string of more than a page: %v", err)
	}
	p.unmount()
	// The same through mount(2), for kernels without the new interface.
	o.Lower = o.Lower[:3]
	must(t, os.RemoveAll(o.Work))
	must(t, os.RemoveAll(o.Upper))
	mkdir(t, o.Work, o.Upper)
	settings, err := mountByString(o, unix.Mount)
	must(t, err)
	must(t, o.readBack(settings))
	if have := text(t, p.path("/top")); have != "79" {
		t.Errorf("the topmost layer is %s", have)
	}
	p.unmount()
}

// The distribution's kernel of the day is older than the newest interface: Debian 12's
// 6.1 says EOPNOTSUPP to a layer by descriptor, and has no uuid=null, which is the
// only thing that it can do. Seen in host-vm.
func TestOlderKernels(t *testing.T) {
	for err, want := range map[error]bool{unix.EINVAL: true, unix.EOPNOTSUPP: true, unix.EPERM: false, unix.ENOENT: false} {
		if have := tooOld(fmt.Errorf("set lowerdir+: %w", err)); have != want {
			t.Errorf("%v: too old is %t", err, have)
		}
	}
	o := Options{Lower: []string{"/l"}, Upper: "/u", Work: "/w", Target: "/t", NFSExport: true}
	var tried []string
	kernel := func(_, _, _ string, _ uintptr, data string) error {
		tried = append(tried, data)
		if strings.Contains(data, "uuid=") {
			return unix.EINVAL
		}
		return nil
	}
	settings, err := mountByString(o, kernel)
	must(t, err)
	if len(settings) != len(o.settings())-1 || len(tried) != 2 || strings.Replace(tried[0], ",uuid=null", "", 1) != tried[1] {
		t.Errorf("given %v after %q", settings, tried)
	}
	never := func(string, string, string, uintptr, string) error { return unix.EINVAL }
	if _, err := mountByString(o, never); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a kernel that takes neither: %v", err)
	}
	// One that was given no uuid and shows one is not believed.
	p := over(t, t.TempDir(), image(t, sample(t)))
	if err := p.readBack(settings); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("a uuid that nobody gave: %v", err)
	}
}

func TestSealedLayerInSeveralOverlaysAtOnce(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	first := over(t, base, img)
	appendTo(t, first.path("/etc/plain"), "more\n")
	must(t, os.WriteFile(first.path("/new"), []byte("new\n"), 0o600))
	newIno := ino(t, first.path("/new"))
	layer := first.seal(nil)
	var siblings []*place
	for i := range 8 {
		p := over(t, base, img, layer)
		must(t, CopyUp(p.Target, p.Upper, []string{"/etc/plain", "/new", "/etc/config"}))
		appendTo(t, p.path("/etc/plain"), fmt.Sprint(i))
		siblings = append(siblings, p)
	}
	for i, p := range siblings {
		if have, want := text(t, p.path("/etc/plain")), fmt.Sprint("plain\nmore\n", i); have != want {
			t.Errorf("sibling %d reads %q", i, have)
		}
		if have := ino(t, p.path("/new")); have != newIno {
			t.Errorf("sibling %d: /new had inode %d and has %d", i, newIno, have)
		}
	}
	if have := text(t, layer+"/etc/plain"); have != "plain\nmore\n" {
		t.Errorf("the layer was written to: %q", have)
	}
}

// Mounting over a layer whose overlay still lives must not pass.
func TestLayerStillInUseIsBusy(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	first := over(t, base, img)
	dest := filepath.Join(base, "early")
	must(t, Seal(SealOptions{Upper: first.Upper, Work: first.Work, Image: img, Dest: dest}))
	mkdir(t, base+"/u", base+"/w", base+"/m")
	err := Mount(Options{Lower: []string{dest, img}, Upper: base + "/u", Work: base + "/w", Target: base + "/m", NFSExport: true})
	if !errors.Is(err, unix.EBUSY) {
		t.Errorf("over a living upper: %v", err)
	}
	first.unmount()
}

func TestCopyUp(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	p := over(t, base, img)
	before := ino(t, p.path("/etc/shared"))
	must(t, CopyUp(p.Target, p.Upper, []string{"/etc/shared", "/dir/sub/c", "/link", "/fifo", "/null"}))
	if text(t, p.Upper+"/dir/sub/c") != "c\n" || text(t, p.Upper+"/etc/plain") != "plain\n" {
		t.Error("not in the upper directory")
	}
	// Both names are one inode, in the overlay and in the upper directory.
	must(t, CopyUp(p.Target, p.Upper, []string{"/etc/alias"}))
	must(t, CopyUp(p.Target, p.Upper, []string{"/etc/alias"}))
	if a, b := ino(t, p.Upper+"/etc/shared"), ino(t, p.Upper+"/etc/alias"); a != b {
		t.Errorf("two inodes in the upper directory: %d, %d", a, b)
	}
	appendTo(t, p.path("/etc/shared"), "one\n")
	appendTo(t, p.path("/etc/alias"), "two\n")
	for _, name := range []string{"/etc/shared", "/etc/alias", "/far/away/alias"} {
		if have := text(t, p.path(name)); have != "shared\none\ntwo\n" {
			t.Errorf("%s reads %q", name, have)
		}
		if have := ino(t, p.path(name)); have != before {
			t.Errorf("%s had inode %d and has %d", name, before, have)
		}
	}
	if _, err := os.Lstat(p.Upper + "/null"); !os.IsNotExist(err) {
		t.Errorf("a device was copied up: %v", err)
	}
}

func TestCopyUpStaysInsideTheRoot(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	p := over(t, base, img)
	outside := filepath.Join(base, "outside")
	must(t, os.WriteFile(outside, []byte("host\n"), 0o600))
	must(t, os.Symlink(outside, p.path("/absolute")))
	must(t, os.Symlink(strings.Repeat("../", 20)+outside, p.path("/relative")))
	must(t, os.Symlink(base, p.path("/dirlink")))
	must(t, os.Symlink("/proc/self/root"+outside, p.path("/magic")))
	must(t, os.Symlink("loop", p.path("/loop")))
	must(t, unix.Mount("tmpfs", p.path("/run"), "tmpfs", 0, ""))
	defer unix.Unmount(p.path("/run"), unix.MNT_DETACH)
	must(t, os.WriteFile(p.path("/run/file"), nil, 0o600))
	for _, path := range []string{
		"/absolute", "/relative", "/dirlink/outside", "/magic", "/loop", strings.Repeat("/..", 20) + outside,
		"/missing", "/etc", "/etc/plain/x", "etc/plain", "", "/run/file",
	} {
		if err := CopyUp(p.Target, p.Upper, []string{path}); !errors.Is(err, engine.ErrRefused) {
			t.Errorf("%q: %v", path, err)
		}
	}
	// A link inside resolves inside: /link is absolute and means the slot's own file.
	must(t, CopyUp(p.Target, p.Upper, []string{"/link"}))
	if text(t, p.Upper+"/etc/plain") != "plain\n" {
		t.Error("not in the upper directory")
	}
	// The wrong upper directory is found out.
	if err := CopyUp(p.Target, base, []string{"/etc/config"}); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("wrong upper directory: %v", err)
	}
}

// change does to a slot what wears overlays: removal, replacement, renames,
// hard links, special files, attributes.
func change(t testing.TB, p *place) {
	must(t, os.Remove(p.path("/gone")))
	must(t, os.RemoveAll(p.path("/dir")))
	mkdir(t, p.path("/dir"))
	must(t, os.WriteFile(p.path("/dir/b"), []byte("new b\n"), 0o600))
	must(t, os.Rename(p.path("/old-name"), p.path("/new-name")))
	appendTo(t, p.path("/etc/alias"), "through one name\n")
	must(t, os.Link(p.path("/new-name"), p.path("/etc/second-name")))
	must(t, unix.Mkfifo(p.path("/pipe"), 0o622))
	must(t, unix.Mknod(p.path("/zero"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))))
	must(t, os.Chmod(p.path("/null"), 0o600))
	must(t, os.WriteFile(p.path("/exe"), []byte("new program\n"), 0o755))
	must(t, unix.Setxattr(p.path("/exe"), "security.capability", []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	must(t, unix.Setxattr(p.path("/etc"), "trusted.drums", []byte("\x00\xff"), 0))
	must(t, unix.Setxattr(p.path("/etc"), "trusted.overlay.opaque", []byte("y"), 0)) // the slot's own: stored escaped
	must(t, unix.Lsetxattr(p.path("/link"), "trusted.on-a-link", []byte("x"), 0))
	must(t, os.Remove(p.path("/other")))
	must(t, os.WriteFile(p.path("/other"), []byte("a file where a directory was\n"), 0o600))
}

// Through image, layer, layer, upper: the merged view after each seal is the one before.
func TestSealKeepsTheMergedView(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	cache := &HashCache{}
	p := over(t, base, img)
	change(t, p)
	view, state := tree(t, p.Target), p.state(cache)
	layer0 := p.seal(cache)

	p = over(t, base, img, layer0)
	sameView(t, view, tree(t, p.Target))
	equal(t, state, p.state(cache))
	// A second generation on top of the first.
	must(t, os.Remove(p.path("/dir/b")))
	must(t, os.Remove(p.path("/dir")))
	must(t, os.WriteFile(p.path("/dir"), []byte("now a file\n"), 0o600))
	must(t, os.WriteFile(p.path("/gone"), []byte("back\n"), 0o600))
	must(t, os.Remove(p.path("/other")))
	mkdir(t, p.path("/other/deep"))
	must(t, os.Rename(p.path("/new-name"), p.path("/third-name")))
	appendTo(t, p.path("/etc/shared"), "and another\n")
	must(t, os.Remove(p.path("/etc/alias")))
	must(t, os.Remove(p.path("/pipe")))
	view, state = tree(t, p.Target), p.state(cache)
	if text(t, p.path("/far/away/alias")) != "shared\nthrough one name\nand another\n" {
		t.Error("hard links broke")
	}
	layer1 := p.seal(cache)

	p = over(t, base, img, layer0, layer1)
	sameView(t, view, tree(t, p.Target))
	equal(t, state, p.state(cache))
	must(t, CopyUp(p.Target, p.Upper, []string{"/etc/shared", "/etc/second-name", "/dir"}))
	sameView(t, view, tree(t, p.Target))
	equal(t, state, p.state(cache))

	flat := filepath.Join(base, "flat")
	must(t, Flatten(flat, layer0, layer1))
	p = over(t, base, img, flat)
	sameView(t, view, tree(t, p.Target))
	equal(t, state, p.state(cache))
}

// Names of one inode stay that, whatever it is, and directories keep their times.
func TestFlattenKeepsHardLinks(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	p := over(t, base, img)
	mkdir(t, p.path("/h/d"))
	must(t, os.WriteFile(p.path("/h/file"), []byte("x"), 0o600))
	must(t, unix.Mkfifo(p.path("/h/fifo"), 0o600))
	must(t, unix.Mknod(p.path("/h/device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	must(t, os.Symlink("nowhere", p.path("/h/symlink")))
	for _, name := range []string{"file", "fifo", "device", "symlink"} {
		must(t, os.Link(p.path("/h/"+name), p.path("/h/d/"+name)))
	}
	layer0 := p.seal(nil)
	p = over(t, base, img, layer0)
	must(t, os.WriteFile(p.path("/above"), nil, 0o600))
	view := tree(t, p.Target)
	layer1 := p.seal(nil)
	flat := filepath.Join(base, "flat")
	must(t, Flatten(flat, layer0, layer1))
	sameView(t, view, tree(t, over(t, base, img, flat).Target))
}

// The last upper name of a hard link is removed: its content lives on in the
// index alone, and in the names of the image that were never touched.
func TestHardLinkThatOnlyTheIndexKnows(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	p := over(t, base, img)
	appendTo(t, p.path("/etc/alias"), "changed\n")
	must(t, os.Remove(p.path("/etc/alias")))
	must(t, os.Remove(p.path("/etc/shared")))
	view, state := tree(t, p.Target), p.state(nil)
	if view["/far/away/alias"].content != "shared\nchanged\n" {
		t.Fatalf("the overlay itself shows %+v", view["/far/away/alias"])
	}
	var paths []string
	for _, e := range state.Entries {
		paths = append(paths, e.Path+" "+e.Type)
	}
	if want := []string{"/etc/alias whiteout", "/etc/shared whiteout", "/far/away/alias file"}; !slices.Equal(paths, want) {
		t.Errorf("state: %v", paths)
	}
	layer := p.seal(nil)
	p = over(t, base, img, layer)
	sameView(t, view, tree(t, p.Target))
	equal(t, state, p.state(nil))
}

// chattr's flags live in an attribute of the upper directory that a layer's reader ignores: the state must tell.
func TestProtectedAttributesAreNotLostInSilence(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	p := over(t, base, img)
	f, err := os.Open(p.path("/etc/plain"))
	must(t, err)
	must(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, unix.STATX_ATTR_IMMUTABLE))
	f.Close()
	before := p.state(nil)
	layer := p.seal(nil)
	p = over(t, base, img, layer)
	if _, err := os.OpenFile(p.path("/etc/plain"), os.O_WRONLY, 0); err != nil {
		t.Fatalf("the kernel keeps the flag in a layer now; the state may too: %v", err)
	}
	findings := Diff(before, p.state(nil))
	if len(findings) != 1 || findings[0].Subject != "/etc/plain" {
		t.Errorf("findings: %+v", findings)
	}
}

func TestSealRefusesAndProves(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	p := over(t, base, img)
	p.unmount()
	o := SealOptions{Upper: p.Upper, Work: p.Work, Image: img, Dest: base + "/taken"}
	mkdir(t, o.Dest)
	if err := Seal(o); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("a destination that exists: %v", err)
	}
	o.Dest = "/dev/shm/drums-elsewhere"
	if err := Seal(o); !errors.Is(err, syscall.EXDEV) {
		t.Errorf("another file system: %v", err)
	}
	o.Dest, o.Sync = base+"/layer", true
	must(t, Seal(o))
	if _, err := os.Lstat(p.Work); !os.IsNotExist(err) {
		t.Error("the work directory is still there")
	}
	if err := Seal(o); err == nil {
		t.Error("sealed twice")
	}
}

func TestVolatile(t *testing.T) {
	base, img := t.TempDir(), image(t, sample(t))
	mkdir(t, base+"/u", base+"/w", base+"/m")
	o := Options{Lower: []string{img}, Upper: base + "/u", Work: base + "/w", Target: base + "/m", NFSExport: true, Volatile: true}
	must(t, Mount(o))
	defer unix.Unmount(o.Target, unix.MNT_DETACH)
	must(t, CopyUp(o.Target, o.Upper, []string{"/etc/plain"}))
	o.Volatile = false
	if err := o.readBack(o.settings()); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("volatile passes as not volatile: %v", err)
	}
	must(t, unix.Unmount(o.Target, 0))
	must(t, Seal(SealOptions{Upper: o.Upper, Work: o.Work, Image: img, Dest: base + "/layer", Sync: true}))
	p := over(t, base, img, base+"/layer")
	if text(t, p.path("/etc/plain")) != "plain\n" {
		t.Error("content")
	}
}

func BenchmarkMount(b *testing.B) {
	base, img := b.TempDir(), image(b, sample(b))
	first := over(b, base, img)
	layer := first.seal(nil)
	o := Options{Lower: []string{layer, img}, Target: base + "/m", NFSExport: true}
	mkdir(b, o.Target)
	i := 0
	for b.Loop() {
		i++
		o.Upper, o.Work = fmt.Sprintf("%s/u%d", base, i), fmt.Sprintf("%s/w%d", base, i)
		must(b, os.Mkdir(o.Upper, 0o755))
		must(b, os.Mkdir(o.Work, 0o755))
		must(b, Mount(o))
		b.StopTimer()
		must(b, unix.Unmount(o.Target, 0))
		b.StartTimer()
	}
}

func BenchmarkCopyUp(b *testing.B) {
	base, img := b.TempDir(), image(b, sample(b))
	for _, volatile := range []bool{false, true} {
		b.Run(fmt.Sprintf("volatile=%t", volatile), func(b *testing.B) {
			o := Options{Lower: []string{img}, Target: base + "/m", NFSExport: true, Volatile: volatile}
			mkdir(b, o.Target)
			for b.Loop() {
				b.StopTimer()
				dir, err := os.MkdirTemp(base, "slot")
				must(b, err)
				o.Upper, o.Work = dir+"/u", dir+"/w"
				mkdir(b, o.Upper, o.Work)
				must(b, Mount(o))
				b.StartTimer()
				must(b, CopyUp(o.Target, o.Upper, []string{"/etc/plain"}))
				b.StopTimer()
				must(b, unix.Unmount(o.Target, 0))
				b.StartTimer()
			}
		})
	}
}

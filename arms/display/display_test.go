package display

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/arms/thread"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

var realXorg = flag.String("xorg", "", "folder with Debian's packages xserver-xorg-core and xserver-xorg-video-dummy, which scripts/test desktop fetches")

const driverPath = "/usr/lib/xorg/modules/drivers/dummy_drv.so"

// compile makes a shared library of C, with the relocations that a real one has.
func compile(t *testing.T, source string) []byte {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "a.c"), filepath.Join(dir, "a.so")
	if err := os.WriteFile(in, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command("gcc", "-shared", "-fPIC", "-nostdlib", "-s", "-o", out, in).CombinedOutput(); err != nil {
		t.Fatalf("%v; run scripts/setup\n%s", err, said)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// module is a module as xf86Module.h has one.
func module(t *testing.T, class string, major, minor int) []byte {
	return compile(t, fmt.Sprintf(`
struct version { const char *name, *vendor; unsigned mark1, mark2, server; unsigned char major, minor; unsigned short patch;
	const char *class; unsigned abi; const char *kind; unsigned sum[4]; };
static struct version made = { "dummy", "X.Org Foundation", 0xef23fdc5, 0x10dc023a, 12101007, 0, 4, 0, %q, %d << 16 | %d, %q };
struct { struct version *version; void *setup, *teardown; } dummyModuleData = { &made };
`, class, major, minor, class))
}

// server is what of an Xorg says its ABI.
func server(t *testing.T, tables ...string) []byte {
	source := "unsigned LoaderGetABIVersion(unsigned i) { return i; }\n"
	for i, table := range tables {
		source += fmt.Sprintf("const unsigned table%d[] = { %s };\n", i, table)
	}
	return compile(t, source)
}

const table252 = "12101007, 4, 25 << 16 | 2, 24 << 16 | 4, 10 << 16 | 0, 0"

func TestReadModule(t *testing.T) {
	m, err := ReadModule(bytes.NewReader(module(t, VideoDriver, 25, 2)))
	if err != nil || m != (Module{"dummy", VideoDriver, ABI{25, 2}}) {
		t.Errorf("%+v, %v", m, err)
	}
	broken := module(t, VideoDriver, 25, 2)
	at := bytes.Index(broken, binary.LittleEndian.AppendUint32(nil, infoMark1))
	broken[at]++
	for name, data := range map[string][]byte{
		"no marks":     broken,
		"no module":    server(t, table252),
		"two modules":  compile(t, "int aModuleData = 1, bModuleData = 2;"),
		"points away":  compile(t, "void *xModuleData = (void *)0x7000000;"),
		"to elsewhere": compile(t, "extern int other; void *xModuleData = &other;"),
	} {
		if m, err := ReadModule(bytes.NewReader(data)); !errors.Is(err, engine.ErrUnknown) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	for _, data := range [][]byte{nil, []byte("#!/bin/sh\n"), module(t, VideoDriver, 25, 2)[:600]} {
		if m, err := ReadModule(bytes.NewReader(data)); err == nil {
			t.Errorf("%d bytes: %+v", len(data), m)
		}
	}
}

func TestReadServer(t *testing.T) {
	if a, err := ReadServer(bytes.NewReader(server(t, table252))); err != nil || a != (ABI{25, 2}) {
		t.Errorf("%s, %v", a, err)
	}
	for name, data := range map[string][]byte{
		"no table":     server(t),
		"two tables":   server(t, table252, table252),
		"another ABI":  server(t, "12101007, 5, 25 << 16 | 2, 24 << 16 | 4, 10 << 16 | 0, 0"),
		"no server":    compile(t, "const unsigned table[] = { "+table252+" };"),
		"a old server": server(t, "1010, 4, 25 << 16 | 2, 24 << 16 | 4, 10 << 16 | 0, 0"),
	} {
		if a, err := ReadServer(bytes.NewReader(data)); !errors.Is(err, engine.ErrUnknown) {
			t.Errorf("%s: %s, %v", name, a, err)
		}
	}
}

func TestTakes(t *testing.T) {
	for _, c := range []struct {
		server, module ABI
		want           bool
	}{
		{ABI{25, 2}, ABI{25, 2}, true}, {ABI{25, 2}, ABI{25, 0}, true}, {ABI{25, 2}, ABI{25, 3}, false},
		{ABI{25, 2}, ABI{24, 2}, false}, {ABI{24, 1}, ABI{25, 2}, false},
	} {
		if have := c.server.Takes(c.module); have != c.want {
			t.Errorf("%s takes %s: %v", c.server, c.module, have)
		}
	}
}

// pack makes a Debian package of files, by path.
func pack(t *testing.T, dir string, files map[string][]byte) bench.PinnedFile {
	t.Helper()
	root := filepath.Join(t.TempDir(), "package")
	files["/DEBIAN/control"] = []byte("Package: drums-driver\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: a driver\n")
	for name, data := range files {
		write(t, filepath.Join(root, name), data)
	}
	out := filepath.Join(dir, "driver.deb")
	if said, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", root, out).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return bench.PinnedFile{File: "driver.deb", Sha256: canonical.Sum(data)}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
}

// A driver goes into a slot's layer where it fits, and nowhere else.
func TestStage(t *testing.T) {
	fits := module(t, VideoDriver, 25, 2)
	xorg := server(t, table252)
	for _, c := range []struct {
		name   string
		driver []byte
		image  func(t *testing.T, root string)
		change func(*bench.StagedDriver)
		want   error
		said   string
	}{
		{"fits", fits, nil, nil, nil, ""},
		{"older minor version", module(t, VideoDriver, 25, 0), nil, nil, nil, ""},
		{"newer minor version", module(t, VideoDriver, 25, 3), nil, nil, engine.ErrRefused, "built against ABI 25.3, the image's Xorg has 25.2"},
		{"another major version", module(t, VideoDriver, 24, 1), nil, nil, engine.ErrRefused, "built against ABI 24.1"},
		{"another class", module(t, "X.Org XInput driver", 25, 2), nil, nil, engine.ErrRefused, "no display driver"},
		{"no module", []byte("text"), nil, nil, nil, "read module of Xorg"},
		{"no server", fits, func(t *testing.T, root string) { os.RemoveAll(filepath.Join(root, "usr/lib/xorg/Xorg")) }, nil, engine.ErrRefused, "the image has no /usr/lib/xorg/Xorg"},
		{"a script as the server", fits, func(t *testing.T, root string) {
			write(t, filepath.Join(root, "usr/lib/xorg/Xorg"), []byte("#!/bin/sh\n"))
		}, nil, nil, "read ABI of Xorg"},
		{"a server of the host's", fits, func(t *testing.T, root string) {
			os.Remove(filepath.Join(root, "usr/lib/xorg/Xorg"))
			outside := filepath.Join(t.TempDir(), "Xorg")
			write(t, outside, xorg)
			if err := os.Symlink(outside, filepath.Join(root, "usr/lib/xorg/Xorg")); err != nil {
				t.Fatal(err)
			}
		}, nil, engine.ErrRefused, "the image has no /usr/lib/xorg/Xorg"},
		{"it is there", fits, func(t *testing.T, root string) { write(t, filepath.Join(root, driverPath), fits) }, nil, engine.ErrRefused, "of its own"},
		{"not in the package", fits, nil, func(d *bench.StagedDriver) { d.Path = "/usr/lib/other_drv.so" }, engine.ErrRefused, "the package has no file"},
		{"another package", fits, nil, func(d *bench.StagedDriver) { d.Package.Sha256 = canonical.Sum(nil) }, engine.ErrRefused, "the pin is"},
	} {
		t.Run(c.name, func(t *testing.T) {
			manifest, image := t.TempDir(), t.TempDir()
			write(t, filepath.Join(image, "usr/lib/xorg/Xorg"), xorg)
			d := bench.StagedDriver{Package: pack(t, manifest, map[string][]byte{driverPath: c.driver, "/usr/share/doc/readme": []byte("x")}), Path: driverPath, Server: "/usr/lib/xorg/Xorg"}
			if c.image != nil {
				c.image(t, image)
			}
			if c.change != nil {
				c.change(&d)
			}
			s, err := Read(t.Context(), manifest, image, d)
			if c.said == "" && c.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				slot := t.TempDir()
				if err := s.Put(slot); err != nil {
					t.Fatal(err)
				}
				if have, err := os.ReadFile(filepath.Join(slot, driverPath)); err != nil || !bytes.Equal(have, c.driver) {
					t.Errorf("what is in the slot is another file: %v", err)
				}
				if err := s.Put(slot); !errors.Is(err, os.ErrExist) {
					t.Errorf("a second time: %v", err)
				}
				if f := s.Facts(); len(f) != 3 || f[2].Value != "25.2" {
					t.Errorf("%+v", f)
				}
				return
			}
			if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.said) {
				t.Errorf("%v, want %v with %q", err, c.want, c.said)
			}
		})
	}
	if text := Difference(bench.StagedDriver{Path: driverPath, Package: bench.PinnedFile{File: "a.deb", Sha256: "ab"}}).Text; !strings.Contains(text, driverPath) || !strings.Contains(text, "a.deb") {
		t.Error(text)
	}
}

// On an overlay as a slot's the driver lies in the upper layer, and the image is as it was.
func TestPutOnOverlay(t *testing.T) {
	manifest, image, layer := t.TempDir(), t.TempDir(), t.TempDir()
	write(t, filepath.Join(image, "usr/lib/xorg/Xorg"), server(t, table252))
	s, err := Read(t.Context(), manifest, image, bench.StagedDriver{
		Package: pack(t, manifest, map[string][]byte{driverPath: module(t, VideoDriver, 25, 2)}), Path: driverPath, Server: "/usr/lib/xorg/Xorg"})
	if err != nil {
		t.Fatal(err)
	}
	dir := func(name string) string {
		path := filepath.Join(layer, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	o := overlay.Options{Lower: []string{image}, Upper: dir("upper"), Work: dir("work"), Target: dir("merged")}
	err = thread.Apart(0, func() error {
		if err := overlay.Mount(o); err != nil {
			return err
		}
		return s.Put(o.Target)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(o.Upper, driverPath)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(image, driverPath)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the image was written: %v", err)
	}
}

// A slot's root may lead anywhere by links: what is staged stays below it.
func TestPutStaysBelow(t *testing.T) {
	outside, slot := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(slot, "usr"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(slot, "usr/lib")); err != nil {
		t.Fatal(err)
	}
	s := &Staged{Path: driverPath, data: []byte("x"), SHA256: canonical.Sum([]byte("x"))}
	if err := s.Put(slot); err == nil {
		t.Error("it was written")
	}
	if found, _ := os.ReadDir(outside); len(found) > 0 {
		t.Errorf("outside: %v", found)
	}
}

// Debian's own Xorg and driver, out of their packages.
func TestRealXorg(t *testing.T) {
	if *realXorg == "" {
		t.Skip("-xorg names no folder; scripts/test desktop does")
	}
	one := func(pattern string) string {
		found, err := filepath.Glob(filepath.Join(*realXorg, pattern))
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		return found[0]
	}
	image, manifest := t.TempDir(), t.TempDir()
	if said, err := exec.Command("dpkg-deb", "-x", one("xserver-xorg-core_*.deb"), image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	pkg, err := os.ReadFile(one("xserver-xorg-video-dummy_*.deb"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(manifest, "dummy.deb"), pkg)
	s, err := Read(t.Context(), manifest, image, bench.StagedDriver{
		Package: bench.PinnedFile{File: "dummy.deb", Sha256: canonical.Sum(pkg)}, Path: driverPath, Server: "/usr/lib/xorg/Xorg"})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("driver %s %s, server %s", s.Driver.Name, s.Driver.ABI, s.Server)
	// A module of the server's own package was built with it.
	own, err := os.Open(filepath.Join(image, "usr/lib/xorg/modules/drivers/modesetting_drv.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if m, err := ReadModule(own); err != nil || m.ABI != s.Server {
		t.Errorf("%+v, %v; the server says %s", m, err, s.Server)
	}
}

package overlay

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Random operations on a merged mount and on a plain copy of the image: both
// must look alike, before and after each seal; the state must not change by a
// seal, a remount or a copy-up; and the image with the state applied must be
// the copy.
func TestRandomOperationsAgainstAPlainDirectory(t *testing.T) {
	img := image(t, sample(t))
	cache := &HashCache{}
	scratch := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		base, err := os.MkdirTemp(scratch, "case")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(base)
		model := filepath.Join(base, "model")
		if out, err := exec.Command("cp", "-a", img, model).CombinedOutput(); err != nil {
			rt.Fatalf("%v: %s", err, out)
		}
		os.RemoveAll(model + "/lost+found")
		tb := &both{TB: t, rt: rt}
		var layers []string
		for range rapid.IntRange(1, 3).Draw(rt, "generations") {
			p := over(tb, base, img, layers...)
			os.RemoveAll(p.path("/lost+found"))
			for range rapid.IntRange(1, 12).Draw(rt, "operations") {
				operate(rt, p.Target, model)
			}
			view := tree(tb, p.Target)
			compare(tb, tree(tb, model), view, false)
			state := p.state(cache)
			applied(tb, img, model, state)
			layers = append(layers, p.seal(cache))

			p = over(tb, base, img, layers...)
			compare(tb, view, tree(tb, p.Target), true)
			equal(tb, state, p.state(cache))
			var files []string
			for path, n := range view {
				if n.kind == "file" {
					files = append(files, path)
				}
			}
			slices.Sort(files)
			some := rapid.SliceOfN(rapid.SampledFrom(files), 0, 3).Draw(rt, "copied up")
			if err := CopyUp(p.Target, p.Upper, some); err != nil {
				rt.Fatal(err)
			}
			compare(tb, view, tree(tb, p.Target), true)
			equal(tb, state, p.state(cache))
			p.unmount()

			flat := filepath.Join(filepath.Dir(p.Upper), "flat")
			if err := Flatten(flat, layers...); err != nil {
				rt.Fatal(err)
			}
			p = over(tb, base, img, flat)
			compare(tb, view, tree(tb, p.Target), true)
			equal(tb, state, p.state(cache))
			p.unmount()
			if rapid.Bool().Draw(rt, "goes on flat") {
				layers = []string{flat}
			}
		}
	})
}

// both fails the rapid case, not the test, so that rapid can make the case smaller.
type both struct {
	testing.TB
	rt *rapid.T
}

func (b *both) Errorf(format string, args ...any) { b.rt.Errorf(format, args...) }
func (b *both) Error(args ...any)                 { b.rt.Error(args...) }
func (b *both) Fatal(args ...any)                 { b.rt.Fatal(args...) }
func (b *both) Fatalf(format string, args ...any) { b.rt.Fatalf(format, args...) }

// operate does one operation on the overlay and, if the overlay took it, on the
// model. What the overlay refuses and a directory does not is a rename of a
// directory out of a lower layer (EXDEV, as documented).
func operate(rt *rapid.T, merged, model string) {
	var all []string
	filepath.WalkDir(model, func(path string, d os.DirEntry, err error) error {
		all = append(all, "/"+strings.TrimPrefix(strings.TrimPrefix(path, model), "/"))
		return nil
	})
	slices.Sort(all)
	old := rapid.SampledFrom(all).Draw(rt, "path")
	fresh := filepath.Join(rapid.SampledFrom(all).Draw(rt, "parent"), rapid.SampledFrom([]string{"a", "b", "n1", "n2", "etc"}).Draw(rt, "name"))
	text := rapid.SampledFrom([]string{"", "x\n", "plain\n", "some longer text\n"}).Draw(rt, "text")
	op := rapid.SampledFrom([]string{
		"write", "append", "truncate", "mkdir", "remove", "remove-all", "rename", "symlink", "link", "chmod", "chown",
		"xattr", "unxattr", "fifo", "device", "replace-dir", "times",
	}).Draw(rt, "op")
	if old == "/" && slices.Contains([]string{"remove", "remove-all", "rename", "replace-dir"}, op) {
		return
	}
	do := func(root string) error {
		o, f := root+old, root+fresh
		switch op {
		case "write":
			if st, err := os.Lstat(f); err == nil && !st.Mode().IsRegular() {
				return errors.New("not a file")
			}
			return os.WriteFile(f, []byte(text), 0o640)
		case "append":
			if st, err := os.Lstat(o); err != nil || !st.Mode().IsRegular() {
				return errors.New("not a file")
			}
			file, err := os.OpenFile(o, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			_, err = file.WriteString(text)
			return errors.Join(err, file.Close())
		case "truncate":
			if st, err := os.Lstat(o); err != nil || !st.Mode().IsRegular() {
				return errors.New("not a file")
			}
			return os.Truncate(o, 2)
		case "mkdir":
			return os.Mkdir(f, 0o751)
		case "remove":
			return os.Remove(o)
		case "remove-all":
			return os.RemoveAll(o)
		case "rename":
			return os.Rename(o, f)
		case "symlink":
			return os.Symlink(text+"/../target", f)
		case "link":
			return os.Link(o, f)
		case "chmod":
			if st, err := os.Lstat(o); err != nil || st.Mode()&os.ModeSymlink != 0 {
				return errors.New("a link has no mode")
			}
			return os.Chmod(o, 0o711)
		case "chown":
			return os.Lchown(o, 12, 34)
		case "xattr":
			return unix.Lsetxattr(o, "trusted.note", []byte(text), 0)
		case "unxattr":
			return unix.Lremovexattr(o, "user.note")
		case "fifo":
			return unix.Mkfifo(f, 0o644)
		case "device":
			return unix.Mknod(f, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5)))
		case "replace-dir":
			if st, err := os.Lstat(o); err != nil || !st.IsDir() {
				return errors.New("not a directory")
			}
			if err := os.RemoveAll(o); err != nil {
				return err
			}
			return os.Mkdir(o, 0o755)
		case "times":
			ts := []unix.Timespec{{Sec: 5}, {Sec: 6}}
			return unix.UtimesNanoAt(unix.AT_FDCWD, o, ts, unix.AT_SYMLINK_NOFOLLOW)
		}
		panic(op)
	}
	a := do(merged)
	if errors.Is(a, unix.EXDEV) && op == "rename" {
		return
	}
	b := do(model)
	if (a == nil) != (b == nil) {
		rt.Fatalf("%s %s %s: overlay %v, directory %v", op, old, fresh, a, b)
	}
}

// applied applies a state to the image's listing and compares it with the model.
func applied(t testing.TB, img, model string, m bench.StateManifest) {
	t.Helper()
	have := map[string]string{}
	for path := range tree(t, img) {
		have[path] = plainEntry(t, img, path)
	}
	drop := func(top string, itself bool) {
		for path := range have {
			if strings.HasPrefix(path, strings.TrimSuffix(top, "/")+"/") && path != top || itself && path == top {
				delete(have, path)
			}
		}
	}
	for _, e := range m.Entries { // sorted: parents come first
		if e.Path == "/lost+found" {
			continue
		}
		switch {
		case e.Type == "whiteout":
			drop(e.Path, true)
			continue
		case e.Type != "directory" || e.Opaque:
			drop(e.Path, true)
		}
		have[e.Path] = entryText(e)
	}
	want := map[string]string{}
	for path := range tree(t, model) {
		want[path] = plainEntry(t, model, path)
	}
	for path, w := range want {
		if have[path] != w {
			t.Errorf("image and state give at %s:\n%q, the directory holds\n%q", path, have[path], w)
		}
	}
	for path := range have {
		if _, ok := want[path]; !ok {
			t.Errorf("image and state give %s, the directory has none", path)
		}
	}
}

func plainEntry(t testing.TB, root, path string) string {
	o, err := openPath(filepath.Join(root, path))
	must(t, err)
	defer o.close()
	e, err := describe(path, o, false, true)
	must(t, err)
	if e.Type == "file" {
		e.Sha256, err = o.sum(nil)
		must(t, err)
	}
	return entryText(e)
}

func entryText(e bench.StateEntry) string {
	e.Opaque = false
	return fmt.Sprintf("%+v", e)
}

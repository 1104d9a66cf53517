package observe

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// tree makes a small image with its listing. Its change times are those of now,
// so every file counts as touched and is compared by content.
func tree(t *testing.T) (string, []byte) {
	t.Helper()
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil { // as the listing will have it
		t.Fatal(err)
	}
	for _, dir := range []string{"a", "a/b", "a.d", "gone/deep/er", "swap/in", "mnt", "out"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"a/one", "a/b/two", "a.d/three", "gone/deep/er/four", "swap/in/five", "same", "mode", "dropped", "mnt/under", "out/six", "back\\slash", "bad\xff", "new\nline"} {
		if err := os.WriteFile(filepath.Join(root, f), []byte("text of "+f), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var listing bytes.Buffer
	lost := bench.StateEntry{Path: "/lost+found", Type: "directory", Mode: 0o700}
	if err := WriteListing(context.Background(), &listing, root, 1700000000, lost); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	return root, listing.Bytes()
}

func told(m bench.StateManifest) []string {
	var out []string
	for _, e := range m.Entries {
		out = append(out, e.Type+" "+e.Path)
	}
	return out
}

func TestChanges(t *testing.T) {
	root, listing := tree(t)
	mounts := []bench.Mount{{Point: "/", Fstype: "ext4"}, {Point: "/mnt", Fstype: "proc"}}
	look := func(exclude ...string) bench.StateManifest {
		t.Helper()
		m, err := Changes(context.Background(), bytes.NewReader(listing), root, mounts, exclude)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if m := look(); len(m.Entries) != 0 || m.Entries == nil || m.Exclude == nil {
		t.Fatalf("an image differs from itself: %+v", m)
	}
	for _, step := range []struct {
		do   func(at func(string) string) error
		want []string
	}{
		{func(at func(string) string) error { return os.WriteFile(at("same"), []byte("text of same"), 0o644) }, nil}, // the same bytes
		{func(at func(string) string) error { return os.Chmod(at("mode"), 0o600) }, []string{"file /mode"}},
		{func(at func(string) string) error { return os.WriteFile(at("a/one"), []byte("text of onE"), 0o644) }, []string{"file /a/one"}},
		{func(at func(string) string) error { return os.RemoveAll(at("gone")) }, []string{"whiteout /gone"}},
		{func(at func(string) string) error { return os.Remove(at("dropped")) }, []string{"whiteout /dropped"}},
		{func(at func(string) string) error { return os.Remove(at("a.d/three")) }, []string{"whiteout /a.d/three"}},
		{func(at func(string) string) error {
			return errors.Join(os.RemoveAll(at("swap")), os.Symlink("a", at("swap")))
		}, []string{"symlink /swap"}},
		{func(at func(string) string) error { return unix.Mkfifo(at("a/pipe"), 0o600) }, []string{"fifo /a/pipe"}},
		{func(at func(string) string) error {
			return unix.Setxattr(at("a/b/two"), "user.x", []byte{1, 255}, 0)
		}, []string{"file /a/b/two"}},
		{func(at func(string) string) error { return os.Remove(at("bad\xff")) }, []string{`whiteout /bad\xff`}},
		{func(at func(string) string) error { return os.Remove(at("mnt/under")) }, nil}, // under a mount nobody sees it
		{func(at func(string) string) error {
			return errors.Join(os.RemoveAll(at("zzz")), os.MkdirAll(at("zzz/deep"), 0o755))
		}, []string{"directory /zzz", "directory /zzz/deep"}},
	} {
		before := told(look())
		if err := step.do(func(name string) string { return filepath.Join(root, name) }); err != nil {
			t.Fatal(err)
		}
		var added []string
		for _, line := range told(look()) {
			if !slices.Contains(before, line) {
				added = append(added, line)
			}
		}
		if !slices.Equal(added, step.want) {
			t.Errorf("added %q, want %q", added, step.want)
		}
	}
	all := told(look())
	if !slices.IsSortedFunc(look().Entries, func(a, b bench.StateEntry) int { return strings.Compare(a.Path, b.Path) }) {
		t.Errorf("not sorted: %q", all)
	}
	left := told(look("/a", "/gone", "/swap", "/zzz/"))
	if want := []string{"whiteout /a.d/three", `whiteout /bad\xff`, "whiteout /dropped", "file /mode"}; !slices.Equal(left, want) {
		t.Errorf("with exclude: %q, want %q", left, want)
	}
}

// Two listings of one tree are the same bytes.
func TestListingIsReproducible(t *testing.T) {
	root, first := tree(t)
	var again bytes.Buffer
	if err := WriteListing(context.Background(), &again, root, 1700000000); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, again.Bytes()) { // the folder that was extra is there by now
		t.Error("two listings differ")
	}
}

// Of a file whose change time is the image's the content is not read; what stat says is compared all the same.
func TestChangesUntouched(t *testing.T) {
	root := t.TempDir()
	name := filepath.Join(root, "f")
	if err := os.Symlink("one", name); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		t.Fatal(err)
	}
	f := &found{path: "/f", at: name, kind: "symlink", stat: st}
	for _, c := range []struct {
		name, stat, text string
		nsec             int64
		same             bool
	}{
		{"untouched", f.statText(), "not read", 0, true},
		{"another mode", strings.Replace(f.statText(), "777", "755", 1), `{"path":"/f","type":"symlink","mode":493,"target":"one"}`, 0, false},
		{"touched", f.statText(), `{"path":"/f","type":"symlink","mode":511,"target":"two"}`, 1, false},
		{"touched, and the same", f.statText(), `{"path":"/f","type":"symlink","mode":511,"target":"one"}`, 1, true},
	} {
		f.stat.Ctim.Sec, f.stat.Ctim.Nsec = 1700000000, c.nsec
		l := &listingReader{epoch: 1700000000, next: &listed{"/f", c.stat, c.text}, in: emptyReader()}
		x := &comparison{image: l}
		if err := x.visit(f); err != nil || (len(x.entries) == 0) != c.same {
			t.Errorf("%s: %v, %v", c.name, x.entries, err)
		}
	}
}

func TestChangesRefuses(t *testing.T) {
	root, listing := tree(t)
	pack := func(text string) []byte { return gzipped(t, text) }
	for name, bad := range map[string][]byte{
		"no gzip":        []byte("no listing"),
		"cut off":        listing[:len(listing)/2],
		"empty":          nil,
		"another format": pack("listing/v9\x001\x00"),
		"no epoch":       pack(listingVersion + "\x00x\x00"),
		"no root":        pack(listingVersion + "\x001\x00/a\x00s\x00{}\x00"),
		"half a path":    pack(listingVersion + "\x001\x00/\x00s"),
		"out of order":   pack(listingVersion + "\x001\x00/\x00s\x00{\"path\":\"/\"}\x00/b\x00s\x00{}\x00/a\x00s\x00{}\x00"),
		"another entry":  pack(listingVersion + "\x001\x00/\x00s\x00{\"path\":\"/x\"}\x00"),
	} {
		if m, err := Changes(context.Background(), bytes.NewReader(bad), root, nil, nil); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v, %v", name, m.Entries, err)
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(fmt.Errorf("enough"))
	if _, err := Changes(ctx, bytes.NewReader(listing), root, nil, nil); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("cancelled: %v", err)
	}
}

// A file that is another one by the time it is read is no reading.
func TestChangedWhileRead(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, []byte("one"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := &found{path: "/f", at: name, kind: "file"}
	if err := unix.Lstat(name, &f.stat); err != nil {
		t.Fatal(err)
	}
	if _, err := f.entry(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("two, and more"), 0o644); err != nil {
		t.Fatal(err)
	}
	if e, err := f.entry(); !errors.Is(err, ErrChanged) {
		t.Errorf("grown: %+v, %v", e, err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if e, err := f.entry(); !errors.Is(err, ErrChanged) {
		t.Errorf("gone: %+v, %v", e, err)
	}
}

func emptyReader() *bufio.Reader { return bufio.NewReader(strings.NewReader("")) }

func gzipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

package overlay

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// node is what a path looks like to the slot, with nothing of overlayfs in it.
type node struct {
	kind, content string
	mode          uint32
	uid, gid      uint32
	rdev          uint64
	xattrs        string
	siblings      string // all names of the inode
	seen          inode
	mtime         unix.Timespec
}

// tree reads a whole tree the plain way, independent of the code under test.
func tree(t testing.TB, root string) map[string]node {
	t.Helper()
	all := map[string]node{}
	names := map[inode][]string{}
	must(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := "/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
		if rel == "/lost+found" {
			return filepath.SkipDir
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		n := node{
			kind: types[st.Mode&unix.S_IFMT], mode: st.Mode & 0o7777, uid: st.Uid, gid: st.Gid,
			seen: inode{uint64(st.Dev), st.Ino}, mtime: st.Mtim,
		}
		switch n.kind {
		case "file":
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			n.content = string(data)
		case "symlink":
			n.content, err = os.Readlink(path)
			if err != nil {
				return err
			}
		case "char", "block":
			n.rdev = st.Rdev
		}
		buf := make([]byte, 4096)
		size, err := unix.Llistxattr(path, buf)
		if err != nil {
			return err
		}
		var attrs []string
		for _, name := range strings.Split(strings.TrimSuffix(string(buf[:size]), "\x00"), "\x00") {
			if name == "" {
				continue
			}
			value := make([]byte, 4096)
			size, err := unix.Lgetxattr(path, name, value)
			if err != nil {
				return err
			}
			attrs = append(attrs, fmt.Sprintf("%s=%x", name, value[:size]))
		}
		slices.Sort(attrs)
		n.xattrs = strings.Join(attrs, " ")
		if n.kind != "directory" {
			names[n.seen] = append(names[n.seen], rel)
		}
		all[rel] = n
		return nil
	}))
	for path, n := range all {
		if group := names[n.seen]; len(group) > 1 {
			slices.Sort(group)
			n.siblings = strings.Join(group, " ")
			all[path] = n
		}
	}
	return all
}

// sameView compares two views, times of files and directories included.
func sameView(t testing.TB, want, have map[string]node) {
	t.Helper()
	compare(t, want, have, true)
}

func compare(t testing.TB, want, have map[string]node, times bool) {
	t.Helper()
	for path := range maps.Keys(want) {
		if _, ok := have[path]; !ok {
			t.Errorf("%s is missing", path)
		}
	}
	for path, h := range have {
		w, ok := want[path]
		if !ok {
			t.Errorf("%s is extra: %+v", path, h)
			continue
		}
		w.seen, h.seen = inode{}, inode{}
		if !times {
			w.mtime, h.mtime = unix.Timespec{}, unix.Timespec{}
		}
		if w != h {
			t.Errorf("%s differs:\nwant %+v\nhave %+v", path, w, h)
		}
	}
}

// equal compares two states and their digests.
func equal(t testing.TB, want, have bench.StateManifest) {
	t.Helper()
	for _, f := range Diff(want, have) {
		t.Errorf("state: %s %s: want %s, have %s", f.Subject, f.Text, f.Want, f.Have)
	}
	a, err := Digest(want)
	must(t, err)
	b, err := Digest(have)
	must(t, err)
	if a != b {
		t.Errorf("digests %s and %s", a, b)
	}
}

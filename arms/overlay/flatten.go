package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	continuity "github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// marks are attributes that an upper directory has for its own overlay alone: in
// a layer nobody looks at them, and in a copy they are of other inodes.
var marks = []string{"trusted.overlay.origin", "trusted.overlay.impure", "trusted.overlay.nlink", "trusted.overlay.upper", "trusted.overlay.uuid"}

// Flatten makes one layer at dest, which is not there yet, of sealed layers,
// lowest first: over any image it shows what they show together. They stay as
// they are; files are copied, so that a checkpoint that has dest needs no other.
// As with a copy-up, a file gets another inode number.
func Flatten(dest string, layers ...string) error {
	fail := func(err error) error { return &engine.Error{Op: "flatten layers", Err: err} }
	if len(layers) == 0 {
		return fail(fmt.Errorf("%w: there are none", engine.ErrUsage))
	}
	if err := os.Mkdir(dest, 0o700); err != nil {
		return fail(err)
	}
	for _, layer := range layers {
		hidden, err := makeRoom(dest, layer)
		if err != nil {
			return fail(err)
		}
		if err := continuity.CopyDir(dest, layer, continuity.WithXAttrExclude(marks...)); err != nil {
			return fail(err)
		}
		for _, path := range hidden {
			if err := unix.Lsetxattr(path, overlayOpaque, []byte("y"), 0); err != nil {
				return fail(&fs.PathError{Op: "hide what lies below", Path: path, Err: err})
			}
		}
		if err := relink(dest, layer); err != nil {
			return fail(err)
		}
		// The copy gives a directory its times before it fills it.
		if err := directoryTimes(dest, layer); err != nil {
			return fail(err)
		}
	}
	return nil
}

// makeRoom takes away from dest what layer replaces or hides. hidden are
// directories of layer that stand over something else than a directory: what dest
// hid below them stays hidden.
func makeRoom(dest, layer string) (hidden []string, err error) {
	return hidden, filepath.WalkDir(layer, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(layer, path)
		if err != nil {
			return err
		}
		below := filepath.Join(dest, rel)
		st, err := os.Lstat(below)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case err != nil:
			return err
		case !d.IsDir():
			return os.RemoveAll(below)
		}
		o, err := openRoot(path)
		if err != nil {
			return err
		}
		opaque, err := o.isOpaque()
		o.close()
		if err != nil {
			return err
		}
		if opaque || !st.IsDir() {
			if !st.IsDir() {
				hidden = append(hidden, below)
			}
			if err := os.RemoveAll(below); err != nil {
				return err
			}
			return fs.SkipDir
		}
		return forget(below)
	})
}

// forget takes a directory's attributes away, for those of the layer above; it
// goes on hiding what it hid.
func forget(path string) error {
	o, err := openRoot(path)
	if err != nil {
		return err
	}
	defer o.close()
	have, err := o.xattrs()
	if err != nil {
		return err
	}
	for name := range have {
		if name == overlayOpaque {
			continue
		}
		if err := unix.Lremovexattr(path, name); err != nil {
			return &fs.PathError{Op: "remove " + name, Path: path, Err: err}
		}
	}
	return nil
}

// relink makes the names of one special file or symbolic link one again: the copy
// keeps that for regular files alone.
func relink(dest, layer string) error {
	first := map[uint64]string{}
	return filepath.WalkDir(layer, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Type().IsRegular() {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &fs.PathError{Op: "lstat", Path: path, Err: err}
		}
		rel, err := filepath.Rel(layer, path)
		if err != nil || st.Nlink < 2 {
			return err
		}
		name := filepath.Join(dest, rel)
		to, seen := first[st.Ino]
		if !seen {
			first[st.Ino] = name
			return nil
		}
		if err := os.Remove(name); err != nil {
			return err
		}
		return os.Link(to, name)
	})
}

func directoryTimes(dest, layer string) error {
	return filepath.WalkDir(layer, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(layer, path)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &fs.PathError{Op: "lstat", Path: path, Err: err}
		}
		return unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dest, rel), []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
	})
}

package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// SealOptions say what becomes a layer.
type SealOptions struct {
	// Upper and Work of an overlay that is mounted nowhere any more. A tree that
	// still holds the mount shows later: mounting over the sealed layer gives EBUSY.
	Upper, Work string
	// Image and Layers, lowest first, that lay below. They are read for hard links.
	Image  string
	Layers []string
	// Dest is where the layer goes: on Upper's file system, and not there yet.
	Dest string
	// Sync writes the layer back before it is named. An overlay that was not
	// Volatile has done that when it was unmounted.
	Sync bool
	// Cache of the image; may be nil.
	Cache *HashCache
}

// Seal turns an upper directory into a layer: hard links that only the work
// directory's index knows are made in it, the work directory is removed, and the
// directory is renamed to Dest. The merged view of the layer over Layers and
// Image equals the one of the overlay before. What overlayfs leaves inside keeps
// its meaning in a layer: whiteouts and opaque marks hide, origin and impure
// marks are not looked at.
//
// Two things do not survive, and the state manifest or the caller must know: a
// file of the image that was copied up gets the inode number of its copy, and a
// file that was made immutable or append-only (chattr) no longer is.
func Seal(o SealOptions) error {
	fail := func(err error) error { return &engine.Error{Op: "seal layer", Err: err} }
	before, err := os.Lstat(o.Upper)
	if err != nil {
		return fail(err)
	}
	if _, err := os.Lstat(o.Dest); !errors.Is(err, os.ErrNotExist) {
		return fail(fmt.Errorf("%w: %s exists already", engine.ErrRefused, o.Dest))
	}
	if err := o.link(); err != nil {
		return fail(fmt.Errorf("keep hard links: %w", err))
	}
	if err := os.RemoveAll(o.Work); err != nil {
		return fail(err)
	}
	if o.Sync {
		if err := syncFS(o.Upper); err != nil {
			return fail(err)
		}
	}
	if err := unix.Renameat2(unix.AT_FDCWD, o.Upper, unix.AT_FDCWD, o.Dest, unix.RENAME_NOREPLACE); err != nil {
		return fail(fmt.Errorf("rename %s to %s: %w", o.Upper, o.Dest, err))
	}
	after, err := os.Lstat(o.Dest)
	if err != nil {
		return fail(err)
	}
	if !os.SameFile(before, after) {
		return fail(fmt.Errorf("%w: %s is another directory after the rename", engine.ErrUnknown, o.Dest))
	}
	for _, p := range []string{o.Upper, o.Work} {
		if _, err := os.Lstat(p); !errors.Is(err, os.ErrNotExist) {
			return fail(fmt.Errorf("%w: %s is still there (%v)", engine.ErrUnknown, p, err))
		}
	}
	return nil
}

// lowers are the directories below the upper one, the topmost first.
func lowers(image string, layers []string) []string {
	paths := make([]string, 0, len(layers)+1)
	for i := len(layers) - 1; i >= 0; i-- {
		paths = append(paths, layers[i])
	}
	return append(paths, image)
}

// link makes the names that hang on the index.
func (o SealOptions) link() error {
	s, err := openStack(append([]string{o.Upper}, lowers(o.Image, o.Layers)...)...)
	if err != nil {
		return err
	}
	defer s.close()
	pending, err := s.pendingLinks(o.Work, o.Cache)
	if err != nil {
		return err
	}
	for _, p := range pending {
		if err := s.makeLink(p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// makeLink links the copied-up inode into the upper directory under its other
// name. Directories on the way are made as copies of the ones that the slot
// sees, and all keep the times that the slot saw.
func (s stack) makeLink(p pendingLink) (err error) {
	dir, path := s[0], "/"
	seen := []*object{}
	defer func() {
		for i := len(seen) - 1; i >= 0; i-- {
			err = errors.Join(err, seen[i].resetTimes(seen[i].st))
			seen[i].close()
		}
		err = errors.Join(err, s[0].resetTimes(s[0].st))
	}()
	parent, base := filepath.Split(strings.TrimPrefix(p.name, "/"))
	for _, part := range strings.FieldsFunc(parent, func(r rune) bool { return r == '/' }) {
		path = filepath.Join(path, part)
		next, err := openObject(dir.fd, part)
		if err == nil && next == nil {
			next, err = s.copyDirectory(dir, part, path)
		}
		if err != nil {
			return err
		}
		seen = append(seen, next)
		dir = next
	}
	return unix.Linkat(unix.AT_FDCWD, p.index, dir.fd, base, 0)
}

// copyDirectory makes the directory that the slot sees at path, empty, in the
// upper directory. The object's times are those that it should have.
func (s stack) copyDirectory(parent *object, name, path string) (*object, error) {
	from, err := s[1:].topmost(path)
	if err != nil {
		return nil, err
	}
	defer from.close()
	if err := unix.Mkdirat(parent.fd, name, 0o700); err != nil {
		return nil, err
	}
	o, err := openObject(parent.fd, name)
	if err != nil {
		return nil, err
	}
	if err := o.copyMetadata(from); err != nil {
		o.close()
		return nil, err
	}
	o.st.Atim, o.st.Mtim = from.st.Atim, from.st.Mtim
	return o, nil
}

// topmost opens the directory that shows at path.
func (s stack) topmost(path string) (*object, error) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for _, root := range s {
		dir := root
		for _, part := range parts {
			next, err := openObject(dir.fd, part)
			if dir != root {
				dir.close()
			}
			if err != nil {
				return nil, err
			}
			if dir = next; dir == nil {
				break
			}
		}
		if dir != nil {
			if !dir.isDir() {
				dir.close()
				return nil, fmt.Errorf("%w: %s is not a directory", engine.ErrUnknown, path)
			}
			return dir, nil
		}
	}
	return nil, fmt.Errorf("%w: no directory shows at %s", engine.ErrUnknown, path)
}

func syncFS(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Syncfs(fd); err != nil {
		return &os.PathError{Op: "syncfs", Path: path, Err: err.(syscall.Errno)}
	}
	return nil
}

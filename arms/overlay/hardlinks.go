package overlay

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// pendingLink is a name that the slot sees as one inode with a file that was
// copied up under another name. The kernel knows that from the index in the work
// directory alone: in the upper directory the name is missing. Without the
// index, as a sealed layer, the name would fall back to the image's content.
type pendingLink struct {
	// name is the path in the slot.
	name string
	// index is the entry of the index, a hard link to the copied-up inode.
	index string
}

// stack is the directories of an overlay, the topmost first.
type stack []*object

func openStack(paths ...string) (stack, error) {
	var s stack
	for _, p := range paths {
		o, err := openRoot(p)
		if err != nil {
			s.close()
			return nil, err
		}
		s = append(s, o)
	}
	return s, nil
}

func (s stack) close() {
	for _, o := range s {
		o.close()
	}
}

// pendingLinks finds the names that hang on the index in work. s[0] is the upper directory.
func (s stack) pendingLinks(work string, cache *HashCache) ([]pendingLink, error) {
	dir := filepath.Join(work, "index")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // an overlay without an index, or without a mount yet
	}
	if err != nil {
		return nil, err
	}
	index, err := openRoot(dir)
	if err != nil {
		return nil, err
	}
	defer index.close()
	var pending []pendingLink
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		more, err := s.namesOf(index, dir, e.Name(), cache)
		if err != nil {
			return nil, fmt.Errorf("index entry %s: %w", e.Name(), err)
		}
		pending = append(pending, more...)
	}
	return pending, nil
}

func (s stack) namesOf(index *object, dir, entry string, cache *HashCache) ([]pendingLink, error) {
	o, err := openObject(index.fd, entry)
	if err != nil || o == nil {
		return nil, err
	}
	defer o.close()
	// Only what has more than one name below carries a link count of its own (ovl_set_nlink_upper).
	if _, ok, err := o.xattr(overlayNlink); err != nil || !ok {
		return nil, err
	}
	origin, err := s.originOf(entry)
	if err != nil {
		return nil, err
	}
	var pending []pendingLink
	for i := 1; i < len(s); i++ {
		if origin.dev != uint64(s[i].st.Dev) {
			continue
		}
		names, err := s[i].multiLinks(cache)
		if err != nil {
			return nil, err
		}
		for _, name := range names[origin] {
			hidden, err := s.hidden(name, i)
			if err != nil {
				return nil, err
			}
			if !hidden {
				pending = append(pending, pendingLink{name: name, index: filepath.Join(dir, entry)})
			}
		}
	}
	return pending, nil
}

// originOf finds the lower inode that an index entry was copied from. The
// entry's name is the file handle that the kernel stored (struct ovl_fb: version,
// magic, length, flags, type, 16 bytes of file system uuid, handle).
func (s stack) originOf(entry string) (inode, error) {
	raw, err := hex.DecodeString(entry)
	if err != nil || len(raw) <= 21 || raw[0] != 0 || raw[1] != 0xfb || int(raw[2]) != len(raw) {
		return inode{}, fmt.Errorf("%w: not a file handle of overlayfs", engine.ErrUnknown)
	}
	handle := unix.NewFileHandle(int32(raw[4]), raw[21:])
	for _, lower := range s[1:] {
		// A handle may well open on another file system too: images have inodes of generation 0, which match any.
		ok, err := lower.hasUUID([16]byte(raw[5:21]))
		if err != nil {
			return inode{}, err
		}
		if !ok {
			continue
		}
		mount, err := unix.Open(selfFD(lower.fd), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return inode{}, err
		}
		fd, err := unix.OpenByHandleAt(mount, handle, unix.O_PATH|unix.O_CLOEXEC)
		unix.Close(mount)
		if err != nil {
			return inode{}, fmt.Errorf("open by handle: %w", err)
		}
		o := object{fd: fd}
		err = unix.Fstat(fd, &o.st)
		unix.Close(fd)
		return o.inode(), err
	}
	return inode{}, fmt.Errorf("%w: no lower directory is on its file system", engine.ErrUnknown)
}

// hidden says whether a name in s[level] is covered by something above it.
func (s stack) hidden(name string, level int) (bool, error) {
	for _, above := range s[:level] {
		h, err := above.covers(name)
		if err != nil || h {
			return h, err
		}
	}
	return false, nil
}

// covers says whether a layer that starts at root shows something at name, or hides what lies below.
func (root *object) covers(name string) (bool, error) {
	parts := strings.Split(strings.TrimPrefix(name, "/"), "/")
	dir := root
	for i, part := range parts {
		o, err := openObject(dir.fd, part)
		if dir != root {
			dir.close()
		}
		if err != nil || o == nil {
			return false, err
		}
		if i == len(parts)-1 || !o.isDir() {
			o.close()
			return true, nil
		}
		opaque, err := o.isOpaque()
		if err != nil || opaque {
			o.close()
			return true, err
		}
		dir = o
	}
	return false, nil
}

// multiLinks lists the files of a read-only tree that have several names. The
// walk is paid once for each image and layer, and only if a slot wrote to such a file.
func (root *object) multiLinks(cache *HashCache) (map[inode][]string, error) {
	if cache != nil {
		cache.mu.Lock()
		m, ok := cache.links[root.key()]
		cache.mu.Unlock()
		if ok {
			return m, nil
		}
	}
	m := map[inode][]string{}
	if err := root.eachMultiLink("/", m); err != nil {
		return nil, err
	}
	if cache != nil {
		cache.mu.Lock()
		defer cache.mu.Unlock()
		if cache.links == nil {
			cache.links = map[hashKey]map[inode][]string{}
		}
		cache.links[root.key()] = m
	}
	return m, nil
}

func (root *object) eachMultiLink(path string, into map[inode][]string) error {
	f, err := os.OpenFile(selfFD(root.fd), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			o, err := openObject(root.fd, e.Name())
			if err != nil {
				return err
			}
			if o != nil && o.st.Dev == root.st.Dev {
				err = o.eachMultiLink(filepath.Join(path, e.Name()), into)
			}
			o.close()
			if err != nil {
				return err
			}
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstatat(root.fd, e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if st.Nlink > 1 {
			id := inode{uint64(st.Dev), st.Ino}
			into[id] = append(into[id], filepath.Join(path, e.Name()))
		}
	}
	return nil
}

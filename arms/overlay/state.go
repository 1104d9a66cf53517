package overlay

import (
	"encoding/hex"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/pathtext"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// StateOptions say what a slot's file system consists of.
type StateOptions struct {
	// Image is the root of the image, mounted read-only.
	Image string
	// Layers over the image, sealed, lowest first.
	Layers []string
	// Upper and Work of the slot's overlay; both empty where only sealed layers
	// are looked at. Work is needed for names that hang on the overlay's index.
	Upper, Work string
	// Tmpfs maps a mount point of the slot to a path on the host to read it
	// through, such as /proc/PID/root/run. Below a mount point only the tmpfs counts.
	Tmpfs map[string]string
	// Exclude are slot paths that are left out with everything below them.
	Exclude []string
	// Cache of the image and its layers; may be nil.
	Cache *HashCache
}

// State is the collapsed difference of a slot's file system against its image,
// sorted by path: what a slot made, changed or removed, whichever layer it lies
// in. Take it while the tree is stopped; a file that changes while it is read is
// an error, not a guess.
//
// Compared are type, permission bits, owner, extended attributes, size and
// content of files, target of links, device numbers. Not compared are times
// (copying a directory up or writing the same bytes again changes them), link
// counts and inode numbers. What equals the image is no difference, so a file
// that was only copied up does not appear. A directory appears only if it is
// new, its own metadata differs, or it hides a directory of the image (opaque;
// everything in it is then listed). Every entry of a tmpfs appears.
//
// A path or link target that is not UTF-8, and the backslash, is written with
// \xNN for each such byte; values of extended attributes are hexadecimal.
func State(o StateOptions) (bench.StateManifest, error) {
	m, err := state(o)
	if err != nil {
		return bench.StateManifest{}, &engine.Error{Op: "read state", Err: err}
	}
	return m, nil
}

// Digest of a manifest: SHA-256 of its canonical JSON.
func Digest(m bench.StateManifest) (bench.SHA256, error) { return canonical.Digest(m) }

func state(o StateOptions) (bench.StateManifest, error) {
	w := &walker{exclude: o.Exclude, cache: o.Cache, indexed: map[string]string{}, entries: map[string]bench.StateEntry{}}
	for point := range o.Tmpfs {
		w.points = append(w.points, filepath.Clean(point))
	}
	image, err := openRoot(o.Image)
	if err != nil {
		return bench.StateManifest{}, err
	}
	defer image.close()
	var paths []string
	if o.Upper != "" {
		paths = append(paths, o.Upper)
		w.live = true
	}
	layers := lowers(o.Image, o.Layers)
	dirs, err := openStack(append(paths, layers[:len(layers)-1]...)...)
	if err != nil {
		return bench.StateManifest{}, err
	}
	defer dirs.close()
	if o.Upper != "" && o.Work != "" {
		pending, err := append(slices.Clone(dirs), image).pendingLinks(o.Work, o.Cache)
		if err != nil {
			return bench.StateManifest{}, err
		}
		for _, p := range pending {
			w.indexed[p.name] = p.index
		}
	}
	if len(dirs) > 0 {
		levels := make([]level, len(dirs))
		for i, d := range dirs {
			levels[i] = level{object: d, upper: w.live && i == 0}
		}
		if err := w.merged("/", levels, image); err != nil {
			return bench.StateManifest{}, err
		}
	}
	for path := range w.indexed {
		if err := w.link(path, image); err != nil {
			return bench.StateManifest{}, err
		}
	}
	for point, host := range o.Tmpfs {
		root, err := openRoot(host)
		if err != nil {
			return bench.StateManifest{}, err
		}
		err = w.plain(filepath.Clean(point), root, root.st.Dev)
		root.close()
		if err != nil {
			return bench.StateManifest{}, err
		}
	}
	m := bench.StateManifest{Entries: make([]bench.StateEntry, 0, len(w.entries)), Exclude: slices.Clone(o.Exclude)}
	if m.Exclude == nil {
		m.Exclude = []string{}
	}
	slices.Sort(m.Exclude)
	for _, e := range w.entries {
		m.Entries = append(m.Entries, e)
	}
	slices.SortFunc(m.Entries, func(a, b bench.StateEntry) int { return strings.Compare(a.Path, b.Path) })
	return m, nil
}

// walker gathers entries by slot path.
type walker struct {
	exclude []string
	points  []string
	cache   *HashCache
	live    bool
	// indexed names are shown through an entry of the overlay's index.
	indexed map[string]string
	entries map[string]bench.StateEntry
}

// level is a directory of one layer that takes part in a merged directory.
type level struct {
	*object
	upper bool
}

func under(path, top string) bool {
	top = filepath.Clean(top)
	return path == top || top == "/" || strings.HasPrefix(path, top+"/")
}

func (w *walker) excluded(path string) bool {
	return slices.ContainsFunc(w.exclude, func(e string) bool { return under(path, e) })
}

// covered by a tmpfs: the directory that is mounted over counts as the tmpfs's.
func (w *walker) covered(path string) bool {
	return slices.ContainsFunc(w.points, func(p string) bool { return under(path, p) })
}

// merged walks one directory. levels are the layers' directories that show
// through, the topmost first; image is the image's directory, nil where it is
// hidden or none.
func (w *walker) merged(path string, levels []level, image *object) error {
	if err := w.add(path, levels[0], image, false); err != nil {
		return err
	}
	names := map[string]bool{}
	for _, l := range levels {
		list, err := l.names()
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, n := range list {
			names[n] = true
		}
	}
	for name := range names {
		if err := w.name(filepath.Join(path, name), name, levels, image); err != nil {
			return err
		}
	}
	return nil
}

// name resolves one name of a merged directory by the rules of overlayfs: the
// topmost layer that has it decides; directories merge until one is opaque.
func (w *walker) name(path, name string, levels []level, image *object) error {
	if w.excluded(path) || w.covered(path) {
		return nil
	}
	var below *object
	if image != nil {
		var err error
		if below, err = openObject(image.fd, name); err != nil {
			return fmt.Errorf("%s in the image: %w", path, err)
		}
		defer below.close()
	}
	if _, ok := w.indexed[path]; ok {
		return w.addIndexed(path, below)
	}
	var shown []level
	defer func() {
		for _, l := range shown {
			l.close()
		}
	}()
	through := true
	for _, l := range levels {
		o, err := openObject(l.fd, name)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if o == nil {
			continue
		}
		white, err := o.isWhiteout()
		if err != nil {
			o.close()
			return fmt.Errorf("%s: %w", path, err)
		}
		if white || (len(shown) > 0 && !o.isDir()) {
			o.close()
			through = false
			break
		}
		shown = append(shown, level{object: o, upper: l.upper})
		if !o.isDir() {
			through = false
			break
		}
		opaque, err := o.isOpaque()
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if opaque {
			through = false
			break
		}
	}
	switch {
	case len(shown) == 0:
		if !through && below != nil {
			w.entries[path] = bench.StateEntry{Path: pathtext.Quote(path), Type: "whiteout"}
		}
		return nil
	case !shown[0].isDir():
		return w.add(path, shown[0], below, false)
	}
	if !below.isDir() {
		return w.merged(path, shown, nil)
	}
	if through {
		return w.merged(path, shown, below)
	}
	if err := w.merged(path, shown, nil); err != nil {
		return err
	}
	e := w.entries[path]
	e.Opaque = true
	w.entries[path] = e
	return nil
}

// link records a name that the overlay's index shows, in a directory that no layer has.
func (w *walker) link(path string, image *object) error {
	if w.excluded(path) || w.covered(path) {
		return nil
	}
	below, err := image.lookup(path)
	if err != nil {
		return fmt.Errorf("%s in the image: %w", path, err)
	}
	defer below.close()
	return w.addIndexed(path, below)
}

func (w *walker) addIndexed(path string, below *object) error {
	o, err := openPath(w.indexed[path])
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer o.close()
	delete(w.indexed, path)
	return w.add(path, level{object: o, upper: true}, below, false)
}

// plain walks a tree in which everything counts and that ends where another mount begins.
func (w *walker) plain(path string, o *object, dev uint64) error {
	if w.excluded(path) || o.st.Dev != dev {
		return nil
	}
	if err := w.add(path, level{object: o, upper: true}, nil, true); err != nil {
		return err
	}
	if !o.isDir() {
		return nil
	}
	names, err := o.names()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, n := range names {
		child, err := openObject(o.fd, n)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if child == nil {
			return fmt.Errorf("%w: %s/%s went away while it was read", engine.ErrUnknown, path, n)
		}
		err = w.plain(filepath.Join(path, n), child, dev)
		child.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// add records a path unless it equals what the image has there. tmpfs says
// that the marks of overlayfs mean nothing.
func (w *walker) add(path string, l level, image *object, tmpfs bool) error {
	e, err := describe(path, l.object, l.upper && !tmpfs, tmpfs)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var base bench.StateEntry
	if image != nil {
		if base, err = describe(path, image, false, true); err != nil {
			return fmt.Errorf("%s in the image: %w", path, err)
		}
	}
	if e.Type == "file" {
		cache := w.cache
		if l.upper {
			cache = nil
		}
		if e.Sha256, err = l.sum(cache); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if same(e, base, false) {
			if base.Sha256, err = image.sum(w.cache); err != nil {
				return fmt.Errorf("%s in the image: %w", path, err)
			}
		}
	}
	if image != nil && same(e, base, true) {
		return nil
	}
	w.entries[path] = e
	return nil
}

var types = map[uint32]string{
	unix.S_IFREG: "file", unix.S_IFDIR: "directory", unix.S_IFLNK: "symlink",
	unix.S_IFCHR: "char", unix.S_IFBLK: "block", unix.S_IFIFO: "fifo", unix.S_IFSOCK: "socket",
}

// describe reads everything but content. live: the kernel honours the marks of
// an upper directory, such as protected attributes. raw: overlay's names among
// the extended attributes are the file's own.
func describe(path string, o *object, live, raw bool) (bench.StateEntry, error) {
	e := bench.StateEntry{
		Path: pathtext.Quote(path), Type: types[o.format()],
		Mode: int64(o.st.Mode & 0o7777), Uid: int64(o.st.Uid), Gid: int64(o.st.Gid),
	}
	switch e.Type {
	case "":
		return e, fmt.Errorf("%w: mode %o", engine.ErrUnknown, o.st.Mode)
	case "file":
		e.Size = bench.Int64(strconv.FormatInt(o.st.Size, 10))
	case "symlink":
		target, err := o.target()
		if err != nil {
			return e, err
		}
		e.Target = pathtext.Quote(target)
	case "char", "block":
		e.Rdev = bench.Int64(strconv.FormatUint(o.st.Rdev, 10))
	}
	xattrs, err := o.xattrs()
	if err != nil {
		return e, err
	}
	for name, value := range xattrs {
		if !raw {
			var keep bool
			if name, keep, err = ownXattr(name, live); err != nil {
				return e, err
			}
			if !keep {
				continue
			}
		}
		if e.Xattrs == nil {
			e.Xattrs = map[string]string{}
		}
		e.Xattrs[pathtext.Quote(name)] = hex.EncodeToString([]byte(value))
	}
	return e, nil
}

// ownXattr gives the name that the slot sees, or says that it sees none.
func ownXattr(name string, live bool) (string, bool, error) {
	switch {
	case strings.HasPrefix(name, escapedPrefix):
		// A slot's own attribute of that name space is stored with the prefix doubled.
		return overlayPrefix + strings.TrimPrefix(name, escapedPrefix), true, nil
	case name == overlayMetacopy || name == overlayRedirect:
		return "", false, fmt.Errorf("%w: it carries %s, which overlays of ours never make", engine.ErrUnknown, name)
	case name == overlayProtattr:
		// Immutable or append-only, honoured in an upper directory and lost in a layer.
		return name, live, nil
	case strings.HasPrefix(name, overlayPrefix):
		return "", false, nil
	}
	return name, true, nil
}

func same(a, b bench.StateEntry, content bool) bool {
	return a.Type == b.Type && a.Mode == b.Mode && a.Uid == b.Uid && a.Gid == b.Gid && a.Size == b.Size &&
		a.Target == b.Target && a.Rdev == b.Rdev && (!content || a.Sha256 == b.Sha256) && maps.Equal(a.Xattrs, b.Xattrs)
}

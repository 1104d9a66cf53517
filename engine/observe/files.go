package observe

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine/pathtext"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// ListingPath is where a bootable image of ours lists its own files.
const ListingPath = "/boot/listing.gz"

// listingVersion is the first line's. A listing of another version is none.
const listingVersion = "listing/v1alpha1"

// maxChanges bounds the entries that Changes returns.
const maxChanges = 100_000

// ErrChanged: a file changed while it was read; nothing was learnt.
var ErrChanged = errors.New("a file changed while it was read")

// A listing is gzip of fields that end with a zero byte. Version and epoch (the
// change time of every file of the image, in seconds) come first. Each path has
// three: the path, what stat says of it, and its bench.StateEntry as JSON, which is
// only read where the file was touched.

// WriteListing writes the listing of the tree at root: each path with all that a
// state compares, in the order in which Changes walks. epoch is the change time
// that every file of the finished image has. extra are entries that the tree does
// not have and the image will. The same tree gives the same bytes.
func WriteListing(ctx context.Context, w io.Writer, root string, epoch int64, extra ...bench.StateEntry) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	put := func(e bench.StateEntry) error {
		text, err := json.Marshal(e)
		if err == nil {
			_, err = fmt.Fprintf(z, "%s\x00%s\x00%s\x00", e.Path, statOf(e.Type, e.Mode, e.Uid, e.Gid, string(e.Size)), text)
		}
		return err
	}
	_, err = fmt.Fprintf(z, "%s\x00%d\x00", listingVersion, epoch)
	slices.SortFunc(extra, func(a, b bench.StateEntry) int { return comparePaths(a.Path, b.Path) })
	if err == nil {
		err = walk(ctx, root, "/", func(f *found) error {
			for len(extra) > 0 && comparePaths(extra[0].Path, f.path) < 0 {
				if err := put(extra[0]); err != nil {
					return err
				}
				extra = extra[1:]
			}
			e, err := f.entry()
			if err == nil {
				err = put(e)
			}
			return err
		})
	}
	for _, e := range extra {
		if err == nil {
			err = put(e)
		}
	}
	if err := errors.Join(err, z.Close()); err != nil {
		return fmt.Errorf("write listing: %w", err)
	}
	return nil
}

// Changes is the difference of the file system at root against the listing of
// the image that it was made of, sorted by path, with the meaning that package
// overlay gives a state manifest: what equals the image is no difference. mounts
// is the mount table of root: each tmpfs is listed in full, other mounts are left
// out. exclude are paths that are left out with everything below them.
//
// A file whose change time is still the image's was never touched since (a
// kernel sets that time, and lets nobody choose it), so its content is not read.
// A folder that was removed and made again has a whiteout for each name that it
// lost, where an overlay calls it opaque.
//
// ErrChanged where the tree ran and a file changed meanwhile; ErrFormat where the
// listing is none.
func Changes(ctx context.Context, listing io.Reader, root string, mounts []bench.Mount, exclude []string) (bench.StateManifest, error) {
	m, err := changes(ctx, listing, root, mounts, exclude)
	if err != nil {
		return bench.StateManifest{}, fmt.Errorf("read state: %w", err)
	}
	return m, nil
}

func changes(ctx context.Context, listing io.Reader, root string, mounts []bench.Mount, exclude []string) (bench.StateManifest, error) {
	image, err := openListing(listing)
	if err != nil {
		return bench.StateManifest{}, err
	}
	c := &comparison{image: image, exclude: exclude}
	for _, m := range mounts {
		if m.Point != "/" {
			c.mounts = append(c.mounts, m.Point)
		}
	}
	if err := walk(ctx, root, "/", c.visit); err != nil {
		return bench.StateManifest{}, err
	}
	if err := c.missing(""); err != nil {
		return bench.StateManifest{}, err
	}
	for _, m := range mounts {
		if m.Fstype != "tmpfs" || m.Point == "/" || under(m.Point, exclude) {
			continue
		}
		err := walk(ctx, root, m.Point, func(f *found) error {
			if under(f.path, exclude) || f.path != m.Point && slices.Contains(c.mounts, f.path) {
				return fs.SkipDir
			}
			e, err := f.entry()
			return errors.Join(err, c.add(e))
		})
		if err != nil {
			return bench.StateManifest{}, err
		}
	}
	state := bench.StateManifest{Entries: c.entries, Exclude: slices.Sorted(slices.Values(exclude))}
	if state.Entries == nil {
		state.Entries = []bench.StateEntry{}
	}
	if state.Exclude == nil {
		state.Exclude = []string{}
	}
	slices.SortFunc(state.Entries, func(a, b bench.StateEntry) int { return strings.Compare(a.Path, b.Path) })
	return state, nil
}

// comparison walks a tree and its image's listing side by side.
type comparison struct {
	image   *listingReader
	exclude []string
	mounts  []string
	entries []bench.StateEntry
	// gone is a path of the image that is no folder any more: what the listing has below it went with it.
	gone string
}

func (c *comparison) add(e bench.StateEntry) error {
	if len(c.entries) >= maxChanges {
		return fmt.Errorf("more than %d paths differ from the image", maxChanges)
	}
	c.entries = append(c.entries, e)
	return nil
}

func (c *comparison) skipped(path string) bool {
	return under(path, c.exclude) || under(path, c.mounts)
}

func (c *comparison) visit(f *found) error {
	if c.skipped(f.path) {
		return fs.SkipDir
	}
	if err := c.missing(f.path); err != nil {
		return err
	}
	var base *listed
	if next := c.image.next; next != nil && next.path == f.path {
		base = next
		if err := c.image.advance(); err != nil {
			return err
		}
	}
	untouched := f.stat.Ctim.Sec == c.image.epoch && f.stat.Ctim.Nsec == 0
	switch {
	case untouched && (base != nil && f.statText() == base.stat || f.path == ListingPath):
		return nil
	case base != nil && f.kind != "directory": // whatever it was: what was below it is not there
		c.gone = f.path
	}
	e, err := f.entry()
	if err != nil {
		return err
	}
	if base != nil {
		was, err := base.entry()
		if err != nil {
			return err
		}
		if reflect.DeepEqual(e, was) {
			return nil
		}
	}
	return c.add(e)
}

// missing takes what the listing has before path, or all the rest where path is
// empty: the tree has none of it.
func (c *comparison) missing(path string) error {
	for c.image.next != nil && (path == "" || comparePaths(c.image.next.path, path) < 0) {
		gone := c.image.next.path
		if err := c.image.advance(); err != nil {
			return err
		}
		if c.skipped(gone) || c.gone != "" && under(gone, []string{c.gone}) {
			continue
		}
		c.gone = gone
		if err := c.add(bench.StateEntry{Path: gone, Type: "whiteout"}); err != nil {
			return err
		}
	}
	return nil
}

// statOf is what a listing compares of a file that was never touched.
func statOf(kind string, mode, uid, gid int64, size string) string {
	return fmt.Sprintf("%s %o %d %d %s", kind, mode, uid, gid, size)
}

func (f *found) statText() string {
	size := ""
	if f.kind == "file" {
		size = strconv.FormatInt(f.stat.Size, 10)
	}
	return statOf(f.kind, int64(f.stat.Mode&0o7777), int64(f.stat.Uid), int64(f.stat.Gid), size)
}

// listed is one path of a listing.
type listed struct{ path, stat, text string }

func (l *listed) entry() (e bench.StateEntry, err error) {
	if err := json.Unmarshal([]byte(l.text), &e); err != nil || e.Path != l.path {
		return e, fmt.Errorf("%w: listing: entry of %q: %v", ErrFormat, l.path, err)
	}
	return e, nil
}

// listingReader reads a listing path by path: it is never in memory as a whole.
type listingReader struct {
	in    *bufio.Reader
	epoch int64
	next  *listed
}

func openListing(r io.Reader) (*listingReader, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("%w: listing: %w", ErrFormat, err)
	}
	l := &listingReader{in: bufio.NewReaderSize(z, 64<<10)}
	version, err1 := l.field()
	epoch, err2 := l.field()
	if err := errors.Join(err1, err2); err != nil || version != listingVersion {
		return nil, fmt.Errorf("%w: listing of version %q: %w", ErrFormat, version, cmp.Or(err, errors.New("unknown")))
	}
	if l.epoch, err = strconv.ParseInt(epoch, 10, 64); err != nil || l.epoch <= 0 {
		return nil, fmt.Errorf("%w: listing with the epoch %q", ErrFormat, epoch)
	}
	if err := l.advance(); err != nil {
		return nil, err
	}
	if l.next == nil || l.next.path != "/" {
		return nil, fmt.Errorf("%w: the listing does not begin at /", ErrFormat)
	}
	return l, nil
}

func (l *listingReader) field() (string, error) {
	text, err := l.in.ReadString(0)
	if err != nil {
		if text != "" && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return "", err
	}
	return text[:len(text)-1], nil
}

func (l *listingReader) advance() error {
	path, err := l.field()
	if errors.Is(err, io.EOF) {
		l.next = nil
		return nil
	}
	stat, err1 := l.field()
	text, err2 := l.field()
	for _, e := range []error{err1, err2} {
		if errors.Is(e, io.EOF) {
			e = io.ErrUnexpectedEOF
		}
		err = cmp.Or(err, e)
	}
	if err == nil && (path == "" || l.next != nil && comparePaths(path, l.next.path) <= 0) {
		err = fmt.Errorf("%q is out of order", path)
	}
	if err != nil {
		return fmt.Errorf("%w: listing: %w", ErrFormat, err)
	}
	l.next = &listed{path, stat, text}
	return nil
}

// comparePaths orders paths as walk meets them: a folder, then all that is in it, then what follows.
func comparePaths(a, b string) int {
	return strings.Compare(strings.ReplaceAll(a, "/", "\x00"), strings.ReplaceAll(b, "/", "\x00"))
}

// under says whether path is one of tops or lies below one.
func under(path string, tops []string) bool {
	return slices.ContainsFunc(tops, func(top string) bool {
		top = filepath.Clean(top)
		return path == top || top == "/" || strings.HasPrefix(path, top+"/")
	})
}

// found is a path of a walk.
type found struct {
	// path as a manifest has it, at as the file system has it.
	path, at string
	kind     string
	stat     unix.Stat_t
}

// walk calls visit for path and everything below it, in the order of
// comparePaths, within one file system. visit returns fs.SkipDir to leave out what
// lies below.
func walk(ctx context.Context, root, path string, visit func(*found) error) error {
	f := &found{path: path, at: filepath.Join(root, path)}
	if err := unix.Lstat(f.at, &f.stat); err != nil {
		return &os.PathError{Op: "lstat", Path: f.at, Err: err}
	}
	return descend(ctx, f, f.stat.Dev, visit)
}

func descend(ctx context.Context, f *found, dev uint64, visit func(*found) error) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	var ok bool
	if f.kind, ok = kinds[f.stat.Mode&unix.S_IFMT]; !ok {
		return fmt.Errorf("%s: mode %o is no kind of file", f.path, f.stat.Mode)
	}
	err := visit(f)
	if errors.Is(err, fs.SkipDir) {
		return nil
	}
	if err != nil || f.kind != "directory" {
		return err
	}
	names, err := namesIn(f.at)
	if err != nil {
		return changedOr(err)
	}
	for _, n := range names {
		child := &found{path: strings.TrimSuffix(f.path, "/") + "/" + n.quoted, at: filepath.Join(f.at, n.raw)}
		if err := unix.Lstat(child.at, &child.stat); err != nil {
			return changedOr(&os.PathError{Op: "lstat", Path: child.at, Err: err})
		}
		if child.stat.Dev != dev {
			// A mount: whoever cares about it walks it. The name is there all the same.
			if err := visit(child); err != nil && !errors.Is(err, fs.SkipDir) {
				return err
			}
			continue
		}
		if err := descend(ctx, child, dev, visit); err != nil {
			return err
		}
	}
	return nil
}

// changedOr types the error of a path that was there a moment ago.
func changedOr(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}

type name struct{ raw, quoted string }

func namesIn(dir string) ([]name, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	raw, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		return nil, err
	}
	names := make([]name, len(raw))
	for i, n := range raw {
		names[i] = name{n, pathtext.Quote(n)}
	}
	slices.SortFunc(names, func(a, b name) int { return strings.Compare(a.quoted, b.quoted) })
	return names, nil
}

var kinds = map[uint32]string{
	unix.S_IFREG: "file", unix.S_IFDIR: "directory", unix.S_IFLNK: "symlink",
	unix.S_IFCHR: "char", unix.S_IFBLK: "block", unix.S_IFIFO: "fifo", unix.S_IFSOCK: "socket",
}

// entry reads all that a manifest says of a path, content included.
func (f *found) entry() (bench.StateEntry, error) {
	e := bench.StateEntry{Path: f.path, Type: f.kind, Mode: int64(f.stat.Mode & 0o7777), Uid: int64(f.stat.Uid), Gid: int64(f.stat.Gid)}
	var err error
	switch f.kind {
	case "file":
		e.Size = bench.Int64(strconv.FormatInt(f.stat.Size, 10))
		e.Sha256, err = f.digest()
	case "symlink":
		e.Target, err = os.Readlink(f.at)
		e.Target = pathtext.Quote(e.Target)
	case "char", "block":
		e.Rdev = bench.Int64(strconv.FormatUint(f.stat.Rdev, 10))
	}
	if err == nil {
		e.Xattrs, err = xattrs(f.at)
	}
	if err != nil {
		return e, changedOr(fmt.Errorf("%s: %w", f.path, err))
	}
	return e, nil
}

// digest reads a file that stays as it is meanwhile.
func (f *found) digest() (bench.SHA256, error) {
	in, err := os.OpenFile(f.at, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer in.Close()
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(in, f.stat.Size+1))
	if err != nil {
		return "", err
	}
	var after unix.Stat_t
	if err := unix.Fstat(int(in.Fd()), &after); err != nil {
		return "", err
	}
	if n != f.stat.Size || after.Ino != f.stat.Ino || after.Size != f.stat.Size || after.Mtim != f.stat.Mtim || after.Ctim != f.stat.Ctim {
		return "", ErrChanged
	}
	return bench.SHA256(hex.EncodeToString(h.Sum(nil))), nil
}

// xattrs of a path itself, values in hexadecimal; nil where it has none.
func xattrs(at string) (map[string]string, error) {
	list, err := readSized(func(b []byte) (int, error) { return unix.Llistxattr(at, b) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "listxattr", Path: at, Err: err}
	}
	var out map[string]string
	for n := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		if n == "" {
			continue
		}
		value, err := readSized(func(b []byte) (int, error) { return unix.Lgetxattr(at, n, b) })
		if errors.Is(err, unix.ENODATA) {
			return nil, ErrChanged
		}
		if err != nil {
			return nil, &os.PathError{Op: "getxattr " + n, Path: at, Err: err}
		}
		if out == nil {
			out = map[string]string{}
		}
		out[pathtext.Quote(n)] = hex.EncodeToString(value)
	}
	return out, nil
}

// readSized asks for the size first, and again where that has grown.
func readSized(read func([]byte) (int, error)) ([]byte, error) {
	for {
		size, err := read(nil)
		if err != nil || size == 0 {
			return nil, err
		}
		b := make([]byte, size)
		n, err := read(b)
		if errors.Is(err, unix.ERANGE) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return b[:n], nil
	}
}

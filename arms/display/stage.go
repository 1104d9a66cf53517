package display

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Staged is a driver that fits the server of an image that has none of its name.
type Staged struct {
	Path   string
	Driver Module
	Server ABI
	SHA256 bench.SHA256
	data   []byte
}

// maxPackage bounds a package; a driver's is some 20 KiB.
const maxPackage = 16 << 20

// Read takes a driver out of its package, which lies beside the manifest in dir, and
// compares its ABI with that of the server in the image that is mounted at image.
// ErrRefused where the two do not fit, where the image has a file of that name, or
// the package has none; ErrUnknown where one of them does not say its ABI.
func Read(ctx context.Context, dir, image string, p bench.StagedDriver) (*Staged, error) {
	const op = "stage display driver"
	pkg, err := engine.ReadPinned(dir, p.Package, maxPackage)
	if err != nil {
		return nil, err
	}
	s := &Staged{Path: string(p.Path)}
	if s.data, err = member(ctx, pkg, s.Path); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	s.SHA256 = canonical.Sum(s.data)
	if s.Driver, err = ReadModule(bytes.NewReader(s.data)); err != nil {
		return nil, err
	}
	root, err := unix.Open(image, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &engine.Error{Op: op, Err: &os.PathError{Op: "open", Path: image, Err: err}}
	}
	defer unix.Close(root)
	fd, err := beneath(root, string(p.Server), unix.O_RDONLY, 0)
	if err != nil {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: the image has no %s: %w", engine.ErrRefused, p.Server, err), Hint: "image.driver is for images that have an Xorg"}
	}
	server := os.NewFile(uintptr(fd), string(p.Server))
	defer server.Close()
	if s.Server, err = ReadServer(server); err != nil {
		return nil, err
	}
	if fd, err := beneath(root, s.Path, unix.O_PATH, 0); err == nil {
		unix.Close(fd)
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: the image has a %s of its own", engine.ErrRefused, s.Path), Hint: "leave image.driver out"}
	} else if !errors.Is(err, unix.ENOENT) {
		return nil, &engine.Error{Op: op, Err: err}
	}
	switch {
	case s.Driver.Class != VideoDriver:
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: %s is built against %q, no display driver", engine.ErrRefused, s.Driver.Name, s.Driver.Class)}
	case !s.Server.Takes(s.Driver.ABI):
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%w: the driver %s is built against ABI %s, the image's Xorg has %s", engine.ErrRefused, s.Driver.Name, s.Driver.ABI, s.Server),
			Hint: "pin the package of the release that the image's Xorg is of"}
	}
	return s, nil
}

// member is one file of a Debian package. The package is handed over as it was read
// and compared, never by its name.
func member(ctx context.Context, pkg []byte, name string) ([]byte, error) {
	fd, err := unix.MemfdCreate("package", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("hand package over: %w", err)
	}
	file := os.NewFile(uintptr(fd), "package")
	defer file.Close()
	if _, err := file.Write(pkg); err != nil {
		return nil, fmt.Errorf("hand package over: %w", err)
	}
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", "/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{file}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("unpack package: %w", err)
	}
	found, err := within(tar.NewReader(io.LimitReader(out, maxFile)), name)
	_, _ = io.Copy(io.Discard, io.LimitReader(out, maxFile)) // a writer that nobody reads would be ended by a signal
	if ended := cmd.Wait(); ended != nil {
		return nil, fmt.Errorf("unpack package: dpkg-deb: %w: %s", ended, strings.TrimSpace(said.String()))
	}
	return found, err
}

func within(t *tar.Reader, name string) ([]byte, error) {
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: the package has no file %s", engine.ErrRefused, name)
		}
		if err != nil {
			return nil, fmt.Errorf("unpack package: %w", err)
		}
		if path.Clean("/"+h.Name) != name {
			continue
		}
		if h.Typeflag != tar.TypeReg || h.Size <= 0 || h.Size > maxPackage {
			return nil, fmt.Errorf("%w: %s of the package is no file of at most %d bytes", engine.ErrRefused, name, maxPackage)
		}
		return io.ReadAll(t)
	}
}

// Put writes the driver below the root of a slot, whose upper layer takes it, and
// reads it back there. Folders that are absent are made.
func (s *Staged) Put(root string) error {
	fail := func(err error) error {
		return &engine.Error{Op: "stage display driver " + s.Path, Err: err}
	}
	at, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(at)
	if err := folders(at, filepath.Dir(s.Path)); err != nil {
		return fail(err)
	}
	fd, err := beneath(at, s.Path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o644)
	if err != nil {
		return fail(err)
	}
	f := os.NewFile(uintptr(fd), s.Path)
	_, err = f.Write(s.data)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return fail(err)
	}
	if fd, err = beneath(at, s.Path, unix.O_RDONLY, 0); err != nil {
		return fail(err)
	}
	f = os.NewFile(uintptr(fd), s.Path)
	defer f.Close()
	back, err := io.ReadAll(io.LimitReader(f, int64(len(s.data))+1))
	if err == nil && canonical.Sum(back) != s.SHA256 {
		err = errors.New("what was read back is something else")
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// folders makes those of a path that are absent.
func folders(root int, dir string) error {
	for i, c := range dir + "/" {
		if c != '/' || i == 0 {
			continue
		}
		parent, err := beneath(root, filepath.Dir(dir[:i]), unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		err = unix.Mkdirat(parent, filepath.Base(dir[:i]), 0o755)
		unix.Close(parent)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return &os.PathError{Op: "mkdir", Path: dir[:i], Err: err}
		}
	}
	return nil
}

// beneath opens a path with a folder as its root: no link of an image leads out.
func beneath(root int, name string, flags int, mode uint64) (int, error) {
	fd, err := unix.Openat2(root, strings.TrimPrefix(name, "/")+map[bool]string{true: "."}[name == "/"], &unix.OpenHow{
		Flags: uint64(flags | unix.O_CLOEXEC), Mode: mode, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return fd, nil
}

// Facts say what was staged; Difference is what travels with every number.
func (s *Staged) Facts() []bench.Fact {
	fact := func(name, value, source string) bench.Fact {
		return bench.Fact{Name: name, Known: true, Value: value, Source: source, View: engine.ViewHost}
	}
	return []bench.Fact{
		fact("display.driver", s.Driver.Name+" "+string(s.SHA256), s.Path+" of the package, read back in the slot's layer"),
		fact("display.driver-abi", s.Driver.ABI.String(), "version of the module"),
		fact("display.server-abi", s.Server.String(), "LoaderVersionInfo of the image's Xorg"),
	}
}

// Difference declares that a driver is staged.
func Difference(p bench.StagedDriver) bench.Difference {
	return bench.Difference{Name: "display-driver", Text: fmt.Sprintf("%s comes from the package %s (sha256 %s) and lies in each slot's own layer: the image has no display driver that works without a card", p.Path, p.Package.File, p.Package.Sha256)}
}

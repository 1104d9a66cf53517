package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// BuildOptions say what to build and where.
type BuildOptions struct {
	Recipe bench.Recipe
	// Dir is the recipe's folder; the sources of its files lie there.
	Dir string
	// Out is the file to make.
	Out string
	// Guestd is the static guest server that goes into the image.
	Guestd string
	// Work is a folder for scratch files and logs.
	Work string
	// Cache is a folder that outlives the build: package lists, the packages' unpacked tree, digests.
	Cache string
	// Log receives a line for each thing done; nil for none.
	Log io.Writer
}

// Built is an image with what it was made of. It is written beside the image as
// NAME.packages.json.
type Built struct {
	Path   string       `json:"-"`
	SHA256 bench.SHA256 `json:"sha256"`
	// Size of the file, and of the disk in it, in bytes.
	Size        int64        `json:"size"`
	VirtualSize int64        `json:"virtualSize"`
	Recipe      bench.Name   `json:"recipe"`
	Suite       string       `json:"suite"`
	Guestd      bench.SHA256 `json:"guestd"`
	Packages    []Package    `json:"packages"`
	// Kernel is the package that the image's kernel was taken from; nil where it has none.
	Kernel *Package `json:"kernel,omitempty"`
	// Tools are the versions of the programs that decide the bytes.
	Tools map[string]string `json:"tools"`
	// CachedTree: the packages were not installed anew.
	CachedTree bool `json:"-"`
	// Stale is why the package lists are of an earlier time; nil if they were updated.
	Stale error `json:"-"`
}

// build is one Build in progress.
type build struct {
	BuildOptions
	scratch  string
	hashes   hashes
	tools    map[string]string
	packages []Package
	// boot are the files that boot the image, by their path in it.
	boot map[string][]byte
}

// Build makes a qcow2 file with one ext4 file system from Debian packages, the
// recipe's files and the guest server. It mounts nothing on the host. The same
// recipe, files, guest server, packages and tools give the same bytes. The file
// appears under its name only when it is complete.
//
// Needs root (owners of files). When ctx ends, what was started is ended.
// ErrUsage: the recipe cannot be built. ErrRefused: the machine lacks a tool or an archive.
func Build(ctx context.Context, o BuildOptions) (_ Built, err error) {
	const op = "build image"
	size, err := checkRecipe(o)
	if err != nil {
		return Built{}, err
	}
	b := &build{BuildOptions: o, hashes: hashes{filepath.Join(o.Cache, "digests")}}
	for _, dir := range []string{o.Work, o.Cache, filepath.Dir(o.Out)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return Built{}, &engine.Error{Op: op, Err: err}
		}
	}
	unlock, err := lockFile(ctx, filepath.Join(o.Cache, "build.lock"))
	if err != nil {
		return Built{}, err
	}
	defer unlock()
	if b.tools, err = toolVersions(ctx); err != nil {
		return Built{}, err
	}

	built := Built{Path: o.Out, Recipe: o.Recipe.Name, Suite: o.Recipe.Suite, Tools: b.tools, VirtualSize: size}
	a, err := newAPT(ctx, filepath.Join(o.Cache, "apt-"+o.Recipe.Suite), o.Recipe.Suite)
	if err != nil {
		return Built{}, err
	}
	begin := time.Now()
	if built.Stale, err = a.update(ctx); err != nil {
		return Built{}, err
	}
	if built.Stale != nil {
		b.say("package lists are of an earlier time: %v", built.Stale)
	}
	if b.packages, err = a.resolve(ctx, o.Recipe.Packages); err != nil {
		return Built{}, err
	}
	built.Packages = b.packages
	begin = b.took(begin, "resolved %d packages", len(b.packages))
	var kernel *debFile
	if b.Recipe.Kernel != nil {
		if kernel, err = b.fetchKernel(ctx, a); err != nil {
			return Built{}, err
		}
		built.Kernel = &kernel.Package
		begin = b.took(begin, "fetched %s %s", kernel.Name, kernel.Version)
	}

	// The tree, its tarball while it is made, and the file system.
	scratch, done, err := newScratch(o.Work, 3*size)
	if err != nil {
		return Built{}, err
	}
	defer func() { err = errors.Join(err, done()) }()
	b.scratch = scratch

	if kernel != nil {
		if err := b.unpackKernel(ctx, kernel); err != nil {
			return Built{}, err
		}
		begin = b.took(begin, "made the initial ramdisk")
	}
	tree, err := b.makeRootfs(ctx, a, b.packages)
	if err != nil {
		return Built{}, err
	}
	built.CachedTree = tree.Cached
	if tree.Cached {
		begin = b.took(begin, "took the packages' tree from the cache")
	} else {
		begin = b.took(begin, "installed the packages")
	}
	if err := b.makeTree(ctx, tree.Tar, filepath.Join(scratch, "tree")); err != nil {
		return Built{}, err
	}
	begin = b.took(begin, "laid the files")
	raw := filepath.Join(scratch, "disk.raw")
	if err := b.makeFilesystem(ctx, filepath.Join(scratch, "tree"), raw, size); err != nil {
		return Built{}, err
	}
	begin = b.took(begin, "made the file system")
	guestd, err := b.guestdInside(ctx, raw)
	if err != nil {
		return Built{}, err
	}
	built.Guestd = guestd
	if err := b.convert(ctx, raw, &built); err != nil {
		return Built{}, err
	}
	b.took(begin, "made %s, %s, sha256 %s", filepath.Base(o.Out), units.BytesSize(float64(built.Size)), built.SHA256)
	return built, nil
}

// checkRecipe looks at what the schema cannot say and returns the size of the file system.
func checkRecipe(o BuildOptions) (int64, error) {
	const op = "check recipe"
	usage := func(format string, args ...any) error {
		return &engine.Error{Op: op, Err: fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), engine.ErrUsage)}
	}
	size, err := units.RAMInBytes(string(o.Recipe.Size))
	switch {
	case err != nil || size < 1<<20:
		return 0, usage("size %q is below 1MiB", o.Recipe.Size)
	case o.Recipe.Epoch > time.Now().Unix() || o.Recipe.Epoch >= 1<<31:
		return 0, usage("epoch %d lies in the future", o.Recipe.Epoch)
	case os.Geteuid() != 0:
		return 0, refuse(op, "run it as root", "files of the image have owners that only root can give")
	}
	for _, name := range o.Recipe.Packages {
		if !packageName.MatchString(name) {
			return 0, usage("package %q is no package name", name)
		}
	}
	if !suiteName.MatchString(o.Recipe.Suite) {
		return 0, usage("suite %q is no suite name", o.Recipe.Suite)
	}
	static, err := isStatic(o.Guestd)
	if err != nil {
		return 0, &engine.Error{Op: op, Err: fmt.Errorf("guestd: %w", err), Hint: "build it with CGO_ENABLED=0 go build -trimpath -buildvcs=false ./cmd/guestd"}
	}
	if !static {
		return 0, refuse(op, "build it with CGO_ENABLED=0", "guestd %s is not static", o.Guestd)
	}
	return size, nil
}

// Names go into command lines of apt, where a leading minus or a pattern would be an order.
var (
	packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	suiteName   = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
)

// convert makes the qcow2 file of raw and fills in its digest and size.
func (b *build) convert(ctx context.Context, raw string, built *Built) error {
	const op = "make qcow2"
	partial := b.Out + ".partial"
	defer os.Remove(partial)
	if _, err := run(ctx, op, "qemu-img", "convert", "-f", "raw", "-O", "qcow2",
		"-o", "compat=1.1,cluster_size=65536,lazy_refcounts=off", raw, partial); err != nil {
		return err
	}
	if _, err := run(ctx, "compare qcow2 with its source", "qemu-img", "compare", "-f", "raw", "-F", "qcow2", raw, partial); err != nil {
		return err
	}
	f, err := os.OpenFile(partial, os.O_RDWR, 0)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	if err := os.Rename(partial, b.Out); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	// After the renaming, which changes the ctime that the digest is remembered under.
	digest, err := b.hashes.of(ctx, f)
	if err != nil {
		return err
	}
	built.SHA256, built.Size = digest.SHA256, digest.Identity.Size
	text, err := json.MarshalIndent(built, "", "\t")
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	if err := renameio.WriteFile(PackagesFile(b.Out), append(text, '\n'), 0o644); err != nil {
		return &engine.Error{Op: "write list of packages", Err: err}
	}
	return nil
}

// PackagesFile is the path of the list of packages beside an image.
func PackagesFile(image string) string {
	return strings.TrimSuffix(image, ".qcow2") + ".packages.json"
}

// toolVersions reads the versions of the programs that decide the bytes.
func toolVersions(ctx context.Context) (map[string]string, error) {
	versions := map[string]string{}
	for _, name := range []string{"mmdebstrap", "mke2fs", "qemu-img", "tar"} {
		path, err := lookPath(name)
		if err != nil {
			return nil, err
		}
		if resolved, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
			path = filepath.Join(resolved, name)
		}
		versions[name], err = packageVersion(ctx, path)
		if err != nil {
			return nil, err
		}
	}
	return versions, nil
}

// packageVersion asks dpkg which package has a program, and in which version.
// On a merged /usr, dpkg may know the program by its path without /usr.
func packageVersion(ctx context.Context, path string) (string, error) {
	const op = "read version of a tool"
	out, err := run(ctx, op, "dpkg-query", "--search", path)
	if err != nil && ctx.Err() == nil {
		out, err = run(ctx, op, "dpkg-query", "--search", strings.TrimPrefix(path, "/usr"))
	}
	if err != nil {
		return "", err
	}
	name, _, _ := strings.Cut(string(out), ": ")
	version, err := run(ctx, op, "dpkg-query", "--show", "--showformat=${Package} ${Version}", name)
	return string(version), err
}

func (b *build) say(format string, args ...any) {
	if b.Log != nil {
		fmt.Fprintf(b.Log, format+"\n", args...)
	}
}

// took says what was done since begin, and returns now.
func (b *build) took(begin time.Time, format string, args ...any) time.Time {
	now := time.Now()
	b.say(format+" (%.1f s)", append(args, now.Sub(begin).Seconds())...)
	return now
}

// lockFile waits until it holds an exclusive lock of the file at path.
func lockFile(ctx context.Context, path string) (unlock func() error, err error) {
	lock := flock.New(path)
	if _, err := lock.TryLockContext(ctx, 50*time.Millisecond); err != nil {
		return nil, &engine.Error{Op: "lock " + path, Err: err}
	}
	return lock.Close, nil
}

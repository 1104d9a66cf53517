package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/arms/initrd"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// debFile is a package as a file in the cache.
type debFile struct {
	Package
	path string
}

// fetchKernel returns the recipe's kernel package, downloaded and compared with the signed index.
func (b *build) fetchKernel(ctx context.Context, a *apt) (*debFile, error) {
	name := b.Recipe.Kernel.Package
	if !strings.HasSuffix(name, "-"+a.arch) {
		name += "-" + a.arch
	}
	name, err := a.kernelPackage(ctx, name)
	if err != nil {
		return nil, err
	}
	return b.download(ctx, a, name)
}

// kernelDependency is the package that a metapackage stands for, with its version: "linux-image-6.1.0-57-cloud-amd64 (= 6.1.192-3)".
var kernelDependency = regexp.MustCompile(`^(linux-image-[a-z0-9][a-z0-9+.-]*)(?: \(= ([^ )]+)\))?$`)

// kernelPackage follows a metapackage to the package that has the kernel, as apt-get download names it.
func (a *apt) kernelPackage(ctx context.Context, name string) (string, error) {
	op := "resolve kernel " + name
	cmd, err := command(ctx, "apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		return "", err
	}
	cmd.Env = append(cmd.Env, "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"))
	text, err := output(ctx, op, cmd)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		list, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: ")
		if !ok {
			continue
		}
		for dependency := range strings.SplitSeq(list, ", ") {
			if m := kernelDependency.FindStringSubmatch(dependency); m != nil && m[2] != "" {
				return m[1] + "=" + m[2], nil
			} else if m != nil {
				return m[1], nil
			}
		}
	}
	return name, nil
}

// download returns a package from the cache, where it is put if it is not there or not the one.
func (b *build) download(ctx context.Context, a *apt, name string) (*debFile, error) {
	const op = "download package"
	text, err := a.get(ctx, "resolve package "+name, "-qq", "--print-uris", "download", name)
	if err != nil {
		return nil, err
	}
	found, err := parseURIs(text)
	if err != nil {
		return nil, err
	}
	if len(found) != 1 {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("apt-get names %d packages for %s", len(found), name)}
	}
	dir := filepath.Join(b.Cache, "debs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	deb := &debFile{found[0], filepath.Join(dir, found[0].SHA256+".deb")}
	digest, err := b.hashes.file(ctx, deb.path)
	if err == nil && string(digest.SHA256) == deb.SHA256 {
		return deb, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fresh, err := os.MkdirTemp(dir, "download-")
	if err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	defer os.RemoveAll(fresh)
	cmd, err := command(ctx, "apt-get", "-qq", "download", name)
	if err != nil {
		return nil, err
	}
	cmd.Dir = fresh // where it puts the file
	cmd.Env = append(cmd.Env, "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"), "DEBIAN_FRONTEND=noninteractive")
	if _, err := output(ctx, op+" "+name, cmd); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(fresh, "*.deb"))
	if err != nil || len(files) != 1 {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("apt-get left %v (%v)", files, err)}
	}
	if digest, err = b.hashes.file(ctx, files[0]); err != nil {
		return nil, err
	}
	if string(digest.SHA256) != deb.SHA256 {
		return nil, &engine.Error{Op: op, Err: fmt.Errorf("%s has the SHA-256 %s, the index says %s", name, digest.SHA256, deb.SHA256)}
	}
	if err := os.Rename(files[0], deb.path); err != nil {
		return nil, &engine.Error{Op: op, Err: err}
	}
	return deb, nil
}

// unpackKernel takes the kernel out of its package and makes the initial ramdisk.
func (b *build) unpackKernel(ctx context.Context, deb *debFile) error {
	const op = "unpack kernel"
	dir := filepath.Join(b.scratch, "kernel")
	if _, err := run(ctx, op, "dpkg-deb", "-x", deb.path, dir); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	one := func(patterns ...string) (string, error) {
		var found []string
		for _, p := range patterns {
			more, err := filepath.Glob(filepath.Join(dir, p))
			if err != nil {
				return "", err
			}
			found = append(found, more...)
		}
		if len(found) != 1 {
			return "", fmt.Errorf("%s %s has %d of %s", deb.Name, deb.Version, len(found), patterns[0])
		}
		return found[0], nil
	}
	kernel, err := one("boot/vmlinuz-*", "boot/vmlinux-*")
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	modules, err := one("lib/modules/*", "usr/lib/modules/*")
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	content, err := os.ReadFile(kernel)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	ramdisk, err := initrd.Build(b.Guestd, modules, b.Recipe.Kernel.Modules)
	if err != nil {
		return err
	}
	b.boot = map[string][]byte{initrd.Kernel: content, initrd.Initramfs: ramdisk}
	b.tools["go"] = runtime.Version() // whose gzip it is
	return nil
}

// layBoot puts what boots the image into its tree, and the listing of all that is in it as the last thing.
func (b *build) layBoot(ctx context.Context, root *os.Root, dir string) error {
	if b.boot == nil {
		return nil
	}
	for _, path := range slices.Sorted(maps.Keys(b.boot)) {
		if err := writeFile(root, path, 0o644, bytes.NewReader(b.boot[path])); err != nil {
			return err
		}
	}
	if err := removeAll(root, observe.ListingPath); err != nil {
		return err
	}
	var listing bytes.Buffer
	// mke2fs makes this folder beside what it copies.
	found := bench.StateEntry{Path: "/lost+found", Type: "directory", Mode: 0o700}
	if err := observe.WriteListing(ctx, &listing, dir, b.Recipe.Epoch, found); err != nil {
		return &engine.Error{Op: "list the tree", Err: err}
	}
	return writeFile(root, observe.ListingPath, 0o644, &listing)
}

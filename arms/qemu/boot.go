package qemu

import (
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

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/hosttool"
	"github.com/drumsbench/drumsbench/arms/image"
	"github.com/drumsbench/drumsbench/arms/initrd"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// boot is what an image boots with: files of the cache, which are found by the
// image's digest and compared with their own. Empty where the image boots itself.
type boot struct {
	kernel, initramfs string
	Kernel            bench.SHA256 `json:"kernel"`
	Initramfs         bench.SHA256 `json:"initramfs"`
}

// self: the image has a boot loader of its own; see self.go.
func (b boot) self() bool { return b.kernel == "" }

func (b boot) facts() []bench.Fact {
	if b.self() {
		return []bench.Fact{{Name: factBoots, Known: true, Value: "itself", Source: "image.partition of the manifest", View: engine.ViewHost}}
	}
	return []bench.Fact{
		{Name: "guest.kernel.sha256", Known: true, Value: string(b.Kernel), Source: initrd.Kernel + " of the image", View: engine.ViewHost},
		{Name: "guest.initramfs.sha256", Known: true, Value: string(b.Initramfs), Source: initrd.Initramfs + " of the image", View: engine.ViewHost},
	}
}

// bootLimit bounds what is read as a kernel or a ramdisk.
const bootLimit = 1 << 30

// takeBoot returns what the image boots with. The first time it mounts the image
// for it, read-only and for this moment.
func (a *Arm) takeBoot(ctx context.Context, ws *engine.Workspace, r *root, i bench.Image, tools *cgroup.Group) (boot, error) {
	const op = "take kernel out of image"
	if i.Partition != 0 {
		return boot{}, nil
	}
	dir := filepath.Join(ws.State, "cache", Kind)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return boot{}, &engine.Error{Op: op, Err: err}
	}
	base := filepath.Join(dir, string(i.Sha256))
	b := boot{kernel: base + ".kernel", initramfs: base + ".initramfs"}
	// Two runs at the same time may both make it; what they make is the same, and is put in place whole.
	if b.cached(base + ".json") {
		return b, nil
	}
	defer engine.StartSpan(ctx, "take-kernel")()
	m, err := image.Attach(ctx, ws, image.AttachOptions{Path: r.path, Image: i, Method: image.MethodFuse, CacheDir: r.cache, Prepare: inGroup(tools)})
	if err != nil {
		return boot{}, err
	}
	b.Kernel, err = take(m.Dir(), initrd.Kernel, b.kernel)
	if err == nil {
		b.Initramfs, err = take(m.Dir(), initrd.Initramfs, b.initramfs)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", engine.ErrRefused, err), Hint: "the image's recipe names no kernel, so it cannot boot; build one that does"}
	}
	if err == nil {
		var text []byte
		if text, err = json.Marshal(b); err == nil {
			err = renameio.WriteFile(base+".json", append(text, '\n'), 0o600, renameio.WithTempDir(dir))
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	return b, errors.Join(err, m.Release(ctx))
}

// cached says whether both files are there as they were recorded.
func (b *boot) cached(record string) bool {
	text, err := os.ReadFile(record)
	if err != nil || json.Unmarshal(text, b) != nil {
		return false
	}
	k, kerr := digest(b.kernel)
	i, ierr := digest(b.initramfs)
	return kerr == nil && ierr == nil && k == b.Kernel && i == b.Initramfs
}

func digest(path string) (bench.SHA256, error) {
	sum, err := hosttool.Digest(path)
	return bench.SHA256(sum), err
}

// take copies a regular file out of a mounted image. The path is resolved within
// the image: a link of the image's cannot lead out of it.
func take(mounted, path, to string) (bench.SHA256, error) {
	dir, err := unix.Open(mounted, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: mounted, Err: err}
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, path, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return "", &os.PathError{Op: "open", Path: "image:" + path, Err: err}
	}
	f := os.NewFile(uintptr(fd), "image:"+path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > bootLimit {
		return "", fmt.Errorf("%w: %s is no regular file of at most %d bytes", engine.ErrRefused, f.Name(), bootLimit)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return bench.SHA256(hex.EncodeToString(sum[:])), renameio.WriteFile(to, data, 0o400, renameio.WithTempDir(filepath.Dir(to)))
}

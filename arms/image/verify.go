package image

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Verified is an image whose digest is its pin, and which stands alone.
type Verified struct {
	Path   string
	Digest Digest
	// VirtualSize is the size of the disk in bytes.
	VirtualSize int64
}

// Facts of a verified image.
func (v Verified) Facts() []bench.Fact {
	source := "sha256 of the whole file"
	if v.Digest.Cached {
		source = "sha256 of an earlier time; device, inode, size, mtime and ctime are the same"
	}
	n, err := engine.DiskUse(v.Path)
	size := engine.Known(n, "blocks of the file", engine.ViewHost)
	if err != nil {
		size = engine.Unknown[int64](err.Error(), engine.ViewHost)
	}
	return []bench.Fact{
		size.Fact(engine.FactImageStorage),
		engine.Known(v.Digest.SHA256, source, engine.ViewHost).Fact("image.sha256"),
		engine.Known(v.Digest.Cached, "stat", engine.ViewHost).Fact("image.sha256.cached"),
		engine.Known(v.VirtualSize, "qemu-img info", engine.ViewHost).Fact("image.size.virtual"),
	}
}

// Verify compares the file at path with its pin and then looks at what it is.
// The digest comes first: nothing reads a header that nobody pinned. cacheDir
// holds digests of earlier times.
//
// ErrRefused, each with its reason and a remedy: the file is missing, its digest
// is not the pin, it is no qcow2, it has a backing file or an external data
// file, it is encrypted or marked corrupt.
func Verify(ctx context.Context, path string, pin bench.SHA256, cacheDir string) (Verified, error) {
	f, v, err := openVerified(ctx, path, pin, hashes{filepath.Join(cacheDir, "digests")}, nil)
	if err != nil {
		return Verified{}, err
	}
	return v, f.Close()
}

// openVerified is Verify that hands on the descriptor which was hashed: what is
// done with the image afterwards is done with that, whatever the path then names.
func openVerified(ctx context.Context, path string, pin bench.SHA256, h hashes, prepare func(*exec.Cmd)) (_ *os.File, _ Verified, err error) {
	const op = "verify image"
	end := engine.StartSpan(ctx, "verify")
	defer end()
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, Verified{}, &engine.Error{Op: op, Err: err}
	}
	f, err := os.Open(path)
	if isMissing(err) {
		return nil, Verified{}, refuse(op, "build it with drumsbench image build, or correct image.file in the manifest", "%s is not there", path)
	}
	if err != nil {
		return nil, Verified{}, &engine.Error{Op: op, Err: err}
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	v := Verified{Path: path}
	if v.Digest, err = h.of(ctx, f); err != nil {
		return nil, Verified{}, err
	}
	if v.Digest.SHA256 != pin {
		return nil, Verified{}, refuse(op, "restore the file that was pinned, or build the image again and pin the new digest",
			"%s is not what was pinned (truncated, damaged or another build): sha256 %s, pinned %s", path, v.Digest.SHA256, pin)
	}
	if !isQcow2(f) {
		return nil, Verified{}, refuse(op, "convert it with qemu-img convert -O qcow2 and pin the result", "%s is no qcow2 file", path)
	}
	info, err := imageInfo(ctx, f, prepare)
	if err != nil {
		return nil, Verified{}, err
	}
	if err := info.standsAlone(path); err != nil {
		return nil, Verified{}, err
	}
	v.VirtualSize = info.VirtualSize
	return f, v, nil
}

// isQcow2 reads the magic number and no more.
func isQcow2(f *os.File) bool {
	var magic [4]byte
	_, err := f.ReadAt(magic[:], 0)
	return err == nil && magic == [4]byte{'Q', 'F', 'I', 0xfb}
}

// qcow2Info is the part of "qemu-img info --output=json" that decides.
type qcow2Info struct {
	Format      string `json:"format"`
	VirtualSize int64  `json:"virtual-size"`
	Backing     string `json:"backing-filename"`
	FullBacking string `json:"full-backing-filename"`
	Encrypted   bool   `json:"encrypted"`
	Specific    struct {
		Type string `json:"type"`
		Data struct {
			Compat   string `json:"compat"`
			DataFile string `json:"data-file"`
			Corrupt  bool   `json:"corrupt"`
			Encrypt  any    `json:"encrypt"`
		} `json:"data"`
	} `json:"format-specific"`
}

// imageInfo asks qemu-img about a file whose digest was compared with its pin.
func imageInfo(ctx context.Context, f *os.File, prepare func(*exec.Cmd)) (qcow2Info, error) {
	const op = "inspect image"
	// A header may name another file as its data file, and a pipe in that place would block for ever.
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd, err := command(ctx, "qemu-img", "info", "--output=json", "--force-share", "-f", "qcow2", passed(0))
	if err != nil {
		return qcow2Info{}, err
	}
	cmd.ExtraFiles = []*os.File{f}
	if prepare != nil {
		prepare(cmd)
	}
	text, err := output(ctx, op, cmd)
	if err != nil {
		return qcow2Info{}, err
	}
	var info qcow2Info
	if err := json.Unmarshal(text, &info); err != nil {
		return qcow2Info{}, &engine.Error{Op: op, Err: fmt.Errorf("read qemu-img's answer: %w", err)}
	}
	return info, nil
}

// passed is the path of the nth file of a command's ExtraFiles, as the command sees it.
func passed(n int) string { return "/proc/self/fd/" + strconv.Itoa(3+n) }

// standsAlone refuses an image that is more than its own file.
func (i qcow2Info) standsAlone(path string) error {
	const op = "verify image"
	switch {
	case i.Format != "qcow2" || i.Specific.Type != "qcow2":
		return refuse(op, "convert it with qemu-img convert -O qcow2 and pin the result", "%s is no qcow2 file but %q", path, i.Format)
	case i.Backing != "" || i.FullBacking != "":
		return refuse(op, "flatten it with qemu-img convert -O qcow2 and pin the result",
			"%s is chained to the backing file %q, which nobody pinned", path, i.Backing)
	case i.Specific.Data.DataFile != "":
		return refuse(op, "flatten it with qemu-img convert -O qcow2 and pin the result",
			"%s keeps its content in the external data file %q, which nobody pinned", path, i.Specific.Data.DataFile)
	case i.Encrypted || i.Specific.Data.Encrypt != nil:
		return refuse(op, "decrypt it with qemu-img convert and pin the result", "%s is encrypted", path)
	case i.Specific.Data.Corrupt:
		return refuse(op, "build the image again", "%s says itself that it is corrupt", path)
	case i.VirtualSize <= 0:
		return refuse(op, "build the image again", "%s has a disk of %d bytes", path, i.VirtualSize)
	}
	return nil
}

// CacheDir is where digests, raw files and package lists lie below a state directory.
func CacheDir(state string) string { return filepath.Join(state, "cache", "image") }

package image

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
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Identity is what the kernel says of a file's inode and of when it last
// changed. Nobody can write to a file without giving it another ctime, short of
// writing to the disk below it.
type Identity struct {
	Dev   uint64 `json:"dev"`
	Ino   uint64 `json:"ino"`
	Size  int64  `json:"size"`
	Mtime int64  `json:"mtime"` // nanoseconds since the epoch
	Ctime int64  `json:"ctime"` // nanoseconds since the epoch
}

func identify(stat *unix.Stat_t) Identity {
	return Identity{
		Dev: uint64(stat.Dev), Ino: stat.Ino, Size: stat.Size, //nolint:unconvert // 32 bits on some machines
		Mtime: unix.TimespecToNsec(stat.Mtim), Ctime: unix.TimespecToNsec(stat.Ctim),
	}
}

// identityOf is the identity of an open regular file.
func identityOf(f *os.File) (Identity, error) {
	stat, err := fstat(f)
	if err != nil {
		return Identity{}, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return Identity{}, &os.PathError{Op: "fstat", Path: f.Name(), Err: errors.New("not a regular file")}
	}
	return identify(stat), nil
}

func fstat(f *os.File) (*unix.Stat_t, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return nil, &os.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	return &stat, nil
}

// ledger is the identity as the ledger keeps it.
func (i Identity) ledger() bench.Identity {
	return bench.Identity{Dev: bench.Int64(fmt.Sprint(i.Dev)), Ino: bench.Int64(fmt.Sprint(i.Ino))}
}

// Digest is a file's SHA-256 with how it was learnt.
type Digest struct {
	SHA256   bench.SHA256 `json:"sha256"`
	Identity Identity     `json:"identity"`
	// Cached: computed at an earlier time, and taken over because the identity is the same.
	Cached bool `json:"-"`
}

// hashes remembers digests by identity, one small file for each device and inode.
type hashes struct{ dir string }

// settle is how old a ctime must be before a digest is remembered under it: a
// second write within one tick of the kernel's clock would not change it.
const settle = 50 * time.Millisecond

// file returns the digest of the file at path.
func (h hashes) file(ctx context.Context, path string) (Digest, error) {
	f, err := os.Open(path)
	if err != nil {
		return Digest{}, &engine.Error{Op: "hash file", Err: err}
	}
	defer f.Close()
	return h.of(ctx, f)
}

// of returns the digest of an open file. A file that changes while it is read
// is an error, never a digest.
func (h hashes) of(ctx context.Context, f *os.File) (Digest, error) {
	const op = "hash file"
	identity, err := identityOf(f)
	if err != nil {
		return Digest{}, &engine.Error{Op: op, Err: err}
	}
	if d, ok := h.remembered(identity); ok {
		return d, nil
	}
	if age := time.Since(time.Unix(0, identity.Ctime)); age >= 0 && age < settle {
		select {
		case <-time.After(settle - age):
		case <-ctx.Done():
		}
	}
	sum := sha256.New()
	buffer := make([]byte, 1<<20)
	for offset := int64(0); ; {
		if ctx.Err() != nil {
			return Digest{}, &engine.Error{Op: op, Err: context.Cause(ctx)}
		}
		n, err := f.ReadAt(buffer, offset)
		sum.Write(buffer[:n])
		offset += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Digest{}, &engine.Error{Op: op, Err: err}
		}
	}
	after, err := identityOf(f)
	if err != nil {
		return Digest{}, &engine.Error{Op: op, Err: err}
	}
	if after != identity {
		return Digest{}, &engine.Error{
			Op: op, Err: fmt.Errorf("%s changed while it was read: %w", f.Name(), engine.ErrUnknown),
			Hint: "wait until whoever writes it is done",
		}
	}
	d := Digest{SHA256: bench.SHA256(hex.EncodeToString(sum.Sum(nil))), Identity: identity}
	return d, h.remember(d)
}

func (h hashes) path(i Identity) string {
	return filepath.Join(h.dir, fmt.Sprintf("%x-%x.json", i.Dev, i.Ino))
}

func (h hashes) remembered(i Identity) (Digest, bool) {
	text, err := os.ReadFile(h.path(i))
	if err != nil {
		return Digest{}, false
	}
	var d Digest
	if json.Unmarshal(text, &d) != nil || d.Identity != i || len(d.SHA256) != 64 {
		return Digest{}, false
	}
	d.Cached = true
	return d, true
}

func (h hashes) remember(d Digest) error {
	const op = "remember digest"
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	text, err := json.Marshal(d)
	if err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	if err := renameio.WriteFile(h.path(d.Identity), append(text, '\n'), 0o600, renameio.WithTempDir(h.dir)); err != nil {
		return &engine.Error{Op: op, Err: err}
	}
	return nil
}

// isMissing says whether err is about a file that is not there.
func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

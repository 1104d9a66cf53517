package overlay

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// HashCache remembers what was read of an image and of sealed layers, keyed by
// device, inode, size, mtime and ctime. One cache belongs to one mounted image:
// the device number of a loop device is used again for the next image, whose
// times may be pinned to the same second. Nothing of an upper directory or a
// tmpfs is ever cached: a write through a mapping that is dirty already leaves
// the times as they are. The zero value is ready; safe for concurrent use.
type HashCache struct {
	mu    sync.Mutex
	sums  map[hashKey]bench.SHA256
	links map[hashKey]map[inode][]string
}

type hashKey struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

// inode is what identifies a file on a running host: never the number alone.
type inode struct{ dev, ino uint64 }

func (o *object) inode() inode { return inode{uint64(o.st.Dev), o.st.Ino} }

func (o *object) key() hashKey {
	return hashKey{uint64(o.st.Dev), o.st.Ino, o.st.Size, o.st.Mtim, o.st.Ctim}
}

// settled: a change right after the hash could fall into the same tick of the
// file system's clock and leave the key as it is.
func (k hashKey) settled(now time.Time) bool {
	return now.Sub(time.Unix(k.ctime.Unix())) > 100*time.Millisecond
}

// sum is the SHA-256 of a regular file's content. A file that changes while it
// is read is ErrUnknown. cache may be nil.
func (o *object) sum(cache *HashCache) (bench.SHA256, error) {
	key := o.key()
	if cache != nil {
		cache.mu.Lock()
		s, ok := cache.sums[key]
		cache.mu.Unlock()
		if ok {
			return s, nil
		}
	}
	f, err := os.OpenFile(selfFD(o.fd), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOATIME, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return "", err
	}
	var after unix.Stat_t
	if err := unix.Fstat(o.fd, &after); err != nil {
		return "", err
	}
	if n != o.st.Size || (&object{st: after}).key() != key {
		return "", fmt.Errorf("%w: changed while it was read", engine.ErrUnknown)
	}
	s := bench.SHA256(hex.EncodeToString(h.Sum(nil)))
	if cache != nil && key.settled(time.Now()) {
		cache.mu.Lock()
		defer cache.mu.Unlock()
		if cache.sums == nil {
			cache.sums = map[hashKey]bench.SHA256{}
		}
		cache.sums[key] = s
	}
	return s, nil
}

// Package pagecache drops files of ours from the host's page cache, so that what
// reads them next reads the disk, as a host does that has just been started.
//
// Always holds: nothing but the files that were named is touched, and no setting of
// the host; what is said to be gone was read back with mincore(2).
package pagecache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const (
	// tries and pause: a page that is being read or written back stays at the first try.
	tries = 10
	pause = 50 * time.Millisecond
	// span of a file that is mapped at once.
	span = 1 << 30
	// named are the files that are told by name where they stay.
	named = 8
)

// Cache implements engine.PageCache.
type Cache struct{}

// Drop implements engine.PageCache. The file systems have to keep their files on a
// disk: what lies in memory only, such as in a tmpfs, stays.
func (Cache) Drop(ctx context.Context, paths []string) (d bench.CacheDrop, err error) {
	var files, resident, left int64
	var held []string
	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err = errors.Join(err, ctx.Err()); err != nil || !e.Type().IsRegular() {
				return err
			}
			before, after, err := drop(path, false)
			files, resident = files+1, resident+before
			if after > 0 {
				held = append(held, path)
			}
			return err
		})
		if err != nil {
			return d, &engine.Error{Op: "drop page cache of " + root, Err: err}
		}
	}
	for range tries { // what is dirty, or being read
		if len(held) == 0 {
			break
		}
		left = 0
		var again []string
		for _, path := range held {
			_, after, err := drop(path, true)
			if err != nil {
				return d, &engine.Error{Op: "drop page cache", Err: err}
			}
			if left += after; after > 0 {
				again = append(again, path)
			}
		}
		if held = again; len(held) == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return d, &engine.Error{Op: "drop page cache", Err: ctx.Err()}
		case <-time.After(pause):
		}
	}
	d.Files, d.Resident, d.Left, d.Held = files, size(resident), size(left), held[:min(named, len(held))]
	return d, nil
}

func size(n int64) bench.Int64 { return bench.Int64(strconv.FormatInt(n, 10)) }

// drop one file, written back first where asked; it gives the bytes that were in memory before and after.
func drop(path string, sync bool) (before, after int64, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOATIME, 0)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	if before, err = Resident(f); err != nil || before == 0 {
		return before, before, err
	}
	if sync {
		if err := f.Sync(); err != nil {
			return 0, 0, err
		}
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return 0, 0, &os.PathError{Op: "fadvise", Path: path, Err: err}
	}
	after, err = Resident(f)
	return before, after, err
}

// Resident counts the bytes of a file that are in the page cache, in whole pages.
func Resident(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%w: %s is no regular file any more", engine.ErrRefused, f.Name())
	}
	page := int64(os.Getpagesize())
	n := int64(0)
	for at := int64(0); at < info.Size(); at += span {
		length := min(span, info.Size()-at)
		m, err := unix.Mmap(int(f.Fd()), at, int(length), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return 0, &os.PathError{Op: "mmap", Path: f.Name(), Err: err}
		}
		in := make([]byte, (length+page-1)/page)
		err = mincore(m, in)
		if err = errors.Join(err, unix.Munmap(m)); err != nil {
			return 0, &os.PathError{Op: "mincore", Path: f.Name(), Err: err}
		}
		for _, b := range in {
			n += int64(b & 1)
		}
	}
	return n * page, nil
}

// mincore fills in, a byte for each page of m, whose lowest bit says that the page is in memory.
func mincore(m, in []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), uintptr(unsafe.Pointer(&in[0])))
	if errno != 0 {
		return errno
	}
	return nil
}

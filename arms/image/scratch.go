package image

import (
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

const scratchPrefix = "drumsbench-build-"

// newScratch makes a folder for a build: on tmpfs where there is room for need
// bytes, else below work. It is locked as long as the build lives, so that the
// next one can tell what a killed build left and take it away. done removes it.
func newScratch(work string, need int64) (dir string, done func() error, err error) {
	const op = "make scratch folder"
	base := work
	if memory := "/dev/shm"; hasRoom(memory, need) {
		base = memory
	}
	for _, place := range []string{work, "/dev/shm"} {
		dropDeadScratch(place)
	}
	dir, err = os.MkdirTemp(base, scratchPrefix)
	if err != nil {
		return "", nil, &engine.Error{Op: op, Err: err}
	}
	lock := flock.New(filepath.Join(dir, "lock"))
	if ok, err := lock.TryLock(); err != nil || !ok {
		os.RemoveAll(dir)
		return "", nil, &engine.Error{Op: op, Err: err}
	}
	return dir, func() error {
		defer lock.Close()
		return os.RemoveAll(dir)
	}, nil
}

// hasRoom says whether dir is a tmpfs with need bytes free, in memory as well.
func hasRoom(dir string, need int64) bool {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil || fs.Type != unix.TMPFS_MAGIC || int64(fs.Bavail)*int64(fs.Bsize) < need {
		return false
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return false
	}
	return int64(info.Freeram)*int64(info.Unit)/2 > need
}

// dropDeadScratch removes scratch folders whose lock nobody holds. A young one
// may be just before it takes its lock.
func dropDeadScratch(place string) {
	old, err := filepath.Glob(filepath.Join(place, scratchPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range old {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		lock := flock.New(filepath.Join(dir, "lock"))
		if ok, err := lock.TryLock(); err == nil && ok {
			os.RemoveAll(dir)
		}
		lock.Close()
	}
}

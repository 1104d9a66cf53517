//go:build unix

package engine

import (
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// DiskUse is how many bytes of blocks everything at and below path takes on its
// disk: holes count nothing, and a file with several names counts once.
func DiskUse(path string) (int64, error) {
	type inode struct{ dev, ino uint64 }
	seen := map[inode]bool{}
	sum := int64(0)
	err := filepath.WalkDir(path, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &fs.PathError{Op: "lstat", Path: path, Err: err}
		}
		at := inode{uint64(st.Dev), st.Ino} //nolint:unconvert // 32 bits on some machines
		if st.Nlink == 1 || !seen[at] {
			sum += st.Blocks * 512 // the unit of st_blocks, whatever the file system's
		}
		seen[at] = true
		return nil
	})
	return sum, err
}

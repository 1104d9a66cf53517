package engine

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// MakeWork makes the scratch directory, ledger first.
func (ws *Workspace) MakeWork() error {
	var err error
	ws.Owned, err = Own(ws.Ledger, "directory", bench.Claim{Path: ws.Work}, func() (bench.Identity, error) {
		if err := os.MkdirAll(filepath.Dir(ws.Work), 0o755); err != nil {
			return bench.Identity{}, err
		}
		// Others may not enter: a guest's root user leaves files in it that the kernel would run as root for anybody.
		if err := os.Mkdir(ws.Work, 0o700); err != nil {
			return bench.Identity{}, err
		}
		spread(ws.Work)
		var st unix.Stat_t
		if err := unix.Lstat(ws.Work, &st); err != nil {
			return bench.Identity{}, &os.PathError{Op: "lstat", Path: ws.Work, Err: err}
		}
		return bench.Identity{Dev: bench.Int64(strconv.FormatUint(uint64(st.Dev), 10)), Ino: bench.Int64(strconv.FormatUint(st.Ino, 10))}, nil
	})
	return err
}

// topDir is FS_TOPDIR_FL of linux/fs.h: the folders in a folder have nothing to do with each other.
const topDir = 0x00020000

// spread asks ext4 to lay each tenancy's folder somewhere else on the disk. It puts a new file where its folder's
// others are, and passes over each inode there that was deleted within the last minutes, one by one (recently_deleted
// in fs/ext4/ialloc.c): where the folder of each reset follows that of the one before, a reset of a hundred files takes
// longer each time. A file system without the flag is as it is.
func spread(dir string) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	if err == nil {
		_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags|topDir)
	}
}

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
		var st unix.Stat_t
		if err := unix.Lstat(ws.Work, &st); err != nil {
			return bench.Identity{}, &os.PathError{Op: "lstat", Path: ws.Work, Err: err}
		}
		return bench.Identity{Dev: bench.Int64(strconv.FormatUint(uint64(st.Dev), 10)), Ino: bench.Int64(strconv.FormatUint(st.Ino, 10))}, nil
	})
	return err
}

//go:build linux

package engine

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// noBook owns without writing it down.
type noBook struct{}

func (noBook) Intend(string, bench.Claim) (int64, error) { return 1, nil }
func (noBook) Bind(int64, bench.Identity) error          { return nil }
func (noBook) Gone(int64) error                          { return nil }

// A guest's root user leaves set-user-id programs in its layers: nobody else of the host gets to them.
func TestNobodyElseEntersTheScratchDirectory(t *testing.T) {
	ws := &Workspace{Work: filepath.Join(t.TempDir(), "work", "0123456789ab"), Ledger: noBook{}}
	if err := ws.MakeWork(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(ws.Work)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// On ext4 the folders of a run's tenancies do not lie beside each other.
func TestWorkIsSpread(t *testing.T) {
	ws := &Workspace{Work: filepath.Join(t.TempDir(), "work", "0123456789ab"), Ledger: noBook{}}
	if err := ws.MakeWork(); err != nil {
		t.Fatal(err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(ws.Work, &st); err != nil {
		t.Fatal(err)
	}
	if st.Type != unix.EXT4_SUPER_MAGIC {
		t.Logf("temporary files are on a file system of type %#x, which is left as it is", st.Type)
		return
	}
	f, err := os.Open(ws.Work)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS); err != nil || flags&topDir == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
}

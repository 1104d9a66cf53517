//go:build linux

package engine

import (
	"os"
	"path/filepath"
	"testing"

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

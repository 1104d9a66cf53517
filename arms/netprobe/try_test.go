package netprobe

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A layer whose things could not be taken away is unknown with the reason, whatever it said before.
func TestTryUndone(t *testing.T) {
	for name, err := range map[string]error{
		"undo alone":           &undoError{&engine.Error{Op: "take away", Err: errors.New("it is busy"), Hint: "a hint"}},
		"undo after a failure": errors.Join(&engine.Error{Op: "dump", Err: errors.New("it is busy"), Hint: "a hint"}, &undoError{errors.New("and left")}),
	} {
		l := bench.NetworkLayer{Layer: Kernel}
		got := (&probe{}).try(t.Context(), &l, func(_ context.Context, l *bench.NetworkLayer) error {
			l.Outcome, l.LostAt = Preserved, atDump
			return err
		}, nil)
		var undone *undoError
		if !errors.As(got, &undone) {
			t.Errorf("%s: %v", name, got)
		}
		if l.Outcome != Unknown || l.LostAt != "" || !strings.Contains(l.Reason, "it is busy") || l.Hint != "a hint" {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

// littering puts a file into each folder that is bound, and keeps what is said to be gone.
type littering struct {
	dir  string
	gone []int64
}

func (l *littering) Intend(string, bench.Claim) (int64, error) { return 0, nil }
func (l *littering) Bind(int64, bench.Identity) error {
	return os.WriteFile(filepath.Join(l.dir, "litter"), nil, 0o600)
}
func (l *littering) Gone(id int64) error {
	l.gone = append(l.gone, id)
	return nil
}

// A folder that could not be removed stays the run's.
func TestSiteIsGoneOnceRemoved(t *testing.T) {
	const name = "No Group" // is no name of a group
	work := t.TempDir()
	l := &littering{dir: filepath.Join(work, name)}
	ws := &engine.Workspace{Work: work, Ledger: l}
	if _, err := (&probe{ws: ws, owner: &cgroup.Owner{}}).newSite(name); !errors.Is(err, engine.ErrUsage) || len(l.gone) > 0 {
		t.Errorf("%v; gone of %v, which is still there", err, l.gone)
	}
}

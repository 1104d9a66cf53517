package tree

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// pen is a ledger whose numbers begin at 0; full is what every intent fails with.
type pen struct {
	next int64
	full error
	gone []int64
}

func (p *pen) Intend(string, bench.Claim) (int64, error) {
	if p.full != nil {
		return p.next, p.full
	}
	p.next++
	return p.next - 1, nil
}

func (p *pen) Bind(int64, bench.Identity) error { return nil }

func (p *pen) Gone(id int64) error {
	p.gone = append(p.gone, id)
	return nil
}

// Gone is written of what was intended, whose number may be 0, and of nothing else.
func TestGoneOnlyWhatWasIntended(t *testing.T) {
	full := errors.New("no space")
	dir := filepath.Join(t.TempDir(), "life")
	taken := func(l *pen, life *Tenancy) {
		t.Helper()
		if err := errors.Join(life.End(t.Context(), l), life.Clear(t.Context(), l)); err != nil {
			t.Error(err)
		}
	}
	l, life := &pen{full: full}, &Tenancy{Dir: dir}
	if err := life.Make(l); !errors.Is(err, full) {
		t.Fatal(err)
	}
	if err := life.Intend(l, bench.Claim{}); !errors.Is(err, full) {
		t.Fatal(err)
	}
	if taken(l, life); len(l.gone) > 0 {
		t.Errorf("gone of %v, and nothing was owned", l.gone)
	}

	l, life = &pen{}, &Tenancy{Dir: dir}
	if err := errors.Join(life.Make(l), life.Intend(l, bench.Claim{})); err != nil {
		t.Fatal(err)
	}
	if taken(l, life); !slices.Equal(l.gone, []int64{1, 0}) {
		t.Errorf("gone of %v, want process 1 and folder 0", l.gone)
	}
	var _ engine.Ledger = l
}

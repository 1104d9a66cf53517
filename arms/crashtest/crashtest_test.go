package crashtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A check that cannot fail is none: every decoy notices that it was touched.
func TestDecoysNotice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root")
	}
	h := &Harness{State: t.TempDir()}
	const claim = "0123456789ab"
	if err := os.MkdirAll(filepath.Join(h.State, "work", claim), 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := h.plant(claim)
	if err != nil {
		t.Fatal(err)
	}
	defer d.remove()
	if touched := d.touched(); len(touched) > 0 {
		t.Fatalf("nobody touched %q", touched)
	}
	if link, err := os.Readlink(filepath.Join(h.State, "work", claim, "link")); err != nil || !strings.HasSuffix(link, claim+"0") {
		t.Errorf("the run's folder has no link to the decoy: %q, %v", link, err)
	}
	// Each is taken away in turn, the last first; those that are left do not notice.
	for n := len(d.checks) - 1; n >= 0; n-- {
		last := d.undo[n]
		d.undo = d.undo[:n]
		if err := last(); err != nil {
			t.Fatal(err)
		}
		if touched := d.touched(); len(touched) != len(d.checks)-n {
			t.Errorf("%s was touched, and this is noticed: %q", d.checks[n].what, touched)
		}
	}
}

func TestSample(t *testing.T) {
	h := &Harness{lines: make([]bench.LedgerLine, 40), took: time.Second, Criu: true}
	all := h.Windows(1, 5)
	if want := 80 + 6 + 12 + 9 + 5; len(all) != want {
		t.Errorf("%d windows, want %d", len(all), want)
	}
	names := map[string]bool{}
	for _, w := range all {
		names[w.String()] = true
	}
	if len(names) < len(all)-11 { // random and torn ones may coincide
		t.Errorf("%d windows have %d names", len(all), len(names))
	}
	some := Sample(all, 12, 7)
	kinds := map[string]int{}
	for _, w := range some {
		kinds[w.Kind]++
	}
	if len(some) != 12 || len(kinds) != 5 || kinds[Ledger] < 6 {
		t.Errorf("a sample of %v", kinds)
	}
	if !slices.Equal(some, Sample(all, 12, 7)) {
		t.Error("the same seed gives another sample")
	}
	if slices.Equal(some, Sample(all, 12, 8)) {
		t.Error("another seed gives the same sample")
	}
	if got := Sample(all[:3], 12, 1); len(got) != 3 {
		t.Errorf("%d of 3 windows", len(got))
	}
}

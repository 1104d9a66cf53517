package crashtest

import (
	"context"
	"errors"
	"os"
	"os/exec"
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

// The moments of QMP calls are those of a run that said how long they took; a
// program dies there once, in the call that is meant.
func TestWatch(t *testing.T) {
	if does := os.Getenv(watched); does != "" {
		w, _ := FromEnvironment()
		watch := w.Watch()
		for i := range 2 {
			for _, command := range []string{"migrate", "snapshot-load"} {
				ended := watch(command)
				if does == "hangs in the last" && i == 1 && command == "snapshot-load" {
					select {}
				}
				time.Sleep(5 * time.Millisecond)
				ended()
			}
		}
		if does == "hangs afterwards" {
			select {}
		}
		os.Exit(7)
	}
	h := &Harness{Arm: "none", State: t.TempDir(), QMP: 4, Lines: -1}
	if err := os.MkdirAll(filepath.Join(h.State, "runs"), 0o755); err != nil {
		t.Fatal(err)
	}
	does := "ends"
	h.Program = func(ctx context.Context, env []string, _ ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestWatch$")
		cmd.Env = append(append(os.Environ(), watched+"="+does), env...)
		return cmd
	}
	_, said, err := h.run(t.Context(), []string{Window{Kind: Timing}.Environment()}, nil)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Fatalf("%v: %s", err, said)
	}
	if h.calls = timed(said); len(h.calls) != 4 || h.calls[3].Command != "snapshot-load" || h.calls[3].Call != 2 || h.calls[3].Delay < 5*time.Millisecond {
		t.Fatalf("%+v of %s", h.calls, said)
	}
	windows := h.Windows(1, 0)
	if len(windows) != 2*2*4 {
		t.Errorf("%d windows: %v", len(windows), windows)
	}
	for _, w := range windows {
		if !slices.ContainsFunc(h.calls, func(c Window) bool {
			return c.Command == w.Command && c.Call == w.Call && w.Kind == QMP && w.Delay <= c.Delay+10*time.Microsecond
		}) {
			t.Errorf("%+v is in none of %+v", w, h.calls)
		}
	}
	for _, c := range []struct {
		w            Window
		does         string
		dies, inside bool
	}{
		{Window{Kind: QMP, Command: "snapshot-load", Call: 2}, "hangs in the last", true, true},
		{Window{Kind: QMP, Command: "migrate", Call: 1, Delay: time.Second}, "hangs afterwards", true, false},
		{Window{Kind: QMP, Command: "migrate", Call: 3}, "ends", false, false},
		{Window{Kind: QMP, Command: "snapshot-save", Call: 1}, "ends", false, false},
	} {
		does = c.does
		_, said, err := h.run(t.Context(), []string{c.w.Environment()}, nil)
		died := errors.As(err, &exit) && exit.ExitCode() == -1
		if inside := strings.Contains(said, saidInside); died != c.dies || inside != c.inside {
			t.Errorf("%s: died %v, inside %v: %s", c.w, died, inside, said)
		}
	}
}

const watched = "DRUMS_TEST_WATCHED"

package sweep

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// stops plays systemd, which takes a unit's group away when it is stopped.
type stops struct {
	dir   string
	fails error
	asked []string
}

func (s *stops) Stop(_ context.Context, unit string) error {
	s.asked = append(s.asked, unit)
	if s.fails == nil {
		_ = unix.Rmdir(filepath.Join(s.dir, unit))
	}
	return s.fails
}

func TestScopes(t *testing.T) {
	dir := groups(t)[""]
	// begin plants systemd and a scope of the run's, which the ledger intends.
	plant := func(t *testing.T) (*run, *stops, string, int64) {
		r, s, before := begin(t), &stops{dir: dir}, units
		units = s
		t.Cleanup(func() { units = before })
		path := filepath.Join(dir, "drums-"+r.id+"-slot-1.scope")
		return r, s, path, r.intend("scope", bench.Claim{Path: path})
	}
	asked := func(t *testing.T, s *stops, want ...string) {
		t.Helper()
		if !slices.Equal(s.asked, want) {
			t.Errorf("systemd was asked to stop %q, want %q", s.asked, want)
		}
	}
	t.Run("with a process", func(t *testing.T) {
		r, s, path, id := plant(t)
		makeGroup(t, path)
		must(t, r.d.Ledger.Bind(id, identityAt(t, path)))
		_, alive := sleeper(t, path)
		r.die()
		r.want(r.sweep(Options{DryRun: true}), "would-take scope", "would-take directory")
		asked(t, s)
		r.want(r.sweep(Options{}), "taken scope", "taken directory")
		asked(t, s, filepath.Base(path))
		if alive() || exists(path) {
			t.Error("it is there")
		}
		r.clean()
	})
	t.Run("made and not bound", func(t *testing.T) {
		r, s, path, _ := plant(t)
		makeGroup(t, path)
		r.die()
		r.want(r.sweep(Options{}), "taken scope", "taken directory")
		asked(t, s, filepath.Base(path))
		r.clean()
	})
	t.Run("never made, but perhaps known as failed", func(t *testing.T) {
		r, s, path, _ := plant(t)
		r.die()
		r.want(r.sweep(Options{}), "absent scope", "taken directory")
		asked(t, s, filepath.Base(path))
		r.clean()
	})
	t.Run("another one of its name", func(t *testing.T) {
		r, s, path, id := plant(t)
		makeGroup(t, path)
		other := identityAt(t, path)
		other.Ino += "0"
		must(t, r.d.Ledger.Bind(id, other))
		_, alive := sleeper(t, path)
		r.die()
		r.want(r.sweep(Options{}), "foreign scope", "taken directory")
		asked(t, s)
		if !alive() || !exists(path) {
			t.Error("somebody else's scope was touched")
		}
	})
	t.Run("systemd does not answer", func(t *testing.T) {
		r, s, path, _ := plant(t)
		makeGroup(t, path)
		s.fails = fmt.Errorf("reach systemd: %w", engine.ErrUnknown)
		r.die()
		r.want(r.sweep(Options{}), "unknown scope", "taken directory")
		s.fails = nil
		r.want(r.sweep(Options{}), "taken scope")
		r.clean()
	})
	t.Run("it stays", func(t *testing.T) {
		r, s, path, _ := plant(t)
		makeGroup(t, path)
		s.fails = fmt.Errorf("stop: %w: it is deactivating", engine.ErrDeadline)
		r.die()
		r.want(r.sweep(Options{}), "failed scope", "taken directory")
	})
	t.Run("names that are not the run's", func(t *testing.T) {
		for _, name := range []string{"drums-0123456789ab-slot-1.scope", "session-1.scope", "drums-%s-slot-1.service", "drums-%s-x/session-1.scope"} {
			r, s, _, id := plant(t)
			must(t, r.d.Ledger.Gone(id))
			if filepath.Dir(name) == "." {
				name += "%.0s"
			}
			r.intend("scope", bench.Claim{Path: filepath.Join(dir, fmt.Sprintf(name, r.id))})
			r.die()
			r.want(r.sweep(Options{}), "unknown scope", "taken directory")
			asked(t, s)
		}
	})
}

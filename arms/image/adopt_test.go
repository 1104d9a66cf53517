package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// adopted is where a mounted image is, as its ledger has it.
func adopted(t *testing.T, ledger *book) (a Adopted) {
	t.Helper()
	claims := map[int64]bench.Claim{}
	for _, l := range ledger.lines {
		switch {
		case l.Op == "intent":
			claims[l.Id] = l.Claim
		case l.Op == "bind" && l.Kind == "loop":
			a.Loop = l.Identity
		case l.Op == "bind" && l.Kind == "mount":
			a.Dir, a.Device, a.Mount = claims[l.Id].Path, claims[l.Id].Backing, *l.Identity
		}
	}
	if a.Loop == nil || a.Dir == "" {
		t.Fatalf("the ledger has no loop device and mount: %s", ledger.story())
	}
	return a
}

// An image that another process mounted is taken over by what the ledger says of it.
func TestAdopt(t *testing.T) {
	path, pin := smallImage(t, smallExt4(t))
	for _, method := range []string{MethodRaw, MethodFuse} {
		t.Run(method, func(t *testing.T) {
			ws, ledger := newWorkspace(t)
			o := AttachOptions{Path: path, Image: bench.Image{Sha256: pin}, Method: method, CacheDir: ws.State}
			first := attach(t, ws, o)
			a := adopted(t, ledger)
			lines := len(ledger.lines)
			m, err := Adopt(t.Context(), o, a)
			if err != nil {
				t.Fatal(err)
			}
			if m.Dir() != first.Dir() {
				t.Errorf("at %s, not %s", m.Dir(), first.Dir())
			}
			if err := m.Verify(t.Context()); err != nil {
				t.Error(err)
			}
			for _, f := range m.Facts() {
				if !f.Known {
					t.Errorf("fact %s is unknown", f.Name)
				}
			}
			// Who goes on with the run has it taken away, once, and again where that failed.
			dropped := 0
			heir := a
			heir.Drop = func(context.Context) error {
				if dropped++; dropped == 1 {
					return engine.ErrUnknown
				}
				return nil
			}
			inherited, err := Adopt(t.Context(), o, heir)
			if err != nil {
				t.Fatal(err)
			}
			if err := inherited.Release(t.Context()); !errors.Is(err, engine.ErrUnknown) {
				t.Errorf("release that fails: %v", err)
			}
			for range 2 {
				if err := inherited.Release(t.Context()); err != nil || dropped != 2 {
					t.Errorf("release: %v, dropped %d times", err, dropped)
				}
			}
			// Who took it over does not take it away: that is for sweep, by the ledger.
			if err := m.Release(t.Context()); !errors.Is(err, engine.ErrRefused) {
				t.Errorf("release: %v", err)
			}
			if _, err := os.Stat(filepath.Join(first.Dir(), "hello")); err != nil {
				t.Error(err)
			}
			if len(ledger.lines) != lines {
				t.Errorf("ledger: %s", ledger.story())
			}
		})
	}
}

// What is not as the ledger says is refused, with what it is.
func TestAdoptRefuses(t *testing.T) {
	path, pin := smallImage(t, smallExt4(t))
	ws, ledger := newWorkspace(t)
	o := AttachOptions{Path: path, Image: bench.Image{Sha256: pin}, Method: MethodRaw, CacheDir: ws.State}
	attach(t, ws, o)
	sound := adopted(t, ledger)
	other := func(i bench.Identity) *bench.Identity {
		i.Ino += "1"
		return &i
	}
	for name, c := range map[string]struct {
		options func(*AttachOptions)
		at      func(*Adopted)
		words   []string
	}{
		"another mount":      {at: func(a *Adopted) { a.Mount = *other(a.Mount) }, words: []string{"is not what was mounted there"}},
		"nothing mounted":    {at: func(a *Adopted) { a.Dir = filepath.Dir(a.Dir) }, words: []string{"is not what was mounted there"}},
		"another device":     {at: func(a *Adopted) { a.Device, a.Loop = "/dev/loop-of-nobody", nil }, words: []string{"loop-of-nobody"}},
		"another raw file":   {at: func(a *Adopted) { a.Loop = other(*a.Loop) }, words: []string{"was replaced since it was attached"}},
		"no identity":        {at: func(a *Adopted) { a.Loop = &bench.Identity{} }, words: []string{"has no identity"}},
		"another pin":        {options: func(o *AttachOptions) { o.Image.Sha256 = bench.SHA256(string(pin[:63]) + "x") }, words: []string{"changed since it was mounted"}},
		"image that is gone": {options: func(o *AttachOptions) { o.Path += ".gone" }, words: []string{"is gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			o, a := o, sound
			if c.options != nil {
				c.options(&o)
			}
			if c.at != nil {
				c.at(&a)
			}
			_, err := Adopt(t.Context(), o, a)
			wantRefused(t, err, c.words...)
		})
	}
}

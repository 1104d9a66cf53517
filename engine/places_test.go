package engine

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// noted is a place that may last.
type noted struct {
	name    string
	fleets  bool
	refuses error
}

func (p noted) Name() string                  { return p.name }
func (p noted) Vacate(context.Context) error  { return nil }
func (p noted) Release(context.Context) error { return nil }
func (p noted) Fleeting() bool                { return p.fleets }

type lasting struct{ noted }

func (p lasting) Handle() (bench.PlaceHandle, error) {
	return bench.PlaceHandle{Name: bench.Name(p.name), State: "running", Tenancies: 7}, p.refuses
}

// The last note of a slot counts. Of one that ends with us, or cannot be taken over, there is none; what is no note of
// ours is not read; the scratch directory goes with its notes.
func TestPlaceNotes(t *testing.T) {
	ws := &Workspace{Work: filepath.Join(t.TempDir(), "work", "0123456789ab"), Ledger: noBook{}}
	if err := ws.MakeWork(); err != nil {
		t.Fatal(err)
	}
	slot := lasting{noted{name: "slot-0"}}
	none := func(what string) {
		t.Helper()
		if h, err := ws.NotedPlace("slot-0"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %+v, %v", what, h, err)
		}
	}
	note := func(p Place) {
		t.Helper()
		if err := ws.NotePlace(p); err != nil {
			t.Fatal(err)
		}
	}
	none("before any")
	note(slot)
	if h, err := ws.NotedPlace("slot-0"); err != nil || h.Tenancies != 7 {
		t.Errorf("%+v, %v", h, err)
	}
	fleeting := slot
	fleeting.fleets = true
	note(fleeting)
	none("of one that ends with us")
	note(slot)
	note(noted{name: "slot-0"})
	none("of one that cannot be taken over")
	broken := slot
	broken.refuses = ErrUnknown
	note(slot)
	note(broken)
	none("of one that does not know where it is")
	path := filepath.Join(ws.places(), "slot-0.json")
	note(slot)
	for what, plant := range map[string]func() error{
		"a link":   func() error { return os.Symlink("/etc/passwd", path) },
		"a folder": func() error { return os.Mkdir(path, 0o700) },
		"huge":     func() error { return os.WriteFile(path, make([]byte, maxPlaceNote+1), 0o600) },
		"no JSON":  func() error { return os.WriteFile(path, []byte("{"), 0o600) },
		"another's": func() error {
			return os.WriteFile(path, []byte(`{"name":"slot-1","state":"running","tenancies":1,"image":"/","ownership":"","tools":"","group":""}`), 0o600)
		},
	} {
		if err := errors.Join(os.RemoveAll(path), plant()); err != nil {
			t.Fatal(err)
		}
		if h, err := ws.NotedPlace("slot-0"); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is read: %+v, %v", what, h, err)
		}
	}
	if err := ws.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(ws.Work); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the scratch directory: %v", err)
	}
}

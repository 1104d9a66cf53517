package checkpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record/irregulartest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// sealed is a checkpoint of four files.
func sealed(t *testing.T) engine.Checkpoint {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"images/a.img": "aaaa", "images/b.img": "bbbb", "layers/0/etc/c": "cccc", "state.json": "{}"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	cp, err := Seal(context.Background(), dir, bench.Checkpoint{ApiVersion: engine.APIVersion, Arm: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return cp
}

func TestAuditOfASoundCheckpoint(t *testing.T) {
	cp := sealed(t)
	for _, c := range []struct {
		deep   bool
		hashed int
	}{{false, 0}, {true, 4}} {
		changes, hashed, err := Audit(context.Background(), cp, c.deep)
		if err != nil || changes != nil || hashed != c.hashed {
			t.Errorf("deep %v: %v, %d hashed, %v", c.deep, changes, hashed, err)
		}
	}
	// Touched and not changed: it is hashed, and holds.
	path := filepath.Join(cp.Dir, "images/a.img")
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if changes, hashed, err := Audit(context.Background(), cp, false); err != nil || changes != nil || hashed != 1 {
		t.Errorf("%v, %d hashed, %v", changes, hashed, err)
	}
}

// Each damage is found, all in one go, where Verify stops at the first.
func TestAuditNamesEachChange(t *testing.T) {
	cp := sealed(t)
	at := func(name string) string { return filepath.Join(cp.Dir, name) }
	if err := errors.Join(
		os.WriteFile(at("images/a.img"), []byte("aaab"), 0o600),
		os.WriteFile(at("images/b.img"), []byte("bbbbb"), 0o600),
		os.Remove(at("layers/0/etc/c")),
		os.Remove(at("state.json")), os.Symlink("/etc/passwd", at("state.json")),
		os.WriteFile(at("layers/0/etc/new"), nil, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	want := []Change{
		{Changed, "images/a.img", "changed its content"},
		{Changed, "images/b.img", "changed its size from 4 to 5 bytes"},
		{Missing, "layers/0/etc/c", "is missing"},
		{Changed, "state.json", "cannot be read: is not a regular file"},
		{Added, "layers/0/etc/new", "was added after the checkpoint was sealed"},
	}
	for _, deep := range []bool{false, true} {
		if changes, _, err := Audit(context.Background(), cp, deep); err != nil || !reflect.DeepEqual(changes, want) {
			t.Errorf("deep %v: %v %+v", deep, err, changes)
		}
	}
	_, err := Verify(context.Background(), cp)
	if !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), "images/a.img changed its content") {
		t.Errorf("Verify: %v", err)
	}
}

func TestAuditStaysInside(t *testing.T) {
	cp := sealed(t)
	cp.Handle.Files[0].Path = "../../etc/passwd"
	changes, _, err := Audit(context.Background(), cp, true)
	if err != nil || len(changes) != 2 || changes[0].Text != "lies outside the checkpoint" {
		t.Errorf("%v %v", err, changes)
	}
}

func TestAuditStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := Audit(ctx, sealed(t), false); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A handle that is no file of ours is not read, wherever it leads.
func TestOpenReadsARegularFileOnly(t *testing.T) {
	cp := sealed(t)
	irregulartest.Each(t, filepath.Join(cp.Dir, HandleFile), func() error { _, err := Open(cp.Dir); return err })
}

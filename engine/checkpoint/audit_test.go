package checkpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pkg/xattr"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record/irregulartest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// sealed is a checkpoint of four files.
func sealed(t testing.TB) engine.Checkpoint {
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
	// What may come after the seal.
	if err := os.WriteFile(filepath.Join(cp.Dir, WorkingSetFile), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if changes, _, err := Audit(context.Background(), cp, true); err != nil || changes != nil {
		t.Errorf("with a working set: %v, %v", changes, err)
	}
	// Touched and not changed: it is hashed, and holds.
	path := filepath.Join(cp.Dir, "images/a.img")
	if err := os.Chtimes(path, time.Now(), time.Now()); err != nil {
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

// What a layer says without a content is sealed too: it decides what a restored slot sees.
func TestAuditSeesShapes(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	const strange = "layer/strange \xff\\name"
	if err := errors.Join(
		os.MkdirAll(at("layer/opaque"), 0o755), os.WriteFile(at("layer/run"), []byte("run"), 0o755), os.WriteFile(at(strange), nil, 0o644),
		os.Symlink("old", at("layer/link")), unix.Mknod(at("layer/gone"), unix.S_IFCHR, 0), unix.Mkfifo(at("layer/fifo"), 0o600),
		xattr.Set(at("layer/opaque"), "trusted.overlay.opaque", []byte("y")),
	); err != nil {
		t.Fatal(err)
	}
	if _, err := Seal(t.Context(), dir, bench.Checkpoint{ApiVersion: engine.APIVersion, Arm: "test"}); err != nil {
		t.Fatal(err)
	}
	cp, err := Open(dir) // by what JSON kept of it
	if err != nil {
		t.Fatal(err)
	}
	if hashed, err := Verify(t.Context(), cp); err != nil || hashed != 0 {
		t.Fatalf("%d hashed, %v", hashed, err)
	}
	for _, c := range []struct {
		name       string
		do, undo   func() error
		what       What
		path, text string
	}{
		{"mode", func() error { return os.Chmod(at("layer/run"), 0o4755|os.ModeSetuid) }, func() error { return os.Chmod(at("layer/run"), 0o755) }, Changed, "layer/run", `from "100755 0:0" to "104755 0:0"`},
		{"owner", func() error { return os.Lchown(at("layer/link"), 1, 2) }, func() error { return os.Lchown(at("layer/link"), 0, 0) }, Changed, "layer/link", `to "120777 1:2 to \"old\""`},
		{"target", func() error { return errors.Join(os.Remove(at("layer/link")), os.Symlink("new", at("layer/link"))) }, func() error { return errors.Join(os.Remove(at("layer/link")), os.Symlink("old", at("layer/link"))) }, Changed, "layer/link", `to \"new\"`},
		{"whiteout", func() error { return os.Remove(at("layer/gone")) }, func() error { return unix.Mknod(at("layer/gone"), unix.S_IFCHR, 0) }, Missing, "layer/gone", "is missing"},
		{"new whiteout", func() error { return unix.Mknod(at("layer/other"), unix.S_IFCHR, 0) }, func() error { return os.Remove(at("layer/other")) }, Added, "layer/other", "was added"},
		{"device", func() error {
			return errors.Join(os.Remove(at("layer/gone")), unix.Mknod(at("layer/gone"), unix.S_IFCHR, int(unix.Mkdev(1, 1))))
		}, func() error {
			return errors.Join(os.Remove(at("layer/gone")), unix.Mknod(at("layer/gone"), unix.S_IFCHR, 0))
		}, Changed, "layer/gone", "device 1:1"},
		{"opaque", func() error { return xattr.Remove(at("layer/opaque"), "trusted.overlay.opaque") }, func() error { return xattr.Set(at("layer/opaque"), "trusted.overlay.opaque", []byte("y")) }, Changed, "layer/opaque", "trusted.overlay.opaque"},
		{"folder", func() error { return os.Mkdir(at("layer/more"), 0o755) }, func() error { return os.Remove(at("layer/more")) }, Added, "layer/more", "was added"},
		{"another kind", func() error { return errors.Join(os.Remove(at("layer/fifo")), os.Mkdir(at("layer/fifo"), 0o755)) }, func() error { return errors.Join(os.Remove(at("layer/fifo")), unix.Mkfifo(at("layer/fifo"), 0o600)) }, Changed, "layer/fifo", `to "040755`},
		{"strange name", func() error { return os.Remove(at(strange)) }, func() error { return os.WriteFile(at(strange), nil, 0o644) }, Missing, `layer/strange \xff\x5cname`, "is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.do(); err != nil {
				t.Fatal(err)
			}
			changes, _, err := Audit(t.Context(), cp, false)
			if err != nil || len(changes) != 1 || changes[0].What != c.what || changes[0].Path != c.path || !strings.Contains(changes[0].Text, c.text) {
				t.Errorf("%+v, %v", changes, err)
			}
			if _, err := Verify(t.Context(), cp); !errors.Is(err, engine.ErrRefused) {
				t.Errorf("verify: %v", err)
			}
			if err := c.undo(); err != nil {
				t.Fatal(err)
			}
			if _, err := Verify(t.Context(), cp); err != nil {
				t.Errorf("as it was: %v", err)
			}
		})
	}
}

// What an earlier program sealed has no shapes: it is no damage, and never restored.
func TestShapesOfAnEarlierProgram(t *testing.T) {
	cp := sealed(t)
	cp.Handle.Shapes = nil
	if changes, _, err := Audit(t.Context(), cp, true); err != nil || changes != nil {
		t.Errorf("%+v, %v", changes, err)
	}
	if _, err := Verify(t.Context(), cp); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("verify: %v", err)
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

package qemu

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// What an image boots with is a regular file of that image, whatever its links say.
func TestTakeStaysInTheImage(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(filepath.Join(outside, "secret"), []byte("host"), 0o600))
	must(os.MkdirAll(filepath.Join(dir, "boot/folder"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "boot/vmlinuz-6"), []byte("kernel"), 0o644))
	must(os.Symlink("vmlinuz-6", filepath.Join(dir, "boot/vmlinuz")))
	must(os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "boot/absolute")))
	must(os.Symlink("../../../../../../../../"+outside+"/secret", filepath.Join(dir, "boot/relative")))
	to := filepath.Join(t.TempDir(), "kernel")
	sum, err := take(dir, "/boot/vmlinuz", to)
	have, rerr := os.ReadFile(to)
	if err != nil || rerr != nil || string(have) != "kernel" || sum == "" {
		t.Errorf("%q %q %v %v", sum, have, err, rerr)
	}
	for _, path := range []string{"/boot/absolute", "/boot/relative", "/boot/nothing"} {
		if _, err := take(dir, path, to); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := take(dir, "/boot/folder", to); !errors.Is(err, engine.ErrRefused) {
		t.Errorf("a folder: %v", err)
	}
	// A cache that was written to is no cache.
	b := boot{kernel: to, initramfs: to, Kernel: sum, Initramfs: sum}
	record := filepath.Join(t.TempDir(), "record")
	must(os.WriteFile(record, []byte(`{"kernel": "`+string(sum)+`", "initramfs": "`+string(sum)+`"}`), 0o600))
	if !b.cached(record) {
		t.Error("a sound cache is none")
	}
	must(os.Chmod(to, 0o600))
	must(os.WriteFile(to, []byte("other"), 0o600))
	if b.cached(record) {
		t.Error("a changed kernel was taken from the cache")
	}
}

// Resources that no machine of the arm has are refused, not rounded.
func TestShape(t *testing.T) {
	r := bench.Resources{Vcpus: 2, Memory: "512MiB", Swap: "0", Pids: 100}
	s, err := shapeOf(r, 5000)
	if err != nil || s != (shape{VCPUs: 2, Memory: 512 << 20, Pids: 100, Port: 5000}) {
		t.Errorf("%+v %v", s, err)
	}
	host, err := s.host("512MiB")
	if err != nil || host.Memory != "1048576KiB" || host.Vcpus != 2 || host.Pids != 2+processTasks || host.Swap != "0" {
		t.Errorf("%+v %v", host, err)
	}
	r.Swap = "1GiB"
	if _, err := shapeOf(r, 5000); !errors.Is(err, engine.ErrRefused) || engine.Failure(err).Hint == "" {
		t.Errorf("swap: %v", err)
	}
	back, err := shapeIn(bench.Checkpoint{Facts: s.facts(MethodFile)})
	if err != nil || back != s {
		t.Errorf("%+v %v", back, err)
	}
	for i, f := range s.facts(MethodFile) {
		facts := s.facts(MethodFile)
		facts[i].Known = false
		if _, err := shapeIn(bench.Checkpoint{Facts: facts}); (err == nil) != (f.Name == factMethod) {
			t.Errorf("without %s: %v", f.Name, err)
		}
	}
}

// A disk without the snapshot, or one that is damaged, is no checkpoint.
func TestSnapshotIsReadBack(t *testing.T) {
	ws, _ := workspace(t)
	arm := newArm(t, MethodLoadVM)
	if _, err := arm.groups(ws); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(arm.Release(context.Background()), ws.Release(context.Background())); err != nil {
			t.Error(err)
		}
	})
	disk := filepath.Join(t.TempDir(), "disk.qcow2")
	if err := arm.newDisk(t.Context(), disk, "/nowhere.qcow2", 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := arm.hasSnapshot(t.Context(), disk); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("no snapshot: %v", err)
	}
	if err := os.WriteFile(disk, []byte("no disk"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := arm.hasSnapshot(t.Context(), disk); err == nil {
		t.Error("no disk at all passes")
	}
}

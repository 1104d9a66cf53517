package criu

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
)

// CRIU takes a copied cache, and with it needs no probe.
func TestKdat(t *testing.T) {
	leaksNothing(t)
	littersNothing(t)
	before, err := mountinfo.GetMounts(nil)
	if err != nil {
		t.Fatal(err)
	}
	k, err := tool.Kdat(filepath.Join(t.TempDir(), "cache"))
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Prefill(t.TempDir()); err != nil {
		t.Errorf("prefill without a cache: %v", err)
	}
	start := time.Now()
	if err := k.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("ensure: %s", time.Since(start))
	first, err := os.ReadFile(k.File)
	if err != nil || len(first) < 500 {
		t.Fatalf("cache of %d bytes, %v", len(first), err)
	}
	if err := k.Ensure(t.Context()); err != nil {
		t.Error(err)
	}
	after, err := mountinfo.GetMounts(nil)
	if err != nil || len(after) != len(before) {
		t.Errorf("%d mounts, there were %d, %v", len(after), len(before), err)
	}
	other := tool
	other.SHA256 = strings.Repeat("0", 64)
	if o, err := other.Kdat(filepath.Dir(k.File)); err != nil || o.File == k.File {
		t.Errorf("another program uses the same cache: %v", err)
	}
	if err := k.Save(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("save of nothing: %v", err)
	}

	s := startSlot(t)
	for _, cached := range []bool{true, false} {
		o := DumpOptions{Pid: s.pid, ImagesDir: filepath.Join(s.dir, "i"), WorkDir: filepath.Join(s.dir, "i"), LogLevel: LogInfo}
		makeDirs(t, o.ImagesDir)
		spec := stageSpec{}
		if cached {
			spec.Kdat = k.File
		}
		saved := Kdat{File: filepath.Join(t.TempDir(), "saved")}
		veto := errors.New("seen enough")
		err := Dump(t.Context(), stageCommand(t, spec), o, vetoAt(ScriptPreDump, veto, func(n Notification) error {
			return saved.Save("/proc/" + itoa(n.CRIU) + "/root/run")
		}))
		if !errors.Is(err, veto) {
			t.Fatal(err)
		}
		log, err := os.ReadFile(filepath.Join(o.WorkDir, "dump.log"))
		if err != nil {
			t.Fatal(err)
		}
		if loaded := strings.Contains(string(log), "Loaded kdat cache from /run/criu.kdat"); loaded != cached {
			t.Errorf("loaded %v, cached %v: %s", loaded, cached, log)
		}
		data, err := os.ReadFile(saved.File)
		if err != nil || len(data) != len(first) || cached && !bytes.Equal(data, first) {
			t.Errorf("saved %d bytes of %d, %v", len(data), len(first), err)
		}
	}
}

// What the cache and the log level save on a dump of a small tree that is vetoed at its end.
func BenchmarkDump(b *testing.B) {
	s := startSlot(b)
	kdat := kdatFile(b)
	veto := errors.New("seen enough")
	for _, bench := range []struct {
		name  string
		kdat  string
		level LogLevel
	}{{"errors", kdat, LogErrors}, {"warnings", kdat, LogWarnings}, {"debug", kdat, LogDebug}, {"no-kdat", "", LogWarnings}} {
		b.Run(bench.name, func(b *testing.B) {
			o := DumpOptions{Pid: s.pid, ImagesDir: filepath.Join(s.dir, "i"), WorkDir: filepath.Join(s.dir, "i"), LogLevel: bench.level}
			makeDirs(b, o.ImagesDir)
			for b.Loop() {
				if err := Dump(b.Context(), stageCommand(b, stageSpec{Kdat: bench.kdat}), o, vetoAt(ScriptPostDump, veto, nil)); !errors.Is(err, veto) {
					b.Fatal(err)
				}
			}
		})
	}
}

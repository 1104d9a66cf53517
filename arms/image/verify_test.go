package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func TestVerify(t *testing.T) {
	ctx, cache := context.Background(), t.TempDir()
	path, pin := smallImage(t, smallExt4(t))
	for _, cached := range []bool{false, true} {
		v, err := Verify(ctx, path, pin, cache)
		if err != nil {
			t.Fatal(err)
		}
		if v.Digest.SHA256 != pin || v.Digest.Cached != cached || v.VirtualSize != 4<<20 {
			t.Errorf("got %+v, wanted cached %v", v, cached)
		}
		for _, f := range v.Facts() {
			if !f.Known {
				t.Errorf("fact %s is unknown", f.Name)
			}
		}
	}
}

// Cases 17 and 18, and their kin.
func TestVerifyRefuses(t *testing.T) {
	ctx := context.Background()
	raw := smallExt4(t)
	good, pin := smallImage(t, raw)

	truncated := copyFile(t, good)
	if err := os.Truncate(truncated, 100<<10); err != nil {
		t.Fatal(err)
	}
	flipped := copyFile(t, good)
	flipBit(t, flipped, 70<<10)
	chained := filepath.Join(t.TempDir(), "chained.qcow2")
	tool(t, "qemu-img", "create", "-q", "-f", "qcow2", "-b", good, "-F", "qcow2", chained)
	external, externalPin := smallImage(t, raw, "-o", "data_file="+filepath.Join(t.TempDir(), "elsewhere.raw")+",data_file_raw=on")
	encrypted := filepath.Join(t.TempDir(), "encrypted.qcow2")
	tool(t, "qemu-img", "create", "-q", "-f", "qcow2", "--object", "secret,id=s,data=drums", "-o", "encrypt.format=aes,encrypt.key-secret=s", encrypted, "1M")

	for _, c := range []struct {
		name, path string
		pin        bench.SHA256
		words      []string
	}{
		{"missing", filepath.Join(t.TempDir(), "absent.qcow2"), pin, []string{"absent.qcow2", "not there"}},
		{"truncated", truncated, pin, []string{"not what was pinned", string(pin)}},
		{"bit flipped", flipped, pin, []string{"not what was pinned", string(pin)}},
		{"raw file with its pin", raw, sha256Of(t, raw), []string{"no qcow2"}},
		{"chained, with its pin", chained, sha256Of(t, chained), []string{"backing file", good}},
		{"external data, with its pin", external, externalPin, []string{"external data file", "elsewhere.raw"}},
		{"encrypted, with its pin", encrypted, sha256Of(t, encrypted), []string{"encrypted"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Verify(ctx, c.path, c.pin, t.TempDir())
			wantRefused(t, err, c.words...)
		})
	}
}

func flipBit(t testing.TB, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// A cached digest holds for the same stat identity only: a change that keeps
// size and mtime is seen by its ctime.
func TestCachedDigestIsNotTakenForAChangedFile(t *testing.T) {
	ctx, cache := context.Background(), t.TempDir()
	path, pin := smallImage(t, smallExt4(t))
	if _, err := Verify(ctx, path, pin, cache); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	flipBit(t, path, 70<<10)
	if err := os.Chtimes(path, before.ModTime(), before.ModTime()); err != nil {
		t.Fatal(err)
	}
	_, err = Verify(ctx, path, pin, cache)
	wantRefused(t, err, "not what was pinned")

	// Damaged cache entries are no digests.
	entries, err := filepath.Glob(filepath.Join(cache, "digests", "*.json"))
	if err != nil || len(entries) == 0 {
		t.Fatal("nothing was remembered", err)
	}
	for _, text := range []string{"", "{", `{"sha256":""}`, "null"} {
		for _, entry := range entries {
			if err := os.WriteFile(entry, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err = Verify(ctx, path, pin, cache)
		wantRefused(t, err, "not what was pinned")
	}
}

// qemu-img reads the header of a file only after the pin held.
func TestNothingParsesAnUnpinnedHeader(t *testing.T) {
	path, pin := smallImage(t, smallExt4(t))
	real, err := lookPath("qemu-img")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	marker := filepath.Join(dir, "was-run")
	script := "#!/bin/sh\ntouch " + marker + "\nexec " + real + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "qemu-img"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))

	flipped := copyFile(t, path)
	flipBit(t, flipped, 70<<10)
	_, err = Verify(context.Background(), flipped, pin, t.TempDir())
	wantRefused(t, err)
	if _, err := os.Stat(marker); err == nil {
		t.Fatal("qemu-img was run on a file whose digest is not the pin")
	}
	if _, err := Verify(context.Background(), path, pin, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(marker); err != nil {
		t.Fatal("this test proves nothing: qemu-img is not run at all")
	}
}

func TestDigestOfAFileThatChangesIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "growing")
	if err := os.WriteFile(path, make([]byte, 64<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return
		}
		defer f.Close()
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				f.Write([]byte("x"))
			}
		}
	}()
	_, err := hashes{t.TempDir()}.file(context.Background(), path)
	close(stop)
	<-stopped
	if !errors.Is(err, engine.ErrUnknown) {
		t.Fatalf("got %v, wanted unknown", err)
	}
}

func TestDigestStopsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err := hashes{t.TempDir()}.file(ctx, path)
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 5*time.Second {
		t.Fatalf("got %v after %v", err, time.Since(begin))
	}
}

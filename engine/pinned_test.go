package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

func TestReadPinned(t *testing.T) {
	dir := t.TempDir()
	text := []byte("print(1)\n")
	sum := sha256.Sum256(text)
	pin := bench.SHA256(hex.EncodeToString(sum[:]))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "below"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "below", "check.py"), text, 0o644))
	must(os.WriteFile(filepath.Join(dir, "other.py"), []byte("print(2)\n"), 0o644))
	must(unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	if data, err := ReadPinned(dir, bench.PinnedFile{File: "below/check.py", Sha256: pin}, 9); err != nil || string(data) != string(text) {
		t.Errorf("%q, %v", data, err)
	}
	for file, want := range map[string]string{
		"other.py":             "it has sha256",
		"nowhere.py":           "no such file",
		"below":                "not a regular file",
		"pipe":                 "not a regular file",
		"../" + dir:            "does not lie beside",
		dir + "/below/x":       "does not lie beside",
		"below/../../check.py": "does not lie beside",
	} {
		_, err := ReadPinned(dir, bench.PinnedFile{File: file, Sha256: pin}, 100)
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
	if _, err := ReadPinned(dir, bench.PinnedFile{File: "below/check.py", Sha256: pin}, 8); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "larger than 8 bytes") {
		t.Errorf("%v", err)
	}
}

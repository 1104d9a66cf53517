package hosttool

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A tool is its bytes: another byte is another tool, and the refusal names both.
func TestPinned(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(path, []byte("abc"), 0o755); err != nil {
		t.Fatal(err)
	}
	const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // FIPS 180-4
	have, err := Digest(path)
	if err != nil || have != abc {
		t.Fatalf("%s, %v", have, err)
	}
	for _, pin := range []bench.SHA256{"", abc} {
		if err := Pinned("tool", path, have, pin, "a hint"); err != nil {
			t.Errorf("pin %q: %v", pin, err)
		}
	}
	if err := os.WriteFile(path, []byte("abd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if have, err = Digest(path); err != nil {
		t.Fatal(err)
	}
	err = Pinned("tool", path, have, abc, "a hint")
	var e *engine.Error
	if !errors.Is(err, engine.ErrRefused) || !errors.As(err, &e) || e.Hint != "a hint" || len(e.Findings) != 1 ||
		e.Findings[0].Have != have || e.Findings[0].Want != abc || !strings.Contains(err.Error(), path) {
		t.Errorf("%+v", err)
	}
	if _, err := Digest(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

package checkpoint

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A checkpoint's handle may be anybody's. One that opens is what the schema says, and
// an audit of it passes over no file: what it names and what lies there are looked at.
func FuzzHandle(f *testing.F) {
	cp := sealed(f)
	good, err := os.ReadFile(filepath.Join(cp.Dir, HandleFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	for _, path := range []string{"../a", "/etc/passwd", "images/../../a", "handle.json", "images", ""} {
		h := cp.Handle
		h.Files = append([]bench.SealedFile{}, h.Files...)
		h.Files[0].Path = path
		text, err := json.Marshal(h)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(filepath.Join(cp.Dir, HandleFile), data, 0o600); err != nil {
			t.Fatal(err)
		}
		have, err := Open(cp.Dir)
		if err != nil {
			return
		}
		changes, _, err := Audit(context.Background(), have, true)
		if err != nil {
			t.Fatal(err)
		}
		named := map[string]bool{}
		for _, c := range changes {
			named[c.Path] = true
		}
		for _, s := range have.Handle.Files {
			if !filepath.IsLocal(s.Path) && !named[s.Path] {
				t.Errorf("%q lies outside and passes", s.Path)
			}
		}
	})
}

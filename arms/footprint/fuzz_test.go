package footprint

import (
	"os"
	"path/filepath"
	"testing"
)

func FuzzStatus(f *testing.F) {
	f.Add([]byte("Package: a\nStatus: install ok installed\nVersion: 1\nInstalled-Size: 12\nDepends: b (>= 1) | c:any, d\nProvides: e\n\nPackage: b\nStatus: install ok installed\nDepends: a\n"))
	f.Add([]byte("Package: a\nStatus: install ok installed\nDepends: a | a, ,(:\n cont\n\n\n:\n"))
	file := filepath.Join(f.TempDir(), "status")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := readStatus(file)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, name := range db.closure([]string{"a"}) {
			if _, there := db.installed[name]; !there || seen[name] {
				t.Errorf("%q is not installed, or there twice", name)
			}
			seen[name] = true
		}
	})
}

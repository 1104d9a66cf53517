package sweep

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine/record"
)

// A ledger may be anybody's. Whatever stands in it, what is not refused bears the
// claim of its first line in a component of its own, and leads nowhere else.
func FuzzLedger(f *testing.F) {
	const first = `{"seq":0,"op":"intent","id":0,"kind":"directory","boot":"b","time":"2026-01-01T00:00:00Z","claim":{"path":"/s/work/0123456789ab"}}` + "\n"
	line := func(kind, claim string) string {
		return fmt.Sprintf(`{"seq":1,"op":"intent","id":1,"kind":%q,"boot":"b","time":"2026-01-01T00:00:00Z","claim":%s}`+"\n", kind, claim)
	}
	for _, seed := range []string{
		"", first, first + line("mount", `{"path":"/s/work/0123456789ab/../../etc"}`), first + line("cgroup", `{"path":"/sys/fs/cgroup/drums-0123456789ab"}`),
		first + line("process", `{"cgroup":"/drums-0123456789abc"}`), first + line("file", `{"path":"/s/work/0123456789ab\u0000/etc"}`), first + line("loop", `{"path":"/etc"}`),
		first + line("file", `{"path":"/s/work/0123456789ab/x"}`) + `{"seq":2,"op":"bind","id":1,"kind":"file","claim":{"path":"/s/work/0123456789ab/x"},"identity":{"dev":"-1","ino":"1e9"}}` + "\n",
	} {
		f.Add([]byte(seed))
	}
	ledger := filepath.Join(f.TempDir(), record.LedgerFile)
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(ledger, data, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := readClaim(ledger)
		if err != nil || c.id == "" {
			return
		}
		if filepath.Base(c.work) != c.id || c.in("/s") == nil && filepath.Dir(c.work) != "/s/work" {
			t.Errorf("claim %+v", c)
		}
		open, _, err := record.ReadLedger(ledger)
		if err != nil {
			return
		}
		for _, o := range open {
			bound(o)
			if c.refuses(o) != "" {
				continue
			}
			path := o.Claim.Path
			switch {
			case o.Kind == "process":
				path = o.Claim.Cgroup
			case o.Kind == "link", o.Kind == "export" && strings.HasPrefix(path, "/dev/nbd"), o.Kind == "loop" && path == "drums-"+c.id:
				continue // they are known by their identity
			}
			if filepath.Clean(path) != path || !strings.Contains(path, c.id) || strings.Contains(path, "..") && strings.Contains(path, "/../") {
				t.Errorf("%s %q passes for the run's %s", o.Kind, path, c.id)
			}
		}
	})
}

package steps

import (
	"errors"
	"path"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// What a program in a slot prints, and where the links that it made lead: each is read
// to an end, and nothing that it says makes a checker's files agree with what the host sees of them.
func FuzzGuestText(f *testing.F) {
	f.Add("0123 memory\nblind memory no right\n", "/usr/bin/python3", "/usr/bin/python3.11")
	f.Add("x\n", "/a/b", "/a/../a/b")
	f.Add("\n \n", "/a", "a")
	f.Add("ModuleNotFoundError: No module named 'x'\n", "/", "")
	f.Fuzz(func(t *testing.T, text, file, target string) {
		if _, err := parseSeen(text); err != nil && !errors.Is(err, engine.ErrUnknown) {
			t.Error(err)
		}
		substitutionShown(guest.Result{Stderr: []byte(text)}, bench.Checker{Substitutes: []bench.Substitute{{What: target}}})
		file = path.Clean("/" + strings.ReplaceAll(file, "\x00", ""))
		h := newSeen(bench.StateManifest{Entries: []bench.StateEntry{
			{Path: file, Type: "symlink", Target: target}, {Path: path.Join(file, "x"), Type: "file", Sha256: "1"}, {Path: path.Dir(file), Type: "directory", Opaque: true},
		}, Exclude: []string{"/proc"}})
		p := h.resolve(path.Join(file, text))
		if !path.IsAbs(p.at) {
			t.Errorf("%q leads to %q", file, p.at)
		}
		if target == "" {
			return
		}
		// The host sees a link there. A guest server that says it is a file with any digest is found out.
		found, _ := h.disagree([]guest.ClosureEntry{{Path: file, Kind: proto.EntryFile, Sha256: "2"}})
		if len(found) == 0 && !within(file, "/proc") && file != "/" {
			t.Errorf("%q, a link to %q, passes for a file", file, target)
		}
	})
}

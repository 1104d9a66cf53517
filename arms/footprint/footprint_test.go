package footprint

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

const status = `Package: runner
Status: install ok installed
Installed-Size: 100
Version: 1.1-1
Pre-Depends: base (>= 1)
Depends: lib:any (>= 2), mailer | absent, gone
Description: runs
 Package: not a field

Package: lib
Status: install ok installed
Installed-Size: 20
Version: 2

Package: base
Status: install ok installed
Installed-Size: 3
Version: 5
Depends: lib

Package: postfix
Status: install ok installed
Installed-Size: 7
Version: 9
Provides: mailer, other (= 3)

Package: gone
Status: deinstall ok config-files
Installed-Size: 1000
Version: 9

Package: foreign
Status: install ok installed
Installed-Size: 1000
Version: 9
`

// A footprint is what the files and dpkg's database say, with all dependencies, of
// the packages that are really there; what is not known is named.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	program, copy := filepath.Join(dir, "usr/bin/runner"), filepath.Join(dir, "copy")
	for path, text := range map[string]string{
		"dpkg/status": status, "dpkg/info/runner:amd64.list": "/.\n/etc\n" + program + "\n", "dpkg/info/lib.list": "/.\n",
		"usr/bin/runner": "12345", "copy/bin/tool": "1", "copy/lib/one.so": "2",
	} {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	h := Host{DPKG: filepath.Join(dir, "dpkg"), Effective: func() (uint64, error) { return 1 << 21, nil }}
	programs := []Program{{Path: program}, {Path: filepath.Join(copy, "bin/tool"), Folder: copy, Packages: []string{"tool=1"}}}
	got := h.Read(programs, []Need{{Name: "CAP_SYS_ADMIN", Why: "a", Capability: 21}, {Name: "CAP_KILL", Why: "b", Capability: 5}, {Name: "/dev/none", Why: "c", Device: filepath.Join(dir, "none")}})
	if got.Programs[1].Bytes == "" || got.Programs[1].Bytes == "0" {
		t.Errorf("the copy has %q bytes", got.Programs[1].Bytes)
	}
	got.Programs[1].Bytes = ""
	want := bench.Footprint{
		Programs:   []bench.FootprintProgram{{Path: program, Bytes: "5", Package: "runner"}, {Path: programs[1].Path, Copied: []string{"tool=1"}}},
		Packages:   []string{"base=5", "lib=2", "postfix=9", "runner=1.1-1"},
		Installed:  "133120", // 130 KiB
		Privileges: []bench.Privilege{{Name: "CAP_SYS_ADMIN", Why: "a", Held: true}, {Name: "CAP_KILL", Why: "b"}, {Name: "/dev/none", Why: "c"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	h.DPKG, h.Effective = filepath.Join(dir, "none"), func() (uint64, error) { return 0, errors.New("no proc") }
	got = h.Read(append(programs, Program{Path: filepath.Join(dir, "missing")}), nil)
	for _, what := range []string{"packages", "privileges", filepath.Join(dir, "missing")} {
		if got.Unknown[what] == "" {
			t.Errorf("%s is not said to be unknown: %+v", what, got)
		}
	}
	if got.Installed != "" || len(got.Programs) != 2 {
		t.Errorf("%+v", got)
	}
}

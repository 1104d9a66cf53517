package qemu

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/arms/qmp"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// pretend is a connection to a QEMU of some version that has these capabilities
// and knows no command but those of the negotiation.
func pretend(t *testing.T, major int, capabilities ...string) *qmp.Monitor {
	t.Helper()
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		out := json.NewEncoder(theirs)
		version := map[string]any{"qemu": map[string]int{"major": major}, "package": ""}
		if out.Encode(map[string]any{"QMP": map[string]any{"version": version, "capabilities": []string{}}}) != nil {
			return
		}
		for in := bufio.NewScanner(theirs); in.Scan(); {
			var q struct{ Execute, ID string }
			if json.Unmarshal(in.Bytes(), &q) != nil {
				return
			}
			reply := map[string]any{"id": q.ID}
			switch q.Execute {
			case "qmp_capabilities":
				reply["return"] = map[string]any{}
			case "query-migrate-capabilities":
				list := []map[string]any{}
				for _, c := range capabilities {
					list = append(list, map[string]any{"capability": c, "state": false})
				}
				reply["return"] = list
			default:
				reply["error"] = map[string]string{"class": "CommandNotFound", "desc": q.Execute}
			}
			if out.Encode(reply) != nil {
				return
			}
		}
	}()
	m, err := qmp.Open(t.Context(), ours, qmp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Disconnect() })
	return m
}

// What QEMU can save with is what it says, not what its version lets one think.
func TestCapabilities(t *testing.T) {
	for _, c := range []struct {
		name    string
		major   int
		has     []string
		method  string
		refused bool
		shared  string
		mapped  string
	}{
		{"old", 7, []string{"xbzrle", ignoreShared}, MethodFile, false, "true", "false"},
		{"new", 9, []string{ignoreShared, mappedRAM}, MethodFile, false, "true", "true"},
		{"new in name only", 10, []string{ignoreShared}, MethodFile, false, "true", "false"},
		{"old with a patch", 7, []string{mappedRAM, ignoreShared}, MethodFile, false, "true", "true"},
		{"no shared memory", 10, []string{mappedRAM}, MethodFile, true, "", ""},
		{"not needed", 10, []string{mappedRAM}, MethodLoadVM, false, "false", "true"},
		{"says nothing", 10, nil, MethodFile, true, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			can, err := saving(t.Context(), pretend(t, c.major, c.has...), c.method)
			if c.refused {
				if !errors.Is(err, engine.ErrRefused) || engine.Failure(err).Hint == "" {
					t.Errorf("%v %+v", err, can)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			facts := can.facts()
			for name, want := range map[string]string{ignoreShared: c.shared, mappedRAM: c.mapped} {
				if !slices.ContainsFunc(facts, func(f bench.Fact) bool { return f.Name == "qemu.capability."+name && f.Known && f.Value == want }) {
					t.Errorf("%s is not %s in %+v", name, want, facts)
				}
			}
		})
	}
	m := pretend(t, 9, ignoreShared)
	m.Disconnect()
	if _, err := saving(t.Context(), m, MethodLoadVM); !errors.Is(err, engine.ErrDead) {
		t.Errorf("a QEMU that is gone: %v", err)
	}
}

// QEMUs that are none: programs that say which version they are, and nothing else.
func pretender(t *testing.T, version string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	script := "#!/bin/sh\necho 'QEMU emulator version " + version + "'\n"
	if version == "" {
		script = "#!/bin/sh\nexit 1\n"
	}
	if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Of the host's QEMUs the newest is used that the arm knows, and a manifest may
// pin another; what is not used is told, with the reason.
func TestChoice(t *testing.T) {
	t.Setenv(Variable, "")
	dirs := map[string]string{}
	sums := map[string]bench.SHA256{}
	for name, version := range map[string]string{
		"old": "7.1.0", "host": "7.2.22 (Debian 1:7.2+dfsg-7)", "ten": "10.0.2", "nine": "9.2.4", "ten again": "10.0.2 (of mine)", "broken": "",
	} {
		dirs[name] = pretender(t, version)
		sum, err := digest(filepath.Join(dirs[name], program))
		if err != nil {
			t.Fatal(err)
		}
		sums[name] = sum
	}
	for _, c := range []struct {
		name   string
		path   []string
		pin    bench.SHA256
		want   string
		others []string
	}{
		{"one", []string{"host"}, "", "host", nil},
		{"newest", []string{"host", "ten", "nine"}, "", "ten", []string{"host", "nine"}},
		{"numbers, not letters", []string{"nine", "ten"}, "", "ten", []string{"nine"}},
		{"of equals the first", []string{"ten again", "ten"}, "", "ten again", []string{"ten"}},
		{"twice the same", []string{"ten", "ten"}, "", "ten", nil},
		{"broken", []string{"broken", "host"}, "", "host", []string{"broken"}},
		{"too old", []string{"old", "host"}, "", "host", []string{"old"}},
		{"pinned", []string{"host", "ten"}, sums["host"], "host", []string{"ten"}},
		{"none of this pin", []string{"host", "ten"}, sums["nine"], "", nil},
		{"only too old", []string{"old"}, "", "", nil},
		{"only broken", []string{"broken"}, "", "", nil},
		{"none", nil, "", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := []string{"relative", t.TempDir()}
			for _, name := range c.path {
				path = append(path, dirs[name])
			}
			t.Setenv("PATH", strings.Join(path, ":"))
			have, err := Locate(t.Context(), c.pin)
			if c.want == "" {
				if !errors.Is(err, engine.ErrRefused) || engine.Failure(err).Hint == "" {
					t.Errorf("%+v %v", have, err)
				}
				return
			}
			if err != nil || have.SHA256 != string(sums[c.want]) || filepath.Dir(have.Path) != dirs[c.want] || have.Origin != "PATH" {
				t.Errorf("%+v %v, want that in %s", have, err, dirs[c.want])
			}
			if len(have.Others) != len(c.others) {
				t.Errorf("others: %q", have.Others)
			}
			for _, name := range c.others {
				if !slices.ContainsFunc(have.Others, func(o string) bool { return strings.HasPrefix(o, dirs[name]) && strings.Contains(o, ": ") }) {
					t.Errorf("%s is not among %q", name, have.Others)
				}
			}
		})
	}
	t.Setenv("PATH", dirs["ten"])
	t.Setenv(Variable, filepath.Join(dirs["host"], program))
	if have, err := Locate(t.Context(), ""); err != nil || have.Origin != Variable || have.SHA256 != string(sums["host"]) {
		t.Errorf("the operator's: %+v %v", have, err)
	}
	if have, err := Locate(t.Context(), sums["ten"]); !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), string(sums["host"])) {
		t.Errorf("the operator's is not what is pinned: %+v %v", have, err)
	}
}

func TestSince(t *testing.T) {
	for _, c := range []struct {
		version string
		want    bool
	}{
		{"9.0.0", true}, {"10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)", true}, {"9.0", true}, {"8.2.50", false}, {"7.2.22 (Debian)", false}, {"", false}, {"x9.0", false},
	} {
		if have := (Tool{Version: c.version}).since(9, 0); have != c.want {
			t.Errorf("%q since 9.0: %v", c.version, have)
		}
	}
}

// An operator's QEMU comes before the host's, and is never replaced by it.
func TestLocate(t *testing.T) {
	host, _ := located(t)
	dir := t.TempDir()
	for _, name := range []string{"operators", "qemu-img"} {
		if err := os.Symlink(host.Path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if host.Origin != "PATH" {
		t.Errorf("%+v", host)
	}
	t.Setenv(Variable, filepath.Join(dir, "operators"))
	own, err := Locate(t.Context(), "")
	if err != nil || own.Origin != Variable || own.Path != host.Path || own.SHA256 != host.SHA256 {
		t.Errorf("%+v %v", own, err)
	}
	if !slices.ContainsFunc(own.Facts(), func(f bench.Fact) bool { return f.Name == factOrigin && f.Value == Variable }) {
		t.Errorf("%+v", own.Facts())
	}
	for _, beside := range []bool{true, false} { // of the same version, where it is there
		have, err := Tool{Path: filepath.Join(dir, "operators")}.image()
		if err != nil || (filepath.Dir(have) == dir) != beside {
			t.Errorf("qemu-img beside QEMU %v: %s %v", beside, have, err)
		}
		if err := os.RemoveAll(filepath.Join(dir, "qemu-img")); err != nil {
			t.Fatal(err)
		}
	}
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"qemu-system-x86_64", "./operators", filepath.Join(dir, "nothing"), plain, "/bin/true"} {
		t.Setenv(Variable, bad)
		if _, err := Locate(t.Context(), ""); !errors.Is(err, engine.ErrRefused) || engine.Failure(err).Hint == "" || !strings.Contains(err.Error(), filepath.Base(bad)) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

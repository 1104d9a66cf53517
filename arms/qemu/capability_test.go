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
			facts, err := saving(t.Context(), pretend(t, c.major, c.has...), c.method)
			if c.refused {
				if !errors.Is(err, engine.ErrRefused) || engine.Failure(err).Hint == "" {
					t.Errorf("%v %+v", err, facts)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
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
	own, err := Locate(t.Context())
	if err != nil || own.Origin != Variable || own.Path != host.Path || own.SHA256 != host.SHA256 {
		t.Errorf("%+v %v", own, err)
	}
	if !slices.ContainsFunc(own.Facts(), func(f bench.Fact) bool { return f.Name == factOrigin && f.Value == Variable }) {
		t.Errorf("%+v", own.Facts())
	}
	for origin, beside := range map[string]bool{Variable: true, "PATH": false} {
		have, err := Tool{Path: filepath.Join(dir, "operators"), Origin: origin}.image()
		if err != nil || (filepath.Dir(have) == dir) != beside {
			t.Errorf("qemu-img of an operator's %v: %s %v", beside, have, err)
		}
	}
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"qemu-system-x86_64", "./operators", filepath.Join(dir, "nothing"), plain, "/bin/true"} {
		t.Setenv(Variable, bad)
		if _, err := Locate(t.Context()); !errors.Is(err, engine.ErrRefused) || engine.Failure(err).Hint == "" || !strings.Contains(err.Error(), filepath.Base(bad)) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func systemTree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// The digest is that of the list which dpkg-query itself makes, on this host.
func TestPackagesAsDpkgSays(t *testing.T) {
	out, err := exec.Command("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package} ${Architecture} ${Version}\n").Output()
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for line := range strings.Lines(string(out)) {
		if p, ok := strings.CutPrefix(line, "installed "); ok {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	sum := sha256.Sum256([]byte(strings.Join(list, "")))
	s := readSystem("/")
	if !strings.HasSuffix(s.Packages.Value, " packages, sha256 "+hex.EncodeToString(sum[:])) {
		t.Errorf("%+v, dpkg-query lists %d packages with sha256 %x", s.Packages, len(list), sum)
	}
	release, err := exec.Command("uname", "-r").Output()
	if err != nil || s.Kernel.Value != strings.TrimSpace(string(release)) {
		t.Errorf("kernel %+v, uname says %s, %v", s.Kernel, release, err)
	}
}

func TestSystem(t *testing.T) {
	const two = "Package: b\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2\n\n" +
		"Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n\n" +
		"Package: a\nStatus: install ok installed\nArchitecture: all\nVersion: 1:1-1\nDescription: x\n Version: not a field\n"
	sum := sha256.Sum256([]byte("a all 1:1-1\nb amd64 2\n"))
	want := "2 packages, sha256 " + hex.EncodeToString(sum[:])
	for _, c := range []struct {
		name, os, packages string
		files              map[string]string
	}{
		{"dpkg", "A System 1", want, map[string]string{"etc/os-release": "ID=a\nPRETTY_NAME=\"A System 1\"\n", "var/lib/dpkg/status": two}},
		{"status.d", "B", want, map[string]string{
			"usr/lib/os-release": "PRETTY_NAME=B\n", "var/lib/dpkg/status.d/a": "Package: a\nArchitecture: all\nVersion: 1:1-1\n",
			"var/lib/dpkg/status.d/a.md5sums": "0 x\n", "var/lib/dpkg/status.d/b": "Package: b\nArchitecture: amd64\nVersion: 2\n",
		}},
		{"nothing", "", "", nil},
		{"no name", "", "", map[string]string{"etc/os-release": "ID=a\n", "var/lib/dpkg/status": "Status: install ok installed\nVersion: 2\n"}},
		{"none installed", "", "", map[string]string{"etc/os-release": "PRETTY_NAME=\n", "var/lib/dpkg/status": ""}},
		{"long name", "", "", map[string]string{"etc/os-release": "PRETTY_NAME=" + strings.Repeat("x", 600) + "\n"}},
	} {
		s := readSystem(systemTree(t, c.files))
		for what, r := range map[string]struct{ have, unknown, want string }{
			"os": {s.OS.Value, s.OS.Unknown, c.os}, "packages": {s.Packages.Value, s.Packages.Unknown, c.packages},
		} {
			if r.have != r.want || (r.unknown == "") != (r.want != "") {
				t.Errorf("%s: %s is %q, unknown %q, want %q", c.name, what, r.have, r.unknown, r.want)
			}
		}
	}
}

// A change of one version in the guest is another digest.
func TestPackagesDiffer(t *testing.T) {
	one := readSystem(systemTree(t, map[string]string{"var/lib/dpkg/status": "Package: a\nStatus: install ok installed\nVersion: 1\n"}))
	two := readSystem(systemTree(t, map[string]string{"var/lib/dpkg/status": "Package: a\nStatus: install ok installed\nVersion: 2\n"}))
	if one.Packages.Value == "" || one.Packages.Value == two.Packages.Value {
		t.Errorf("%+v and %+v", one.Packages, two.Packages)
	}
}

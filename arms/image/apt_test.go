package image

import (
	"strings"
	"testing"
)

const someTargets = `Created-By: Packages
Origin: Vendor
Label: Debian
Release: bookworm
Repo-URI: http://vendor.invalid/debian/

Created-By: DEP-11
Origin: Debian
Label: Debian
Release: bookworm
Repo-URI: http://wrong.invalid/debian/

Created-By: Packages
Origin: Debian
Label: Debian
Release: bookworm
Repo-URI: http://archive.invalid/debian/

Created-By: Packages
Origin: Debian
Label: Debian
Release: bookworm-updates
Repo-URI: http://archive.invalid/debian/

Created-By: Packages
Origin: Debian
Label: Debian-Security
Release: bookworm-security
Repo-URI: http://security.invalid/
`

func TestDebianSources(t *testing.T) {
	for suite, want := range map[string]string{
		"bookworm": "http://archive.invalid/debian/ bookworm main|http://archive.invalid/debian/ bookworm-updates main|http://security.invalid/ bookworm-security main",
		"sid":      "http://archive.invalid/debian/ sid main",
	} {
		sources, err := debianSources([]byte(someTargets), suite)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sources {
			if !strings.HasPrefix(s, "deb [signed-by="+keyring+"] ") {
				t.Errorf("%q is not checked against the keyring", s)
			}
		}
		have := strings.ReplaceAll(strings.Join(sources, "|"), "deb [signed-by="+keyring+"] ", "")
		if have != want {
			t.Errorf("%s: %s, wanted %s", suite, have, want)
		}
	}
	_, err := debianSources([]byte(strings.ReplaceAll(someTargets, "Origin: Debian", "Origin: Other")), "bookworm")
	wantRefused(t, err, "knows none")
}

// What lowers the check of signatures never reaches a build.
func TestReachOptions(t *testing.T) {
	have := reachOptions([]byte(`Acquire "";
Acquire::http "";
Acquire::http::Proxy "http://proxy.invalid:3142";
Acquire::Check-Valid-Until "false";
Acquire::AllowInsecureRepositories "true";
Acquire::https::Verify-Peer "true";
APT::Get::AllowUnauthenticated "true";
DPkg::Post-Invoke:: "rm -rf /";
`))
	want := `Acquire::http::Proxy "http://proxy.invalid:3142";|Acquire::Check-Valid-Until "false";|Acquire::https::Verify-Peer "true";`
	if got := strings.Join(have, "|"); got != want {
		t.Errorf("got %s\nwanted %s", got, want)
	}
}

func TestParseURIs(t *testing.T) {
	sha := strings.Repeat("a", 64)
	packages, err := parseURIs([]byte("'http://x/pool/z.deb' zlib1g_1%3a1.2.13_amd64.deb 86716 SHA256:" + sha + "\n'http://x/b.deb' bash_5.2-2_amd64.deb 1 SHA256:" + sha + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := Package{Name: "zlib1g", Version: "1:1.2.13", Arch: "amd64", SHA256: sha, Size: 86716}
	if len(packages) != 2 || packages[0].Name != "bash" || packages[1] != want {
		t.Errorf("got %+v", packages)
	}
	for _, bad := range []string{"", "'http://x/b.deb' bash_5.2-2_amd64.deb 1 MD5Sum:abc\n", "E: something\n"} {
		if packages, err := parseURIs([]byte(bad)); err == nil {
			t.Errorf("%q gave %v", bad, packages)
		}
	}
}

func TestRootfsKey(t *testing.T) {
	packages := []Package{{Name: "a", Version: "1"}}
	base, err := rootfsKey("bookworm", 1, packages, "m 1")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{base: true}
	for _, f := range []func() (string, error){
		func() (string, error) { return rootfsKey("trixie", 1, packages, "m 1") },
		func() (string, error) { return rootfsKey("bookworm", 2, packages, "m 1") },
		func() (string, error) {
			return rootfsKey("bookworm", 1, []Package{{Name: "a", Version: "2"}}, "m 1")
		},
		func() (string, error) { return rootfsKey("bookworm", 1, packages, "m 2") },
	} {
		key, err := f()
		if err != nil || seen[key] {
			t.Errorf("key %s again, %v", key, err)
		}
		seen[key] = true
	}
}

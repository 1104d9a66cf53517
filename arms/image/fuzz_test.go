package image

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// What apt, dpkg and e2fsprogs print has names of packages and files in it that an archive or an image chose.
func FuzzToolText(f *testing.F) {
	for _, seed := range []string{
		"'http://a/b.deb' bash_5.2%3a1_amd64.deb 12 SHA256:0000000000000000000000000000000000000000000000000000000000000000\n",
		"Created-By: Packages\nOrigin: Debian\nLabel: Debian\nRepo-URI: http://a/\nRelease: x-updates\n\nCreated-By: Packages\nOrigin: Debian\nLabel: Debian-Security\nRepo-URI: http://b/",
		`Acquire::http::Proxy "http://a";` + "\n", "Inode count:              16\n  Free inodes: 12-16, 11\n", " atime: 0x00000001:00000000 -- x\n",
		"package pins\n\ntiny: \"0000\"\n\"a b\": #x & \"1\"\n", `{"format":"qcow2","virtual-size":1,"format-specific":{"type":"qcow2","data":{}}}`,
		"Inode count: 99999999999999999999\n", "Inode count: 9\n  Free inodes: 3-1\n",
	} {
		f.Add([]byte(seed))
	}
	file := filepath.Join(f.TempDir(), "pins.cue")
	f.Fuzz(func(t *testing.T, text []byte) {
		packages, err := parseURIs(text)
		for _, p := range packages {
			if err == nil && (p.Name == "" || p.Size < 0 || len(p.SHA256) != 64) {
				t.Errorf("%+v", p)
			}
		}
		debianSources(text, "bookworm")
		reachOptions(text)
		checkTimes(text, 1, 1)
		if m := inodeCount.FindSubmatch(text); m == nil || len(m[1]) < 6 { // a large file system has large lists
			usedInodes(text)
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		ReadPins(file)
		var info qcow2Info
		if json.Unmarshal(text, &info) == nil && info.standsAlone("a") == nil && (info.Backing != "" || info.VirtualSize <= 0) {
			t.Errorf("%+v", info)
		}
	})
}

// A disk is anybody's before its digest is compared with a pin: `image inspect` reads the table of one that has none.
func FuzzDisk(f *testing.F) {
	mbr := make([]byte, 4096)
	mbr[0x1be+4] = 0x83
	binary.LittleEndian.PutUint32(mbr[0x1be+8:], 1)
	binary.LittleEndian.PutUint32(mbr[0x1be+12:], 4)
	mbr[510], mbr[511] = 0x55, 0xaa
	f.Add(mbr)
	gpt := append([]byte{}, mbr...)
	gpt[0x1be+4] = 0xee
	copy(gpt[512:], "EFI PART\x00\x00\x01\x00\x5c\x00\x00\x00")
	binary.LittleEndian.PutUint64(gpt[512+72:], 2)
	binary.LittleEndian.PutUint32(gpt[512+80:], 128)
	binary.LittleEndian.PutUint32(gpt[512+84:], 128)
	f.Add(gpt)
	ext := make([]byte, 0x500)
	ext[0x438], ext[0x439] = 0x53, 0xef
	f.Add(ext)
	file := filepath.Join(f.TempDir(), "disk")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		disk, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer disk.Close()
		for _, number := range []int64{0, 1, 2} {
			partitionAt(disk, number)
		}
	})
}

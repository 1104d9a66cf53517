package observe

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
	"testing"
)

// The kernel's text is about things that a guest named: its files, its programs, its mounts.
func FuzzProcText(f *testing.F) {
	for _, seed := range []string{
		locksText, statusText, "pos:\t17\nflags:\t02100002\nmnt_id:\t29\nlock:\t1: POSIX  ADVISORY  READ 812 00:2d:41 128 128\n",
		"22 28 0:21 / /proc rw,nosuid shared:7 master:3 - proc proc rw\n28 1 254:1 / / rw - ext4 /dev/a\\040b rw,x=\\054\n",
		"2 1 0:1 / / rw - a b rw\n1 2 0:1 / / rw - a b rw\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		locks, err := ParseLocks(strings.NewReader(text))
		if err != nil && locks != nil {
			t.Error("locks beside an error")
		}
		info, err := ParseFDInfo(strings.NewReader(text))
		if err == nil {
			locks = append(locks, info.Locks...)
		}
		for _, l := range locks {
			if l.Start < 0 || l.End < -1 || l.End >= 0 && l.End < l.Start || l.Pid < -1 {
				t.Errorf("%+v", l)
			}
		}
		if s, err := ParseStatus(strings.NewReader(text)); err == nil && (s.State == 0 || len(s.NSpid) == 0 || len(s.NSpid) != len(s.NSsid)) {
			t.Errorf("%+v", s)
		}
		mounts, err := ParseMounts(strings.NewReader(text))
		if (err == nil) != (len(mounts) > 0) {
			t.Errorf("%d mounts and %v", len(mounts), err)
		}
		Normalise(mounts)
	})
}

func FuzzUnixDiag(f *testing.F) {
	f.Add(unixDiag(1, 1, 5, []byte{unixDiagPeer}, []byte{6, 0, 0, 0}, []byte{unixDiagName}, []byte("\x00bus")))
	f.Add(unixDiag(2, 7, 5, []byte{unixDiagIcons}, []byte{6, 0, 0, 0, 7, 0, 0, 0}))
	f.Fuzz(func(t *testing.T, msg []byte) { ParseUnixDiag(msg) })
}

// The listing lies in the guest's own file system. It is read path by path, in order, to its end or its damage.
func FuzzListing(f *testing.F) {
	for _, seed := range []string{
		listingVersion + "\x00" + "1700000000\x00/\x00directory 755 0 0 \x00{\"path\":\"/\"}\x00/a\x00file 644 0 0 1\x00{\"path\":\"/a\",\"type\":\"file\"}\x00",
		listingVersion + "\x00-1\x00", listingVersion + "\x001\x00/\x00\x00\x00/", "", "x",
	} {
		f.Add([]byte(seed), true)
	}
	f.Add([]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"), false)
	f.Fuzz(func(t *testing.T, data []byte, pack bool) {
		if pack {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			fmt.Fprintf(z, "%s", data)
			z.Close()
			data = b.Bytes()
		}
		l, err := openListing(bytes.NewReader(data))
		for last := ""; err == nil && l.next != nil; err = l.advance() {
			if last != "" && comparePaths(last, l.next.path) >= 0 {
				t.Fatalf("%q after %q", l.next.path, last)
			}
			last = l.next.path
			l.next.entry()
		}
	})
}

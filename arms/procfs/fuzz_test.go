package procfs

import (
	"bytes"
	"testing"
)

// A mapping's line has the guest's name of a file behind it.
func FuzzProcText(f *testing.F) {
	f.Add([]byte("Pss:  12 kB\nPrivate_Dirty: 4 kB\nPrivate_Hugetlb: 0 kB\n"))
	f.Add([]byte("7f00-7f01 r-xp 00000000 fe:01 8198  /usr/lib/a b (deleted)\n7f02-7f03 rw-s 00000000 00:05 5 /memfd:x\n7f04-7f05 rw-p 00000000 00:00 0 \n"))
	f.Add([]byte("7f02-7f04 r-xp 00000000 00:00 0 [vdso]\nProtectionKey:         3\n"))
	f.Add([]byte("1 1 1 1 1 1"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := parseRollup(text); err == nil && (r.pss < 0 || r.privateDirty < 0 || r.privateHuge < 0) {
			t.Errorf("%+v", r)
		}
		if keyed, err := parseKeys(bytes.NewReader(text)); err == nil && len(keyed) > bytes.Count(text, []byte("ProtectionKey:")) {
			t.Errorf("%q", keyed)
		}
		all, err := parseMappings(bytes.NewReader(text))
		for _, m := range all {
			if err == nil && (m.span == "" || m.ino == "0" && m.dev == "00:00") {
				t.Errorf("%+v", m)
			}
		}
	})
}

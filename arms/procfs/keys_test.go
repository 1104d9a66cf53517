package procfs

import (
	"slices"
	"strings"
	"testing"
)

func TestParseKeys(t *testing.T) {
	const smaps = `7f00-7f01 rw-p 00000000 00:00 0
Size:                  4 kB
ProtectionKey:         0
VmFlags: rd wr mr mw me ac
7f02-7f04 r-xp 00000000 00:00 0                          [vdso]
ProtectionKey:         3
VmFlags: rd ex
7f05-7f06 --xp 00000000 fe:01 8198                       /usr/lib/a b
ProtectionKey:         1
7f07-7f08 rw-p 00000000 00:00 0
ProtectionKey:        15
`
	got, err := parseKeys(strings.NewReader(smaps))
	if want := []string{"7f02-7f04", "7f07-7f08"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q: of what is only executed the key is the kernel's own", got, err, want)
	}
}

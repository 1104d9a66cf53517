package image

import (
	"fmt"
	"slices"
	"testing"
)

func TestUsedInodes(t *testing.T) {
	used, err := usedInodes([]byte(`Inode count:              32
Free inodes:              17
Group 0: (Blocks 0-1)
  Free blocks: 1-2
  Free inodes: 14, 16-20
Group 1: (Blocks 2-3)
  Free inodes: 22-32
Group 2: (Blocks 4-5)
  Free inodes: 
`))
	if want := []int{2, 11, 12, 13, 15, 21}; err != nil || !slices.Equal(used, want) {
		t.Errorf("got %v, %v, wanted %v", used, err, want)
	}
	for _, bad := range []string{"", "Inode count: 32\n", "Inode count: 8\n  Free inodes: 3-9\n", "Inode count: 8\n  Free inodes: x\n"} {
		if used, err := usedInodes([]byte(bad)); err == nil {
			t.Errorf("%q gave %v", bad, used)
		}
	}
}

// The read-back of the times sees one that debugfs did not set, and a command that it left out.
func TestCheckTimes(t *testing.T) {
	one := func(a, c, cr string) string {
		return fmt.Sprintf(" ctime: 0x%s:00000000 -- Thu\n atime: 0x%s:00000000 -- Thu\n mtime: 0x11111111:00000000 -- Thu\ncrtime: 0x%s:00000000 -- Thu\n", c, a, cr)
	}
	const e = "6955b900"
	good := one(e, e, e)
	if err := checkTimes([]byte(good+good), 2, 0x6955b900); err != nil {
		t.Error(err)
	}
	for name, text := range map[string]string{
		"wrong ctime":  good + one(e, "6955b901", e),
		"wrong atime":  good + one("00000000", e, e),
		"wrong crtime": good + one(e, e, "6955b8ff"),
		"one missing":  good,
		"nothing":      "",
	} {
		if err := checkTimes([]byte(text), 2, 0x6955b900); err == nil {
			t.Errorf("%s passed", name)
		}
	}
}

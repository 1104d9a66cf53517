package netprobe

import (
	"context"
	"os"
	"slices"
	"testing"
)

func TestNeeds(t *testing.T) {
	files, err := needs(context.Background(), sleeper)
	must(t, err)
	if !slices.Contains(files, sleeper) {
		t.Errorf("%q lacks the program", files)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s is no file: %v", file, err)
		}
	}
	have := listed([]byte("\tlinux-vdso.so.1 (0x00007ff)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)\n\t/lib64/ld.so.2 (0x00007f)\n"))
	if !slices.Equal(have, []string{"/lib/x/libc.so.6", "/lib64/ld.so.2"}) {
		t.Errorf("%q", have)
	}
	if _, err := needs(context.Background(), "/etc/passwd"); err == nil {
		t.Error("a file that is no program")
	}
}

package doctor

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Where programs are looked for: CRIU's own PATH (arms/criu), and that of everything else.
var (
	criuDirs    = []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	programDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
)

// programs that are started, by what they are for.
var programs = []struct {
	subject  string
	severity string
	// so is what does not work without them.
	so   string
	dirs []string
	// names with the package that has each.
	names [][2]string
}{
	{"tools", Lack, "criu cannot dump or restore a slot", criuDirs, [][2]string{{"ip", "iproute2"}, {"tar", "tar"}, {"gzip", "gzip"}}},
	{"tools", Lack, "no image can be read", programDirs, [][2]string{{"qemu-img", "qemu-utils"}}},
	{"tools-fuse", Warn, `attach: "fuse" cannot be used`, programDirs, [][2]string{{"qemu-storage-daemon", "qemu-system-common"}}},
	{"tools-image", Warn, "no image can be built here", programDirs, [][2]string{
		{"mmdebstrap", "mmdebstrap"}, {"mke2fs", "e2fsprogs"}, {"debugfs", "e2fsprogs"}, {"apt-get", "apt"}, {"dpkg", "dpkg"}, {"unshare", "util-linux"},
	}},
}

func tools(_ context.Context, h *Host) []bench.HostFinding {
	var found []bench.HostFinding
	for _, p := range programs {
		var missing, packages []string
		for _, n := range p.names {
			_, err := h.Find(n[0], p.dirs)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				missing = append(missing, n[0])
				if !strings.Contains(strings.Join(packages, " ")+" ", n[1]+" ") {
					packages = append(packages, n[1])
				}
			case err != nil:
				found = append(found, unread(unlearnt(p.severity), p.subject, err)...)
			}
		}
		if missing != nil {
			found = append(found, one(p.severity, p.subject, "there is no "+strings.Join(missing, ", ")+" in "+strings.Join(p.dirs, ":")+": "+p.so, "apt-get install "+strings.Join(packages, " "))...)
		}
	}
	if found == nil {
		found = fine("tools", "all programs that criu, images and their building need")
	}
	return found
}

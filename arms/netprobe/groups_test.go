package netprobe

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/moby/sys/mountinfo"
	prom "github.com/prometheus/procfs"

	"github.com/drumsbench/drumsbench/engine"
)

func TestRuncGroups(t *testing.T) {
	mount := func(kind, root, point, options string) *mountinfo.Info {
		return &mountinfo.Info{FSType: kind, Root: root, Mountpoint: point, VFSOptions: options}
	}
	group := func(id int, path string, controllers ...string) prom.Cgroup {
		return prom.Cgroup{HierarchyID: id, Path: path, Controllers: controllers}
	}
	for _, c := range []struct {
		name   string
		own    []prom.Cgroup
		mounts []*mountinfo.Info
		want   []string
	}{
		{"hybrid, in a group of a container", []prom.Cgroup{group(2, "/box/a", "cpu", "cpuacct"), group(1, "/box", "name=systemd"), group(0, "/box", "")},
			[]*mountinfo.Info{mount("cgroup2", "/", "/c/unified", "rw"), mount("cgroup", "/box", "/c/cpu,cpuacct", "rw,cpu,cpuacct"), mount("cgroup", "/", "/c/systemd", "rw,name=systemd")},
			[]string{"/c/cpu,cpuacct/a/x", "/c/systemd/box/x"}},
		{"unified", []prom.Cgroup{group(0, "/a", "")}, []*mountinfo.Info{mount("cgroup2", "/", "/c", "rw")}, nil},
		{"a mount that does not lead there is passed over", []prom.Cgroup{group(2, "/a", "pids")},
			[]*mountinfo.Info{mount("cgroup", "/other", "/elsewhere", "rw,pids"), mount("cgroup", "/", "/c/pids", "rw,pids")}, []string{"/c/pids/a/x"}},
	} {
		if have, err := runcGroups("x", c.own, c.mounts); err != nil || !slices.Equal(have, c.want) {
			t.Errorf("%s: have %q, %v, want %q", c.name, have, err, c.want)
		}
	}
	if _, err := runcGroups("x", []prom.Cgroup{group(2, "/a", "pids")}, []*mountinfo.Info{mount("cgroup", "/b", "/c/pids", "rw,pids")}); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("a hierarchy that cannot be reached: %v", err)
	}
}

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

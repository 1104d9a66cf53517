package criu

import (
	"errors"
	"io/fs"
	"slices"
	"testing"
	"testing/fstest"
)

func TestHostConfig(t *testing.T) {
	file := &fstest.MapFile{}
	tests := []struct {
		name string
		env  []string
		fsys fs.FS
		want []string
	}{
		{"nothing", []string{"HOME=/root", "PATH=/bin"}, fstest.MapFS{"etc/passwd": file}, nil},
		{"global", nil, fstest.MapFS{"etc/criu/default.conf": file, "etc/criu/runc.conf": file, "etc/criu/crun.conf": file, "etc/criu/README": file},
			[]string{"/etc/criu/crun.conf", "/etc/criu/default.conf", "/etc/criu/runc.conf"}},
		{"user", []string{"HOME=/home/ann"}, fstest.MapFS{"root/.criu/default.conf": file, "home/ann/.criu/default.conf": file, "home/bob/.criu/default.conf": file},
			[]string{"/home/ann/.criu/default.conf", "/root/.criu/default.conf"}},
		{"variables", []string{"CRIU_CONFIG_FILE=/x", "CR_IP_TOOL=/tmp/ip", "CRIU_FAULT="}, fstest.MapFS{},
			[]string{"CRIU_CONFIG_FILE=/x", "CRIU_FAULT=", "CR_IP_TOOL=/tmp/ip"}},
		{"unreadable", nil, denied{}, []string{
			"/etc/criu (cannot be looked at: open etc/criu: permission denied)",
			"/root/.criu/default.conf (cannot be looked at: open root/.criu/default.conf: permission denied)"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := HostConfig(test.env, test.fsys); !slices.Equal(got, test.want) {
				t.Errorf("%q", got)
			}
		})
	}
}

type denied struct{}

func (denied) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.Join(fs.ErrPermission)}
}

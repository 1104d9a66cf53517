package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A session has the variables of the image's own files, the manifest's over them, and
// a runtime directory that only its user can enter. One that the image does not
// have, or that names no desktop, is none.
func TestSession(t *testing.T) {
	root := t.TempDir()
	lay := func(name, text string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	lay("tmp/.keep", "")
	lay("usr/share/xsessions/ubuntu.desktop", "[Desktop Entry]\nName=Ubuntu\nDesktopNames=ubuntu;GNOME;\n[Other]\nDesktopNames=no\n")
	lay("usr/share/xsessions/nameless.desktop", "[Desktop Entry]\nName=Nameless\n")
	lay("etc/environment", "PATH=/games\nGTK_THEME=\"Yaru\" # ours\nexport LANGUAGE='en_GB'\nnonsense\n")
	lay("etc/default/locale", "LANG=en_GB.UTF-8\n")
	user := func() *identity {
		return &identity{uid: 1000, gid: 1000, home: "/home/user", env: []string{"HOME=/home/user", "PATH=" + searchPath, "USER=user"}}
	}
	who := user()
	err := who.openSession(root, bench.Session{Desktop: "ubuntu", Env: map[string]string{"GTK_THEME": "Adwaita"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus", "DESKTOP_SESSION=ubuntu", "GTK_THEME=Adwaita", "HOME=/home/user", "LANG=en_GB.UTF-8",
		"LANGUAGE=en_GB", "PATH=" + searchPath, "XDG_CURRENT_DESKTOP=ubuntu:GNOME", "XDG_RUNTIME_DIR=/run/user/1000", "XDG_SESSION_DESKTOP=ubuntu", "XDG_SESSION_TYPE=x11",
	} {
		if !slices.Contains(who.env, want) {
			t.Errorf("no %s in %q", want, who.env)
		}
	}
	for name, mode := range map[string]os.FileMode{"run/user/1000": os.ModeDir | 0o700, "tmp/.X11-unix": os.ModeDir | os.ModeSticky | 0o777, "tmp/.ICE-unix": os.ModeDir | os.ModeSticky | 0o777} {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, want %s: %v", name, info, mode, err)
		}
	}
	for desktop, want := range map[bench.Name]string{"kde": "no such file", "nameless": "names no desktop"} {
		if err := user().openSession(root, bench.Session{Desktop: desktop}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", desktop, err, want)
		}
	}
}

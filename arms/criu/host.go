package criu

import (
	"io/fs"
	"path"
	"slices"
	"strings"
)

// configDir and userConfig are where CRIU and runc look (criu/config.c,
// runc/libcontainer/criu_linux.go).
const (
	configDir  = "etc/criu"
	userConfig = ".criu/default.conf"
)

// settings are variables that change CRIU without a word of it in any log (grep
// getenv in criu/).
var settings = []string{
	"CRIU_CONFIG_FILE", "CRIU_DEPRECATED", "CRIU_FAULT", "CRIU_LIBS_DIR", "CRIU_PMC_OFF", "CRIU_TRACK_SHMEM",
	"CR_IP_TOOL", "CR_IPTABLES",
}

// HostConfig lists the files and variables of the host that would change a CRIU
// that is started the usual way, sorted: configuration files as absolute paths,
// variables as NAME=value. fsys is the host's root, env a list as of os.Environ.
// A path that cannot be looked at is listed too, with the reason: what is not
// known to be absent may be there.
//
// [Command] is immune to all of them. They are refused nevertheless, since runs
// of other tools on the same host (runc, the operator's own hands) are not.
func HostConfig(env []string, fsys fs.FS) []string {
	var found []string
	variables := map[string]string{}
	for _, e := range env {
		if name, value, ok := strings.Cut(e, "="); ok {
			variables[name] = value
		}
	}
	for _, name := range settings {
		if value, ok := variables[name]; ok {
			found = append(found, name+"="+value)
		}
	}
	look := func(name string) {
		switch _, err := fs.Stat(fsys, name); {
		case err == nil:
			found = append(found, "/"+name)
		case !isAbsent(err):
			found = append(found, "/"+name+" (cannot be looked at: "+err.Error()+")")
		}
	}
	switch entries, err := fs.ReadDir(fsys, configDir); {
	case err == nil:
		for _, e := range entries {
			if path.Ext(e.Name()) == ".conf" {
				look(path.Join(configDir, e.Name()))
			}
		}
	case !isAbsent(err):
		found = append(found, "/"+configDir+" (cannot be looked at: "+err.Error()+")")
	}
	homes := []string{"root"}
	if home := strings.Trim(path.Clean("/"+variables["HOME"]), "/"); home != "" && home != "root" {
		homes = append(homes, home)
	}
	for _, home := range homes {
		look(path.Join(home, userConfig))
	}
	slices.Sort(found)
	return found
}

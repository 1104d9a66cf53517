package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// identity is who programs and services run as, and with what environment.
type identity struct {
	uid, gid uint32
	groups   []uint32
	home     string
	env      []string
}

// newIdentity looks name up in the guest's own /etc/passwd and /etc/group. Root
// needs neither.
func newIdentity(name, home string, display bool) (*identity, error) {
	who := &identity{home: home}
	u, err := user.Lookup(name)
	switch {
	case err == nil:
		if err := who.setIDs(u); err != nil {
			return nil, fmt.Errorf("look up user %s: %w", name, err)
		}
	case name != "root":
		return nil, fmt.Errorf("look up user %s: %w", name, err)
	default:
		who.groups = []uint32{0}
	}
	who.env = []string{"HOME=" + home, "LOGNAME=" + name, "PATH=" + searchPath, "SHELL=/bin/sh", "USER=" + name}
	if display {
		who.env = append(who.env, "DISPLAY="+proto.Display)
	}
	// exec.LookPath searches as guestd's own PATH says.
	return who, os.Setenv("PATH", searchPath)
}

// rootIdentity is that of a service which the manifest has run as root: nothing of the user's.
func rootIdentity() *identity {
	return &identity{groups: []uint32{0}, home: "/root", env: []string{"HOME=/root", "LOGNAME=root", "PATH=" + searchPath, "SHELL=/bin/sh", "USER=root"}}
}

func (who *identity) setIDs(u *user.User) error {
	id := func(text string) (uint32, error) {
		n, err := strconv.ParseUint(text, 10, 32)
		return uint32(n), err
	}
	var err error
	if who.uid, err = id(u.Uid); err != nil {
		return err
	}
	if who.gid, err = id(u.Gid); err != nil {
		return err
	}
	texts, err := u.GroupIds()
	if err != nil {
		return err
	}
	for _, text := range texts {
		g, err := id(text)
		if err != nil {
			return err
		}
		who.groups = append(who.groups, g)
	}
	return nil
}

// attributes of a program that runs as who: in a session of its own, with the
// three descriptors and no other.
func (who *identity) attributes(extra map[string]string, stdin, stdout, stderr uintptr) *syscall.ProcAttr {
	return &syscall.ProcAttr{
		Dir:   who.dir(),
		Env:   who.environment(extra),
		Files: []uintptr{stdin, stdout, stderr},
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Credential: &syscall.Credential{Uid: who.uid, Gid: who.gid, Groups: who.groups},
		},
	}
}

// dir is where programs start: the home, or / where there is none.
func (who *identity) dir() string {
	if info, err := os.Stat(who.home); err != nil || !info.IsDir() {
		return "/"
	}
	return who.home
}

// environment is who's own with extra laid over it, sorted.
func (who *identity) environment(extra map[string]string) []string {
	env := slices.DeleteFunc(slices.Clone(who.env), func(line string) bool {
		name, _, _ := strings.Cut(line, "=")
		_, over := extra[name]
		return over
	})
	for name, value := range extra {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

// program finds argv[0] as a shell would; a relative path is relative to dir.
func (who *identity) program(name string) (string, error) {
	if strings.Contains(name, "/") && !filepath.IsAbs(name) {
		name = filepath.Join(who.dir(), name)
	}
	return exec.LookPath(name)
}

// expand replaces a leading ~ and $NAME, ${NAME}; a name that is not set stays, as $NAME.
func (who *identity) expand(path string) string {
	path = who.expandHome(path)
	return os.Expand(path, func(name string) string {
		for _, line := range who.env {
			if value, ok := strings.CutPrefix(line, name+"="); ok {
				return value
			}
		}
		return "$" + name
	})
}

func (who *identity) expandHome(path string) string {
	if path == "~" || strings.HasPrefix(path, "~/") {
		return who.home + path[1:]
	}
	return path
}

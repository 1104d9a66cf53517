package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// openSession does what a display manager does before it starts a user's session:
// it makes the runtime directory and gives who the session's variables. All that
// it says comes from the image's own files below root; a session whose file is not
// there is none.
func (who *identity) openSession(root string, c bench.Session) error {
	desktop := string(c.Desktop)
	file := filepath.Join(root, "usr/share/xsessions", desktop+".desktop")
	names, err := desktopNames(file)
	if err != nil {
		return fmt.Errorf("open session %s: %w", desktop, err)
	}
	runtime := filepath.Join("/run/user", strconv.FormatUint(uint64(who.uid), 10))
	if err := who.sessionFolders(root, runtime); err != nil {
		return fmt.Errorf("open session %s: %w", desktop, err)
	}
	extra := map[string]string{}
	// As pam_env(8) would: the locale's file is its own.
	for _, name := range []string{"etc/environment", "etc/default/locale"} {
		if err := readVariables(filepath.Join(root, name), extra); err != nil {
			return fmt.Errorf("open session %s: %w", desktop, err)
		}
	}
	for name, value := range map[string]string{
		"XDG_SESSION_TYPE": "x11", "XDG_SESSION_CLASS": "user", "XDG_SEAT": "seat0",
		"XDG_SESSION_DESKTOP": desktop, "DESKTOP_SESSION": desktop, "XDG_CURRENT_DESKTOP": names,
		"XDG_RUNTIME_DIR": runtime, "DBUS_SESSION_BUS_ADDRESS": "unix:path=" + runtime + "/bus",
	} {
		extra[name] = value
	}
	for name, value := range c.Env {
		extra[name] = value
	}
	delete(extra, "PATH") // where guestd itself looks programs up
	who.env = who.environment(extra)
	return nil
}

// sessionFolders makes what systemd-logind and systemd-tmpfiles make elsewhere.
func (who *identity) sessionFolders(root, runtime string) error {
	for _, dir := range []string{"tmp/.X11-unix", "tmp/.ICE-unix"} {
		dir = filepath.Join(root, dir)
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
			return err
		}
	}
	dir := filepath.Join(root, runtime)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.Lchown(dir, int(who.uid), int(who.gid))
}

// desktopNames is what a session's file says XDG_CURRENT_DESKTOP is (Desktop
// Entry Specification, key DesktopNames of the group Desktop Entry).
func desktopNames(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	group := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			group = line
			continue
		}
		if key, value, ok := strings.Cut(line, "="); ok && group == "[Desktop Entry]" && strings.TrimSpace(key) == "DesktopNames" {
			return strings.Join(strings.FieldsFunc(value, func(r rune) bool { return r == ';' || r == ' ' }), ":"), nil
		}
	}
	return "", fmt.Errorf("%s names no desktop (DesktopNames)", file)
}

// readVariables reads lines NAME=VALUE, with or without "export" and quotes, as
// pam_env(8) reads /etc/environment. A file that is not there says nothing.
func readVariables(file string, into map[string]string) error {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if name = strings.TrimSpace(name); !ok || name == "" || strings.ContainsAny(name, " \t\x00") {
			continue
		}
		value = strings.TrimSpace(value)
		if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		into[name] = value
	}
	return nil
}

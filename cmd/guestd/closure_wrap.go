package main

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// errHalf: what a command starts could not be told. Half a closure would look like
// a whole one, so there is none.
var errHalf = errors.New("what the checker starts is not understood")

func half(name, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", errHalf, name, fmt.Sprintf(format, args...))
}

// wrapper is a program that starts the one which its arguments name.
type wrapper struct {
	flags  string          // letters of options without a value
	values string          // letters of options with one
	long   map[string]bool // long options; true: with a value
	words  int             // that stand before the program
}

// wrappers that are followed, as coreutils, util-linux and busybox have them.
var wrappers = map[string]wrapper{
	"timeout": {flags: "fpv", values: "ks", long: map[string]bool{"foreground": false, "preserve-status": false, "verbose": false, "kill-after": true, "signal": true}, words: 1},
	"nice":    {values: "n", long: map[string]bool{"adjustment": true}},
	"setsid":  {flags: "cfw", long: map[string]bool{"ctty": false, "fork": false, "wait": false}},
	"nohup":   {},
}

// opaque are programs that start another one and are not followed: as another
// user, in another root, with other libraries, or with arguments of their own kind.
var opaque = []string{"stdbuf", "chroot", "sudo", "su", "doas", "runuser", "setpriv", "pkexec", "unshare", "nsenter", "bwrap", "firejail", "xargs", "parallel",
	"flock", "strace", "ltrace", "gdb", "script", "expect", "unbuffer", "watch", "time", "chrt", "ionice", "taskset", "numactl", "prlimit", "setarch", "linux64", "linux32",
	"start-stop-daemon", "systemd-run", "fakeroot", "faketime", "catchsegv", "xvfb-run", "dbus-run-session", "dbus-launch", "chpst", "softlimit", "setuidgid", "cgexec"}

// wrapped adds the program that a wrapper starts; known says whether it is one.
// Without arguments it starts nothing.
func (c *closure) wrapped(name string, args []string, depth int) (known bool, err error) {
	if slices.Contains(opaque, name) {
		if len(args) > 0 {
			return true, half(name, "it starts what its arguments name, and is not followed")
		}
		return true, nil
	}
	w, known := wrappers[name]
	if !known || len(args) == 0 {
		return known, nil
	}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "-" {
		a := args[0]
		args = args[1:]
		if a == "--" {
			break
		}
		takes := false
		if option, ok := strings.CutPrefix(a, "--"); ok {
			option, _, attached := strings.Cut(option, "=")
			value, there := w.long[option]
			if !there {
				return true, half(name, "option %s", a)
			}
			takes = value && !attached
		} else {
			for i, letter := range a[1:] {
				if strings.ContainsRune(w.values, letter) {
					takes = i == len(a)-2
					break
				}
				if !strings.ContainsRune(w.flags, letter) {
					return true, half(name, "option %s", a)
				}
			}
		}
		if takes {
			if len(args) == 0 {
				return true, half(name, "option %s has no value", a)
			}
			args = args[1:]
		}
	}
	if len(args) <= w.words {
		return true, half(name, "it names no program")
	}
	_, err = c.command(args[w.words:], depth-1)
	return true, err
}

// steering are names of variables, and beginnings of names, that change which
// files a program is made of.
var steering = []string{"PATH", "HOME", "ENV", "BASH_ENV", "LD_*", "GCONV_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE",
	"PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX", "PERL5*", "RUBY*", "NODE_*", "LUA_*", "AWKPATH", "AWKLIBPATH"}

func steers(variable string) bool {
	return slices.ContainsFunc(steering, func(s string) bool {
		begin, more := strings.CutSuffix(s, "*")
		return variable == s || more && strings.HasPrefix(variable, begin)
	})
}

// env adds the program that env(1) starts.
func (c *closure) env(args []string, depth int) error {
	defer func(was string) { c.dir = was }(c.dir)
	bare := false // without PATH
	value := func(option, attached string) (string, error) {
		if attached != "" {
			return attached, nil
		}
		if len(args) == 0 {
			return "", half("env", "option %s has no value", option)
		}
		v := args[0]
		args = args[1:]
		return v, nil
	}
	// one is an option by its letter; it has taken the rest of its word if it has a value.
	one := func(letter byte, rest string) (taken bool, err error) {
		option := "-" + string(letter)
		switch letter {
		case 'i':
			bare = true
		case 'v':
		case 'u':
			v, err := value(option, rest)
			bare = bare || v == "PATH"
			return true, err
		case 'C':
			v, err := value(option, rest)
			c.dir = c.absolute(v)
			return true, err
		case 'S':
			v, err := value(option, rest)
			if err != nil {
				return true, err
			}
			if strings.ContainsAny(v, `\'"$#`) {
				return true, half("env", "-S with quotes, variables or remarks: %s", v)
			}
			args = append(strings.Fields(v), args...)
			return true, nil
		default:
			return true, half("env", "option %s", option)
		}
		return false, nil
	}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		a := args[0]
		args = args[1:]
		if a == "--" {
			break
		}
		if a == "-" {
			bare = true
			continue
		}
		if long, ok := strings.CutPrefix(a, "--"); ok {
			name, attached, _ := strings.Cut(long, "=")
			letter, known := map[string]byte{"ignore-environment": 'i', "debug": 'v', "unset": 'u', "chdir": 'C', "split-string": 'S'}[name]
			if !known {
				return half("env", "option %s", a)
			}
			if _, err := one(letter, attached); err != nil {
				return err
			}
			continue
		}
		for i := 1; i < len(a); i++ {
			taken, err := one(a[i], a[i+1:])
			if err != nil {
				return err
			}
			if taken {
				break
			}
		}
	}
	for len(args) > 0 && strings.Contains(args[0], "=") {
		name, _, _ := strings.Cut(args[0], "=")
		if steers(name) {
			return half("env", "%s changes what a program is made of", args[0])
		}
		args = args[1:]
	}
	if len(args) == 0 {
		return nil // it prints
	}
	if _, err := c.command(args, depth-1); err != nil {
		return err
	}
	if !bare || strings.Contains(args[0], "/") {
		return nil
	}
	// Without PATH the C library looks in folders of its own (execvp(3)).
	for _, dir := range []string{"/bin", "/usr/bin"} {
		path := filepath.Join(dir, args[0])
		if _, err := exec.LookPath(path); err != nil {
			continue
		}
		if _, err := c.command(append([]string{path}, args[1:]...), depth-1); err != nil {
			return err
		}
	}
	return nil
}

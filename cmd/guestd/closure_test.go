package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// rooted is root with a home that nothing else uses.
func rooted(t *testing.T) *identity {
	t.Helper()
	who, err := newIdentity("root", t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	return who
}

// What a program that starts another one starts is in the closure, or there is no
// closure: half of one would look like a whole one.
func TestClosureFollowsWrappers(t *testing.T) {
	who := rooted(t)
	at := func(name string) string { return filepath.Join(who.home, name) }
	for name, text := range map[string]string{
		"split":     "#!/usr/bin/env -S grep -q\n",
		"split-i":   "#!/usr/bin/env -iS grep -q\n",
		"split-to":  "#!/usr/bin/env -S A=b timeout 5 grep -q\n",
		"split-odd": "#!/usr/bin/env -S 'grep' -q\n",
		"tab":       "#!/usr/bin/env\tgrep\n",
		"plain":     "exec grep -q x /etc/passwd\n",
		"loop":      "#!" + at("loop") + "\n",
		"a":         "#!/bin/sh\n" + at("b") + "\n",
		"sub/rel":   "#!/usr/bin/grep\n",
		"opts.sh":   "grep -q x /etc/passwd\n",
		"long.sh":   "grep -q x /etc/passwd\n" + strings.Repeat("true\n", scriptLimit/5),
	} {
		if err := os.MkdirAll(filepath.Dir(at(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		exec string
		half bool
	}{
		{at("split"), false}, {at("split-i"), false}, {at("split-to"), false}, {at("split-odd"), true}, {at("tab"), false}, {at("loop"), true},
		{"env grep x", false}, {"env -u NAME grep x", false}, {"env -uNAME A=b grep x", false}, {"env --unset=NAME --unset OTHER grep x", false},
		{"env -C " + at("sub") + " ./rel", false}, {"env --chdir=sub ./rel", false}, {"env -i grep x", false}, {"env - grep x", false}, {"env -- grep x", false},
		{"env " + at("plain"), false},
		{"env --no-such-option grep x", true}, {"env -z grep x", true}, {"env -u", true}, {"env PATH=/opt grep x", true}, {"env LD_PRELOAD=x.so grep x", true},
		{"timeout 5 grep x", false}, {"timeout -k 1 -s KILL 5 grep x", false}, {"timeout --signal=KILL --foreground 5s grep x", false}, {"timeout -k1 5 grep", false},
		{"timeout --odd 5 grep x", true}, {"timeout 5", true}, {"timeout -k", true},
		{"nice grep x", false}, {"nice -n 5 grep x", false}, {"nice -n5 grep x", false}, {"nice -5 grep x", true},
		{"setsid -w grep x", false}, {"nohup grep x", false}, {"nohup setsid nice env timeout 9 grep x", false},
		{"stdbuf -oL grep x", true}, {"chroot / grep x", true}, {"runuser -u root grep x", true}, {"xargs grep", true},
		{"sh " + at("opts.sh"), false}, {"bash -o pipefail " + at("opts.sh"), false}, {"bash -euo pipefail " + at("opts.sh"), false},
		{"bash --rcfile x " + at("opts.sh"), false}, {"sh - " + at("opts.sh"), false}, {"bash --odd value " + at("opts.sh"), true}, {"sh " + at("long.sh"), true},
		{"bash -o pipefail -c grep", false}, {"bash -c", true},
	} {
		path, found, err := who.closureOf(t.Context(), strings.Fields(c.exec), nil)
		if c.half {
			if !errors.Is(err, errHalf) {
				t.Errorf("%s: %v, want that there is none", c.exec, err)
			}
			continue
		}
		if err != nil || path == "" {
			t.Errorf("%s: %q, %v", c.exec, path, err)
			continue
		}
		if e := found.entries["/usr/bin/grep"]; e.Kind != proto.EntryFile {
			t.Errorf("%s: it does not stand on grep", c.exec)
		}
	}
	// A shell of a login runs more than its text.
	for _, line := range []string{"bash -lc true", "bash --login " + at("opts.sh"), "bash -i -c true"} {
		_, found, err := who.closureOf(t.Context(), strings.Fields(line), nil)
		if _, looked := found.entries[at(".bash_profile")]; err != nil || !looked {
			t.Errorf("%s: its profile is not looked at: %v", line, err)
		}
	}
	// What only a word names starts nothing, whatever it is.
	_, found, err := who.closureOf(t.Context(), []string{"sh", "-c", "timeout 5 grep x | xargs env stdbuf chroot"}, nil)
	if err != nil || found.entries["/usr/bin/grep"].Kind != proto.EntryFile || found.entries["/usr/bin/xargs"].Kind != proto.EntryFile {
		t.Errorf("%v", err)
	}
}

// An option of python's is its letters, and the value of one is no letter.
func TestClosureReadsPythonOptions(t *testing.T) {
	for line, want := range map[string]options{
		"":                                    {},
		"x.py -I":                             {script: "x.py"},
		"-I x.py":                             {isolated: true, bare: true, script: "x.py"},
		"-Bs x.py":                            {bare: true, script: "x.py"},
		"-P -":                                {isolated: true, script: "-"},
		"-Walways x.py":                       {script: "x.py"},
		"-Wignore::DeprecationWarning x.py":   {script: "x.py"},
		"-W ignore -X importtime x.py":        {script: "x.py"},
		"-XIs x.py":                           {script: "x.py"},
		"-BW ignore x.py":                     {script: "x.py"},
		"-Ic pass":                            {isolated: true, bare: true},
		"-cpass x.py":                         {},
		"-m x -I":                             {},
		"-- x.py":                             {script: "x.py"},
		"--check-hash-based-pycs always x.py": {script: "x.py"},
		"-I --odd x.py":                       {script: "x.py", unsure: "--odd"},
		"-IZ x.py":                            {script: "x.py", unsure: "-IZ"},
		"-X pycache_prefix=/a x":              {script: "x", cache: "pycache_prefix=/a"},
	} {
		if diff := cmp.Diff(want, pythonOptions(strings.Fields(line)), cmp.AllowUnexported(options{})); diff != "" {
			t.Errorf("%q:\n%s", line, diff)
		}
	}
	who := rooted(t)
	program, err := filepath.EvalSymlinks("/usr/bin/python3")
	if err != nil {
		t.Fatal(err)
	}
	site := filepath.Join(who.home, ".local", "lib", filepath.Base(program), "site-packages", "x.pth")
	for _, p := range []string{site, filepath.Join(who.home, "check.py"), filepath.Join(who.home, "folder", "__main__.py")} {
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("pass\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for line, paths := range map[string][]string{
		"python3 -Walways check.py": {site, filepath.Join(who.home, "check.py")},
		"python3 -I folder":         {filepath.Join(who.home, "folder", "__main__.py")},
	} {
		_, c, err := who.closureOf(t.Context(), strings.Fields(line), nil)
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(paths, func(p string) bool { return c.entries[p].Kind != proto.EntryFile }); i >= 0 {
			t.Errorf("%s: it does not stand on %s", line, paths[i])
		}
	}
	for _, line := range []string{"python3 --odd value check.py", "python3 -X pycache_prefix=/a check.py"} {
		if _, _, err := who.closureOf(t.Context(), strings.Fields(line), nil); !errors.Is(err, errHalf) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

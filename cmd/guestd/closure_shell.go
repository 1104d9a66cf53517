package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// word is what may be the name of a program in a shell's text.
var word = regexp.MustCompile(`[A-Za-z0-9_.+/-]+`)

// remark is a line of a script that is nothing but a comment. One after a command
// is not told from text in quotes, and may name what it likes.
var remark = regexp.MustCompile(`(?m)^[ \t]*#.*$`)

// systemDirs are where an absolute path in a shell's text is a program of the
// system, and not something that the task is about.
var systemDirs = []string{"/usr/", "/bin/", "/sbin/", "/lib/", "/opt/"}

// shell adds the script of a shell and the programs that its text names. A text
// is not parsed: each word of it that PATH knows counts, and one too many does no
// harm. What a text finds out while it runs is beyond this.
func (c *closure) shell(args []string) error {
	text := ""
	unsure := "" // an option that is not known
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "-" {
			continue // the end of the options
		}
		if a == "--login" || strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && strings.ContainsAny(a, "li") {
			if err := c.profiles(); err != nil {
				return err
			}
		}
		if strings.HasPrefix(a, "--") && len(a) > 2 {
			switch {
			case slices.Contains([]string{"--rcfile", "--init-file"}, a):
				i++ // read by a shell that somebody sits at
			case !slices.Contains([]string{"--login", "--noprofile", "--norc", "--posix", "--restricted", "--verbose"}, a):
				unsure = a
			}
			continue
		}
		if len(a) > 1 && (a[0] == '-' || a[0] == '+') {
			i += strings.Count(a, "o") + strings.Count(a, "O") // each has a name
			if a[0] == '-' && strings.Contains(a, "c") {
				if i+1 >= len(args) {
					return half("a shell", "%s has no text", a)
				}
				text = args[i+1]
				break
			}
			continue
		}
		real, ok, err := c.file(c.absolute(a))
		if err == nil && !ok && unsure != "" {
			err = half("a shell", "option %s, and %s is no script", unsure, a)
		}
		if err != nil || !ok {
			return err
		}
		content, err := readHead(real, scriptLimit)
		if err != nil {
			return err
		}
		if len(content) == scriptLimit && !c.named {
			return half(real, "a script of %d bytes or more", scriptLimit)
		}
		text = string(content)
		break
	}
	defer func(was bool) { c.named = was }(c.named)
	c.named = true
	seen := map[string]bool{}
	for _, name := range word.FindAllString(remark.ReplaceAllString(text, ""), -1) {
		if seen[name] {
			continue
		}
		seen[name] = true
		if strings.Contains(name, "/") && !inSystem(filepath.Clean(name)) {
			continue
		}
		path, err := c.who.program(name)
		if err != nil {
			continue // no program: a word
		}
		if c.words[path] {
			continue // scripts name each other
		}
		c.words[path] = true
		if _, err := c.command([]string{path}, chainLimit); err != nil {
			return err
		}
	}
	return nil
}

// profiles adds what a shell of a login, or one that somebody sits at, runs first.
func (c *closure) profiles() error {
	for _, p := range []string{"/etc/profile", "/etc/profile.d", "/etc/bash.bashrc"} {
		if err := c.tree(p); err != nil {
			return err
		}
	}
	for _, name := range []string{".profile", ".bash_profile", ".bash_login", ".bashrc"} {
		if _, _, err := c.file(filepath.Join(c.who.home, name)); err != nil {
			return err
		}
	}
	return nil
}

func inSystem(path string) bool {
	for _, dir := range systemDirs {
		if strings.HasPrefix(path, dir) {
			return true
		}
	}
	return false
}

package main

import (
	"path/filepath"
	"regexp"
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
func (c *closure) shell(args []string, depth int) error {
	text := ""
	for i, a := range args {
		if strings.HasPrefix(a, "-") || strings.HasPrefix(a, "+") {
			if strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && strings.Contains(a, "c") && i+1 < len(args) {
				text = args[i+1]
				break
			}
			continue
		}
		real, ok, err := c.file(c.absolute(a))
		if err != nil || !ok {
			return err
		}
		content, err := readHead(real, scriptLimit)
		if err != nil {
			return err
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
		if _, err := c.command([]string{path}, depth-1); err != nil {
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

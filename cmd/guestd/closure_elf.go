package main

import (
	"debug/elf"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// triplets are Debian's names of the machine, below which its libraries lie.
var triplets = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

// loaderDirs are where a dynamic loader may look for a library: what
// ld.so.conf(5) names, and the folders that are built in.
func loaderDirs() []string {
	dirs := []string{}
	var conf func(path string, depth int)
	conf = func(path string, depth int) {
		text, err := readHead(path, 64<<10)
		if err != nil || depth == 0 {
			return // its entry in the closure says what is there
		}
		for line := range strings.Lines(string(text)) {
			line, _, _ = strings.Cut(line, "#")
			words := strings.Fields(line)
			switch {
			case len(words) == 2 && words[0] == "include":
				found, err := filepath.Glob(words[1])
				for i := 0; err == nil && i < len(found) && i < 256; i++ {
					conf(found[i], depth-1)
				}
			case len(words) == 1 && filepath.IsAbs(words[0]):
				dirs = append(dirs, words[0])
			}
		}
	}
	conf("/etc/ld.so.conf", 4)
	for _, base := range []string{"/lib", "/usr/lib", "/usr/local/lib"} {
		dirs = append(dirs, base)
		if t := triplets[runtime.GOARCH]; t != "" {
			dirs = append(dirs, filepath.Join(base, t))
		}
	}
	dirs = append(dirs, "/lib64", "/usr/lib64")
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// elf adds the loader and the libraries of a program or library. Of a library
// that several folders have, each counts: which one is taken is the loader's
// business, and none of them may change.
func (c *closure) elf(real string) error {
	if c.elfs[real] {
		return nil
	}
	c.elfs[real] = true
	opened, err := openRegular(real, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer opened.Close()
	f, err := elf.NewFile(opened)
	if err != nil {
		return nil // the kernel and the loader will not take it either; its digest is there
	}
	dirs := c.dirs
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		paths, err := f.DynString(tag)
		if err != nil {
			continue // it has none
		}
		for _, list := range paths {
			for _, dir := range strings.Split(list, ":") {
				dir = strings.NewReplacer("$ORIGIN", filepath.Dir(real), "${ORIGIN}", filepath.Dir(real)).Replace(dir)
				if filepath.IsAbs(dir) {
					dirs = append(slices.Clone(dirs), filepath.Clean(dir))
				}
			}
		}
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP || p.Filesz > 4096 {
			continue
		}
		name, err := io.ReadAll(p.Open())
		if err != nil {
			continue
		}
		if _, _, err := c.file(c.absolute(strings.TrimRight(string(name), "\x00"))); err != nil {
			return err
		}
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return nil // statically linked
	}
	for _, name := range needed {
		for _, dir := range dirs {
			path := filepath.Join(dir, name)
			if strings.Contains(name, "/") {
				path = c.absolute(name)
			}
			if _, err := os.Stat(path); err != nil {
				continue
			}
			lib, ok, err := c.file(path)
			if err != nil {
				return err
			}
			if ok {
				if err := c.elf(lib); err != nil {
					return err
				}
			}
		}
	}
	if len(needed) == 0 {
		return nil
	}
	for _, dir := range dirs { // the loader prefers what lies in these (ld.so(8))
		if err := c.tree(filepath.Join(dir, "glibc-hwcaps")); err != nil {
			return err
		}
	}
	return nil
}

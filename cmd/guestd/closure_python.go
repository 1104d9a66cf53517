package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

// release is the name of a python of a known version, which its library folder has too.
var release = regexp.MustCompile(`^python[0-9]+\.[0-9]+`)

// python adds what an interpreter imports from: its library, the site's and the
// user's, and, unless it is isolated, the folder that it looks in first: that of
// the script, or the working directory (python's sys.path, "-I" and "-P").
func (c *closure) python(path, real string, args []string) error {
	prefixes := []string{filepath.Dir(filepath.Dir(path)), filepath.Dir(filepath.Dir(real)), "/usr", "/usr/local"}
	slices.Sort(prefixes)
	version := release.FindString(filepath.Base(real))
	var trees []string
	for _, prefix := range slices.Compact(prefixes) {
		trees = append(trees, filepath.Join(prefix, "lib", "python3"), filepath.Join(prefix, "pyvenv.cfg"))
		if version != "" {
			trees = append(trees, filepath.Join(prefix, "lib", version), filepath.Join(prefix, "lib", strings.ReplaceAll(version, ".", "")+".zip"))
			continue
		}
		found, err := filepath.Glob(filepath.Join(prefix, "lib", "python*"))
		if err != nil {
			return err
		}
		trees = append(trees, found...)
	}
	trees = append(trees, filepath.Join(filepath.Dir(path), "pyvenv.cfg"))
	isolated, bare := false, false // of the folder that comes first; of the user's site too
	script := ""
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "-" || !strings.HasPrefix(a, "-") {
			script = a
			break
		}
		if strings.HasPrefix(a, "--") {
			continue
		}
		isolated = isolated || strings.ContainsAny(a, "IP")
		bare = bare || strings.ContainsAny(a, "Is")
		if strings.ContainsAny(a, "cm") {
			break // the text or the module follows, and then its own arguments
		}
		if a == "-X" || a == "-W" {
			i++
		}
	}
	if !bare && version != "" {
		trees = append(trees, filepath.Join(c.who.home, ".local", "lib", version))
	}
	for _, t := range trees {
		if err := c.tree(t); err != nil {
			return err
		}
	}
	first := c.who.dir()
	if script != "" && script != "-" {
		file, ok, err := c.file(c.absolute(script))
		if err != nil {
			return err
		}
		first = filepath.Dir(c.absolute(script))
		if ok {
			first = filepath.Dir(file)
		}
	}
	if !isolated {
		if err := c.importable(first); err != nil {
			return err
		}
	}
	return c.extensions()
}

// importable adds what an import can find in a folder: modules and packages at
// its top. What else lies there is no business of python's.
func (c *closure) importable(dir string) error {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range list {
		path := filepath.Join(dir, entry.Name())
		switch ext := filepath.Ext(entry.Name()); {
		case entry.Name() == "__pycache__":
			err = c.tree(path)
		case ext == ".py" || ext == ".pyc" || ext == ".so":
			_, _, err = c.file(path)
		default:
			if _, serr := os.Stat(filepath.Join(path, "__init__.py")); serr == nil {
				err = c.tree(path)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// extensions adds the libraries of every extension module that is there.
func (c *closure) extensions() error {
	var modules []string
	for path, e := range c.entries {
		if e.Kind == proto.EntryFile && strings.HasSuffix(path, ".so") {
			modules = append(modules, path)
		}
	}
	slices.Sort(modules)
	for _, path := range modules {
		real, ok, err := c.file(path)
		if err != nil {
			return err
		}
		if ok {
			if err := c.elf(real); err != nil {
				return err
			}
		}
	}
	return nil
}

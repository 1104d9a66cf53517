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
	o := pythonOptions(args)
	if o.cache != "" {
		return half("python", "-X %s: byte code from elsewhere", o.cache)
	}
	if !o.bare && version != "" {
		trees = append(trees, filepath.Join(c.who.home, ".local", "lib", version))
	}
	for _, t := range trees {
		if err := c.tree(t); err != nil {
			return err
		}
	}
	first := c.dir
	if o.script != "" && o.script != "-" {
		file, ok, err := c.file(c.absolute(o.script))
		if err != nil {
			return err
		}
		first = filepath.Dir(c.absolute(o.script))
		switch {
		case ok:
			first = filepath.Dir(file)
		case c.entries[c.absolute(o.script)].Kind == proto.EntryDirectory: // it runs the __main__.py in it, isolated or not
			if err := c.tree(c.absolute(o.script)); err != nil {
				return err
			}
		case o.unsure != "":
			return half("python", "option %s, and %s is no script", o.unsure, o.script)
		}
	}
	if !o.isolated {
		if err := c.importable(first); err != nil {
			return err
		}
	}
	return c.extensions()
}

// options are what python's command line says of where it looks.
type options struct {
	isolated bool   // not in the folder that comes first
	bare     bool   // not in the user's site either
	script   string // empty: a text, a module, or none; "-" is standard input
	cache    string // -X pycache_prefix
	unsure   string // an option that is not known: everything is looked at then
}

// pythonOptions reads them as python does: letters may stand together, and a
// value may follow its letter at once.
func pythonOptions(args []string) (o options) {
words:
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			if i+1 < len(args) {
				o.script = args[i+1]
			}
			break words
		case a == "-" || !strings.HasPrefix(a, "-"):
			o.script = a
			break words
		case a == "--check-hash-based-pycs":
			i++
			continue
		case strings.HasPrefix(a, "--"):
			o.unsure = a
			continue
		}
	letters:
		for at, letter := range a[1:] {
			switch letter {
			case 'I':
				o.isolated, o.bare = true, true
			case 'P':
				o.isolated = true
			case 's':
				o.bare = true
			case 'b', 'B', 'd', 'E', 'h', 'i', 'O', 'q', 'R', 'S', 'u', 'v', 'V', 'x':
			case 'c', 'm':
				break words // the text or the module follows, and then its own arguments
			case 'W', 'X':
				value := a[at+2:]
				if value == "" && i+1 < len(args) {
					i++
					value = args[i]
				}
				if letter == 'X' && strings.HasPrefix(value, "pycache_prefix") {
					o.cache = value
				}
				break letters
			default:
				o.unsure = a
				break letters
			}
		}
	}
	if o.unsure != "" {
		o.isolated, o.bare = false, false
	}
	return o
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

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Bounds of a closure. A guest that goes beyond them is told so; half a closure would look like a whole one.
const (
	closureEntries = 30000
	closureBytes   = 2 << 30
	// scriptLimit is how much of a shell's script is searched for names of programs.
	scriptLimit = 256 << 10
	// chainLimit bounds interpreters of interpreters, and programs that start programs; the kernel's own limit is 4 for the former.
	chainLimit = 12
)

// always are what every dynamically linked program depends on before its first
// own instruction (ld.so(8)); most are not there, and that must stay so.
var always = []string{"/etc/ld.so.preload", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
	"/etc/ld-musl-x86_64.path", "/etc/ld-musl-aarch64.path"}

// closure gathers what the outcome of a program depends on: its file, its
// interpreter, loader and libraries, the programs that a shell's text names, for
// python its libraries, and the paths that were asked for. Every path is looked at
// anew for every closure: nothing is kept.
type closure struct {
	ctx context.Context
	who *identity
	// named marks what is found from here on, see proto.ClosureEntry; words are the programs that were.
	named bool
	words map[string]bool
	// dir is where relative paths begin.
	dir     string
	entries map[string]proto.ClosureEntry
	hashes  map[string]bench.SHA256 // by real path
	elfs    map[string]bool
	dirs    []string // where the loader looks
	bytes   int64
}

// closureOf reads the closure of a command and returns the file that its first word stands for.
func (who *identity) closureOf(ctx context.Context, argv, paths []string) (string, *closure, error) {
	c := &closure{ctx: ctx, who: who, entries: map[string]proto.ClosureEntry{}, hashes: map[string]bench.SHA256{}, elfs: map[string]bool{},
		words: map[string]bool{}, dir: who.dir()}
	c.dirs = loaderDirs()
	own, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "", nil, err
	}
	// The link of a program that was replaced says so; its path is what is looked at.
	for _, p := range append(append(slices.Clone(always), strings.TrimSuffix(own, " (deleted)")), paths...) {
		if err := c.tree(filepath.Clean(p)); err != nil {
			return "", nil, err
		}
	}
	path, err := c.command(argv, chainLimit)
	return path, c, err
}

// list is the closure sorted by path, with place instead of the folder of the checker's copy.
func (c *closure) list(folder string) []proto.ClosureEntry {
	out := make([]proto.ClosureEntry, 0, len(c.entries))
	for _, e := range c.entries {
		e.Path, e.Real = inPlace(e.Path, folder), inPlace(e.Real, folder)
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b proto.ClosureEntry) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// inPlace names a path in the folder of the checker's copy as the request does.
func inPlace(path, folder string) string {
	if folder == "" || path != folder && !strings.HasPrefix(path, folder+"/") {
		return path
	}
	return proto.ProgramPlace + strings.TrimPrefix(path, folder)
}

// file adds one path, whatever is there. ok: it is a regular file, whose real path it returns.
func (c *closure) file(path string) (real string, ok bool, err error) {
	if err := c.ctx.Err(); err != nil {
		return "", false, context.Cause(c.ctx)
	}
	path = filepath.Clean(path)
	if e, seen := c.entries[path]; seen {
		if e.Named && !c.named {
			e.Named = false
			c.entries[path] = e
		}
		if e.Real == "" {
			e.Real = path
		}
		return e.Real, e.Kind == proto.EntryFile, nil
	}
	if len(c.entries) >= closureEntries {
		return "", false, fmt.Errorf("the checker stands on more than %d files", closureEntries)
	}
	e := proto.ClosureEntry{Path: path, Kind: proto.EntryAbsent, Named: c.named}
	real, err = filepath.EvalSymlinks(path)
	var info fs.FileInfo
	if err == nil {
		info, err = os.Lstat(real)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP):
		c.entries[path] = e
		return "", false, nil
	case err != nil:
		return "", false, err
	}
	if real != path {
		e.Real = real
	}
	e.Mode = fmt.Sprintf("%04o", info.Sys().(*syscall.Stat_t).Mode&0o7777)
	switch {
	case info.IsDir():
		e.Kind = proto.EntryDirectory
	case !info.Mode().IsRegular():
		e.Kind = proto.EntryOther
	default:
		e.Kind = proto.EntryFile
		if e.Sha256, err = c.hash(real); err != nil {
			return "", false, err
		}
	}
	c.entries[path] = e
	return real, e.Kind == proto.EntryFile, nil
}

func (c *closure) hash(real string) (bench.SHA256, error) {
	if sum, known := c.hashes[real]; known {
		return sum, nil
	}
	f, err := openRegular(real, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(heeding{c.ctx, f}, closureBytes-c.bytes+1))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", real, err)
	}
	if c.bytes += n; c.bytes > closureBytes {
		return "", fmt.Errorf("the checker stands on more than %d bytes", int64(closureBytes))
	}
	c.hashes[real] = bench.SHA256(hex.EncodeToString(h.Sum(nil)))
	return c.hashes[real], nil
}

// heeding ends a long read when ctx is done.
type heeding struct {
	ctx context.Context
	r   io.Reader
}

func (h heeding) Read(p []byte) (int, error) {
	if h.ctx.Err() != nil {
		return 0, context.Cause(h.ctx)
	}
	return h.r.Read(p)
}

// tree adds a path and, where it is a folder, every file below it. Links below it are followed to files only.
func (c *closure) tree(path string) error {
	if _, _, err := c.file(path); err != nil {
		return err
	}
	e := c.entries[path]
	if e.Kind != proto.EntryDirectory {
		return nil
	}
	real := path
	if e.Real != "" {
		real = e.Real
	}
	list, err := os.ReadDir(real)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // gone meanwhile: the entries that are missing say it
	}
	if err != nil {
		return err
	}
	for _, entry := range list {
		below := filepath.Join(path, entry.Name())
		if entry.IsDir() {
			err = c.tree(below)
		} else {
			_, _, err = c.file(below)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// command adds what a command needs and returns the file that its first word
// stands for; empty where there is none.
func (c *closure) command(argv []string, depth int) (string, error) {
	if len(argv) == 0 {
		return "", nil
	}
	if depth == 0 {
		return "", half(argv[0], "it is the end of a chain of more than %d programs", chainLimit)
	}
	name := argv[0]
	if strings.Contains(name, "/") {
		name = c.absolute(name)
	}
	path, err := c.who.program(name)
	if err != nil {
		if filepath.IsAbs(name) { // that it is not there, or cannot be run, is worth a line
			_, _, err := c.file(name)
			return "", err
		}
		return "", nil
	}
	real, ok, err := c.file(path)
	if err != nil || !ok {
		return path, err
	}
	head, err := readHead(real, 512)
	if err != nil {
		return path, err
	}
	switch {
	case bytes.HasPrefix(head, []byte("\x7fELF")):
		if err := c.elf(real); err != nil {
			return path, err
		}
	case bytes.HasPrefix(head, []byte("#!")):
		line, _, _ := bytes.Cut(head[2:], []byte("\n"))
		// The kernel gives what follows the interpreter as one word (execve(2)).
		text := strings.Trim(string(line), " \t")
		end := strings.IndexAny(text, " \t")
		if end < 0 {
			end = len(text)
		}
		chain := []string{text[:end]}
		if option := strings.Trim(text[end:], " \t"); option != "" {
			chain = append(chain, option)
		}
		_, err := c.command(append(append(chain, path), argv[1:]...), depth-1)
		return path, err
	default: // what starts it hands it to the shell, if it does at all (execvp(3))
		_, err := c.command(append([]string{"/bin/sh", path}, argv[1:]...), depth-1)
		return path, err
	}
	return path, c.arguments(path, real, argv[1:], depth)
}

// arguments adds what an interpreter that is known here reads because of its arguments.
func (c *closure) arguments(path, real string, args []string, depth int) error {
	name := filepath.Base(path)
	if name == "busybox" && len(args) > 0 {
		name, args = args[0], args[1:]
	}
	if known, err := c.wrapped(name, args, depth); known || err != nil {
		return err
	}
	switch {
	case name == "env":
		return c.env(args, depth)
	case slices.Contains([]string{"sh", "dash", "bash", "ash", "ksh", "zsh"}, name):
		return c.shell(args)
	case strings.HasPrefix(name, "python"):
		return c.python(path, real, args)
	case slices.Contains([]string{"perl", "ruby", "node", "lua", "awk", "gawk", "mawk"}, name):
		for i, a := range args {
			if strings.HasPrefix(a, "-") {
				continue
			}
			if name != "perl" && name != "ruby" && name != "node" && name != "lua" && (i == 0 || args[i-1] != "-f") {
				return nil // awk's text, not a file
			}
			_, _, err := c.file(c.absolute(a))
			return err
		}
	}
	return nil
}

// absolute is a word as the program that is started takes it for a path.
func (c *closure) absolute(word string) string {
	if filepath.IsAbs(word) {
		return filepath.Clean(word)
	}
	return filepath.Join(c.dir, word)
}

func readHead(path string, most int64) ([]byte, error) {
	f, err := openRegular(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

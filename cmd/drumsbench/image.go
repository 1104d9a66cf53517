//go:build linux && !elsewhere

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/docker/go-units"

	"github.com/drumsbench/drumsbench/arms/image"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
)

type imageCmd struct {
	Build   imageBuildCmd   `cmd:"" help:"Build an image from a recipe and pin it."`
	Inspect imageInspectCmd `cmd:"" help:"Say what an image file is and whether it is pinned."`
}

type imageBuildCmd struct {
	Recipe string `arg:"" type:"path" help:"The recipe's .cue file."`
	Out    string `type:"path" placeholder:"DIR" help:"Folder for the image (default: images in the state directory)."`
	Pins   string `type:"path" placeholder:"FILE" xor:"pin" help:"File of pins to rewrite (default: pins/pins.cue in the recipe's module)."`
	NoPin  bool   `xor:"pin" help:"Rewrite no pin."`
	Guestd string `type:"path" placeholder:"FILE" help:"Static guest server that goes in (default: built from this checkout, else the one beside this program)."`
}

// Help teaches the command.
func (imageBuildCmd) Help() string {
	return `Installs the recipe's Debian packages from the archive that this machine's apt is configured with,
lays the recipe's files and the guest server over them, makes a file system and a qcow2 file of it, and
writes its digest into the file of pins, with the guest server's. Nothing is mounted. The same recipe,
packages and tools give the same digest. The packages' tree is kept in the state directory: a second
build with the same packages takes seconds. NAME.packages.json beside the image lists what went in.

Examples:

  drumsbench image build manifests/images/tiny.cue
  drumsbench image build --no-pin --out /tmp manifests/images/tiny.cue

Exit codes: 0 built and pinned, 1 failed, 2 wrong usage or a mistake in the recipe.`
}

// imageBuilt is the result of image build.
type imageBuilt struct {
	image.Built
	Path       string            `json:"path"`
	CachedTree bool              `json:"cachedTree"`
	StaleLists string            `json:"staleLists,omitempty"`
	Pins       string            `json:"pins,omitempty"`
	Pinned     map[string]string `json:"pinned,omitempty"`
}

// Run builds, and rewrites the pins only when the image is complete.
func (c imageBuildCmd) Run(ctx context.Context, g *globals) error {
	recipe, err := compile.LoadRecipe(c.Recipe)
	if err != nil {
		return err
	}
	dir := recipeDir(c.Recipe)
	pins := c.Pins
	if !c.NoPin {
		if pins, err = pinsFile(c.Pins, dir); err != nil {
			return err
		}
		if _, err := image.ReadPins(pins); err != nil { // now, not after a minute of work
			return err
		}
	}
	out := c.Out
	if out == "" {
		out = filepath.Join(g.State, "images")
	}
	work := filepath.Join(g.State, "work")
	guestd, done, err := findGuestd(ctx, c.Guestd, work)
	if err != nil {
		return err
	}
	defer done()
	built, err := image.Build(ctx, image.BuildOptions{
		Recipe: recipe, Dir: dir, Out: filepath.Join(out, string(recipe.Name)+".qcow2"), Guestd: guestd,
		Work: work, Cache: image.CacheDir(g.State), Log: g.Stderr,
	})
	if err != nil {
		return err
	}
	result := imageBuilt{Built: built, Path: built.Path, CachedTree: built.CachedTree}
	if built.Stale != nil {
		result.StaleLists = built.Stale.Error()
	}
	if !c.NoPin {
		result.Pins = pins
		result.Pinned = map[string]string{string(recipe.Pin): string(built.SHA256), "guestd": string(built.Guestd)}
		for name, sha := range result.Pinned {
			if err := image.RewritePin(pins, name, sha); err != nil {
				return err
			}
		}
	}
	if g.json() {
		return printJSON(g.Stdout, result)
	}
	return printText(g.Stdout, result.text(string(recipe.Pin)))
}

func (r imageBuilt) text(pin string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.Path)
	fmt.Fprintf(&b, "  sha256    %s\n", r.SHA256)
	fmt.Fprintf(&b, "  guestd    %s\n", r.Guestd)
	fmt.Fprintf(&b, "  size      %s, a disk of %s\n", units.BytesSize(float64(r.Size)), units.BytesSize(float64(r.VirtualSize)))
	fmt.Fprintf(&b, "  packages  %d of %s, listed in %s\n", len(r.Packages), r.Suite, image.PackagesFile(r.Path))
	if r.StaleLists != "" {
		fmt.Fprintf(&b, "  package lists are of an earlier time: %s\n", r.StaleLists)
	}
	if r.Pins != "" {
		fmt.Fprintf(&b, "pinned %s and guestd in %s\n", pin, r.Pins)
	}
	return b.String()
}

type imageInspectCmd struct {
	File string `arg:"" type:"path" help:"The image file."`
	Pins string `type:"path" placeholder:"FILE" help:"File of pins (default: pins/pins.cue or manifests/pins/pins.cue here or in a folder above)."`
}

// Help teaches the command.
func (imageInspectCmd) Help() string {
	return `Prints format, sizes and digest of an image file and the pins that have this digest. A file that is
pinned is also looked into: partitions, root file system, the digest of its guest server. A file that
is not pinned is not parsed. Nothing is mounted.

Examples:

  drumsbench image inspect /var/lib/drumsbench/images/tiny.qcow2

Exit codes: 0 inspected, 1 the file cannot be read or must be refused, 2 wrong usage.`
}

// Run prints the inspection.
func (c imageInspectCmd) Run(ctx context.Context, g *globals) error {
	file := c.Pins
	if file == "" {
		here, err := os.Getwd()
		if err != nil {
			return &engine.Error{Op: "find pins", Err: err}
		}
		if file = findUp(here, "pins/pins.cue", "manifests/pins/pins.cue"); file == "" {
			return &engine.Error{Op: "find pins", Err: usage("there is no pins/pins.cue here or in a folder above"), Hint: "name one with --pins"}
		}
	}
	pins, err := image.ReadPins(file)
	if err != nil {
		return err
	}
	i, err := image.Inspect(ctx, c.File, pins, filepath.Join(g.State, "work"), image.CacheDir(g.State))
	if err != nil {
		return err
	}
	if g.json() {
		return printJSON(g.Stdout, i)
	}
	return printText(g.Stdout, inspectionText(i, file))
}

func inspectionText(i image.Inspection, pins string) string {
	var b strings.Builder
	format := i.Format
	if format == "" {
		format = "no qcow2"
	}
	fmt.Fprintf(&b, "%s\n  format      %s\n  size        %s\n  sha256      %s\n", i.Path, format, units.BytesSize(float64(i.Size)), i.SHA256)
	if len(i.Pins) == 0 {
		fmt.Fprintf(&b, "  pins        none in %s: not looked into\n", pins)
		return b.String()
	}
	fmt.Fprintf(&b, "  pins        %s in %s\n", strings.Join(i.Pins, ", "), pins)
	fmt.Fprintf(&b, "  disk        %s\n", units.BytesSize(float64(i.VirtualSize)))
	if i.Filesystem != "" {
		fmt.Fprintf(&b, "  filesystem  %s, no partitions\n", i.Filesystem)
	}
	for _, p := range i.Partitions {
		kind, root := p.Filesystem, ""
		if kind == "" {
			kind = "unknown file system"
		}
		if p.Number == i.Root {
			root = ", the root"
		}
		fmt.Fprintf(&b, "  partition   %d: %s, %s%s\n", p.Number, units.BytesSize(float64(p.Size)), kind, root)
	}
	if i.Guestd.Known {
		fmt.Fprintf(&b, "  guestd      %s\n", i.Guestd.Value)
	} else {
		fmt.Fprintf(&b, "  guestd      unknown: %s\n", i.Guestd.Reason)
	}
	return b.String()
}

// recipeDir is the folder that a recipe's sources are relative to.
func recipeDir(path string) string {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return path
	}
	return filepath.Dir(path)
}

// pinsFile is the file of pins: the one named, or that of the recipe's module.
func pinsFile(named, dir string) (string, error) {
	if named != "" {
		return named, nil
	}
	module := findUp(dir, "cue.mod")
	if module == "" {
		return "", &engine.Error{Op: "find pins", Err: usage("the recipe lies in no CUE module"), Hint: "name a file with --pins, or give --no-pin"}
	}
	return filepath.Join(filepath.Dir(module), "pins", "pins.cue"), nil
}

// findUp returns the first of names that is in dir or in a folder above it; empty for none.
func findUp(dir string, names ...string) string {
	for {
		for _, name := range names {
			path := filepath.Join(dir, name)
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}

// findGuestd returns the guest server that goes into an image: the one named;
// inside this project's checkout one built from it, whose digest depends on the
// source and the Go release alone; else the one beside this program. done
// removes what was built.
func findGuestd(ctx context.Context, named, work string) (path string, done func(), err error) {
	const op = "find guestd"
	done = func() {}
	if named != "" {
		return named, done, nil
	}
	here, err := os.Getwd()
	if err != nil {
		return "", nil, &engine.Error{Op: op, Err: err}
	}
	if root := checkout(here); root != "" {
		return buildGuestd(ctx, root, work)
	}
	self, err := os.Executable()
	if err != nil {
		return "", nil, &engine.Error{Op: op, Err: err}
	}
	path = filepath.Join(filepath.Dir(self), "guestd")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", nil, &engine.Error{
			Op: op, Err: usage("it is not beside this program, and this is not its checkout"),
			Hint: "name it with --guestd, or run this in the checkout",
		}
	}
	return path, done, nil
}

// checkout is the folder of this project's sources that dir lies in; empty for none.
func checkout(dir string) string {
	mod := findUp(dir, "go.mod")
	if mod == "" {
		return ""
	}
	text, err := os.ReadFile(mod)
	if err != nil || !strings.HasPrefix(string(text), "module github.com/drumsbench/drumsbench\n") {
		return ""
	}
	return filepath.Dir(mod)
}

func buildGuestd(ctx context.Context, root, work string) (path string, done func(), err error) {
	const op = "build guestd"
	if err := os.MkdirAll(work, 0o755); err != nil {
		return "", nil, &engine.Error{Op: op, Err: err}
	}
	dir, err := os.MkdirTemp(work, "guestd-")
	if err != nil {
		return "", nil, &engine.Error{Op: op, Err: err}
	}
	done = func() { os.RemoveAll(dir) }
	path = filepath.Join(dir, "guestd")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/guestd")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+runtime.GOARCH, "GOFLAGS=", "GOWORK=off", "GOAMD64=v1", "GOARM64=v8.0")
	if out, err := cmd.CombinedOutput(); err != nil {
		done()
		return "", nil, &engine.Error{Op: op, Err: fmt.Errorf("go build: %w: %s", err, strings.TrimSpace(string(out))), Hint: "name a finished one with --guestd"}
	}
	return path, done, nil
}

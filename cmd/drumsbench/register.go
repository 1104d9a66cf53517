package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/engine/wholefile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// registrationsFolder of the state directory has a copy of each registration.
const registrationsFolder = "registrations"

type registerCmd struct {
	Path  string   `arg:"" help:"Folder of a manifest, or its .cue file."`
	Tag   []string `short:"t" sep:"none" placeholder:"KEY=VALUE" help:"Set a field that carries @tag(KEY); may be repeated."`
	Amend string   `type:"path" placeholder:"FILE" help:"Amend the registration in FILE: only bars of the manifest may differ."`
	Out   string   `type:"path" placeholder:"FILE" help:"Write the registration to FILE too, which must not exist."`
}

// Help teaches the command.
func (registerCmd) Help() string {
	return `Lays an experiment down before it runs: the manifest with every default, its bars (experiment.bars), how
it is measured and judged, and this program, in one file with a time. Its digest is the SHA-256 of the
file: whoever is to believe that the bars were there first needs the digest before the run, such as in a
commit or a letter; the time in the file is this host's word.

drumsbench run --registration FILE runs it, drumsbench judge judges its bars, and a run's state can be
verified only so. A copy stays below registrations in the state directory, where judge and report find
amendments, and where the start of each run is written down before it begins.

With --amend the manifest may have other bars than the registration in FILE, and nothing else. The
amendment names the digest of what it amends and holds it whole: the first verdict stays beside the new
one, and a bar that was missed stays missed.

Examples:

  drumsbench register --out first.json manifests/locks
  drumsbench run --registration first.json manifests/locks
  drumsbench register --amend first.json --out second.json -t usable=400ms manifests/locks

Exit codes: 0 registered, 1 a mistake in the manifest, or more than bars differs, 2 wrong usage.`
}

// registeredText is what is said of a registration.
type registeredText struct {
	File   string                  `json:"file"`
	Digest bench.SHA256            `json:"digest"`
	Time   bench.Time              `json:"time"`
	Amends bench.SHA256            `json:"amends,omitempty"`
	Bars   []bench.Bar             `json:"bars"`
	Parts  map[string]bench.SHA256 `json:"digests"`
}

// Run registers.
func (c registerCmd) Run(_ context.Context, g *globals) error {
	m, err := loadDeclared(c.Path, c.Tag)
	if err != nil {
		return err
	}
	program, err := engineVersion()
	if err != nil {
		return err
	}
	var r register.Registered
	if c.Amend == "" {
		r, err = register.New(m.Manifest, program, time.Now())
	} else if r, err = register.Read(c.Amend); err == nil {
		r, err = register.Amend(r, m.Manifest, time.Now())
	}
	if err != nil {
		return err
	}
	files := []string{filepath.Join(g.State, registrationsFolder, fmt.Sprintf("%s-%.12s.json", r.Manifest.Name, r.Digest))}
	if c.Out != "" {
		files = append(files, c.Out)
	}
	for _, file := range files { // all of them, before one is written: half a registration would be a planned experiment
		if err := absent(file); err != nil {
			return err
		}
	}
	for _, file := range files {
		if err := writeNew(file, r.JSON); err != nil {
			return err
		}
		if back, err := register.Read(file); err != nil || back.Digest != r.Digest {
			return errors.Join(&engine.Error{Op: "write registration", Err: fmt.Errorf("%s was not read back as it was written", file)}, err)
		}
	}
	file := files[len(files)-1]
	if g.json() {
		return printJSON(g.Stdout, registeredText{file, r.Digest, r.Time, r.Amends, r.Manifest.Experiment.Bars, r.Digests})
	}
	var b strings.Builder
	fmt.Fprintf(&b, "registered %s at %s\n", r.Digest, r.Time)
	if r.Amends != "" {
		fmt.Fprintf(&b, "  amends %s\n", r.Amends)
	}
	for _, bar := range r.Manifest.Experiment.Bars {
		fmt.Fprintf(&b, "  bar %s: %s\n", bar.Name, register.Asked(bar))
	}
	return printText(g.Stdout, b.String()+"next: drumsbench run --registration "+file+" "+c.Path+"\n")
}

// writeNew writes a file that must not be there.
func writeNew(file string, data []byte) error {
	err := absent(file)
	if err != nil {
		return err
	}
	err = os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = wholefile.Write(file, data, 0o644)
	}
	if err != nil {
		return &engine.Error{Op: "write registration", Err: err}
	}
	return nil
}

// absent refuses a file that is there.
func absent(file string) error {
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(&engine.Error{Op: "write registration", Err: fmt.Errorf("%w: %s is there already", engine.ErrRefused, file), Hint: "name another file with --out: a registration is never written over"}, err)
	}
	return nil
}

// knownRegistrations are those of the state directory. One that is not as it was
// made is said so and left out: it is a copy, which a run's own does not need.
// The starts of registered runs lie beside them.
func knownRegistrations(g *globals) (known register.Known, err error) {
	folder := filepath.Join(g.State, registrationsFolder)
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return known, &engine.Error{Op: "read registrations", Err: err}
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		r, err := register.Read(filepath.Join(folder, e.Name()))
		if err != nil {
			g.Log.Warn("a registration was left out", "error", err)
			continue
		}
		known.Registrations = append(known.Registrations, r)
	}
	known.Starts, err = register.ReadStarts(folder)
	return known, err
}

// readRegistrations reads those that were named.
func readRegistrations(files []string) (list []register.Registered, err error) {
	for _, file := range files {
		r, err := register.Read(file)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	gorunc "github.com/containerd/go-runc"

	"github.com/drumsbench/drumsbench/arms/hosttool"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Tool is the runc in use, as it was read, not as somebody wrote it down.
type Tool struct {
	// Path is absolute and free of symbolic links.
	Path string
	// Version and Commit as the program itself gives them.
	Version, Commit string
	// SHA256 of the program.
	SHA256 string
	// Origin is "operator" for one that scripts/runc-pinned installed, "named" for one
	// that was asked for by its path, else "system".
	Origin string
	// Record is the file that names an operator's program; empty for the system's.
	Record string
}

// recordFile is what scripts/runc-pinned leaves below the state directory.
const recordFile = "runc/operator.json"

const toolHint = "run scripts/setup; scripts/runc-pinned installs a runc of your own, by its digest"

// systemPath is where the system's runc is looked for, whatever PATH says.
var systemPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"}

// Locate finds the runc of a state directory and asks it for its version: the
// operator's where there is a record of one, else the system's. A missing
// program, and one that is not the recorded one any more, is engine.ErrRefused
// with the remedy.
func Locate(ctx context.Context, state string) (Tool, error) {
	t, err := locate(state)
	if err != nil {
		return Tool{}, &engine.Error{Op: "find runc", Err: fmt.Errorf("%w: %w", engine.ErrRefused, err), Hint: toolHint}
	}
	if err := t.ask(ctx); err != nil {
		return Tool{}, &engine.Error{Op: "check runc", Err: err, Hint: toolHint}
	}
	return t, nil
}

// At is the runc at a path that somebody names, asked for its version. What is no
// runc is engine.ErrRefused.
func At(ctx context.Context, path string) (t Tool, err error) {
	t.Origin = "named"
	if t.Path, err = filepath.EvalSymlinks(path); err == nil {
		t.Path, err = filepath.Abs(t.Path)
	}
	if err == nil {
		t.SHA256, err = hosttool.Digest(t.Path)
	}
	if err != nil {
		return Tool{}, &engine.Error{Op: "find runc", Err: fmt.Errorf("%w: %w", engine.ErrRefused, err)}
	}
	if err := t.ask(ctx); err != nil {
		return Tool{}, &engine.Error{Op: "check runc", Err: err}
	}
	return t, nil
}

// ask has the program say what it is.
func (t *Tool) ask(ctx context.Context) error {
	v, err := (&gorunc.Runc{Command: t.Path}).Version(ctx)
	if err == nil && v.Runc == "" {
		err = errors.New("it names no version")
	}
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %s: %w", engine.ErrRefused, t.Path, err)
	}
	t.Version, t.Commit = v.Runc, v.Commit
	return err
}

func locate(state string) (Tool, error) {
	t := Tool{Origin: "operator", Record: filepath.Join(state, recordFile)}
	var record struct {
		Runc struct {
			Path   string `json:"path"`
			SHA256 string `json:"sha256"`
		} `json:"runc"`
	}
	data, err := os.ReadFile(t.Record)
	switch {
	case errors.Is(err, os.ErrNotExist):
		t.Origin, t.Record = "system", ""
		if record.Runc.Path, err = inSystem(); err != nil {
			return t, err
		}
	case err != nil:
		return t, err
	default:
		if err := json.Unmarshal(data, &record); err != nil {
			return t, fmt.Errorf("parse %s: %w", t.Record, err)
		}
		if !filepath.IsAbs(record.Runc.Path) || record.Runc.SHA256 == "" {
			return t, fmt.Errorf("%s names no absolute path of a program with its digest", t.Record)
		}
	}
	if t.Path, err = filepath.EvalSymlinks(record.Runc.Path); err != nil {
		return t, err
	}
	if t.SHA256, err = hosttool.Digest(t.Path); err != nil {
		return t, err
	}
	if record.Runc.SHA256 != "" && record.Runc.SHA256 != t.SHA256 {
		return t, fmt.Errorf("%s has digest %s, %s says %s", t.Path, t.SHA256, t.Record, record.Runc.SHA256)
	}
	return t, nil
}

func inSystem() (string, error) {
	for _, dir := range systemPath {
		if path, err := exec.LookPath(filepath.Join(dir, "runc")); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no runc in %s", strings.Join(systemPath, ", "))
}

// Facts of the tool for the record.
func (t Tool) Facts() []bench.Fact {
	known := func(name, value, source string) bench.Fact {
		return engine.Known(value, source, engine.ViewHost).Fact("runc." + name)
	}
	source := t.Record
	switch {
	case t.Origin == "named":
		source = "it was asked for"
	case source == "":
		source = "the system's folders of programs"
	}
	return []bench.Fact{
		known("version", t.Version, t.Path+" --version"),
		known("sha256", t.SHA256, t.Path),
		known("path", t.Path, source),
		known("origin", t.Origin, source),
	}
}

// Pinned requires that the tool is the one that a manifest names; an empty pin names none.
func (t Tool) Pinned(pin bench.SHA256) error {
	return hosttool.Pinned("runc", t.Path, t.SHA256, pin,
		"install the pinned one with scripts/runc-pinned, or change the manifest")
}

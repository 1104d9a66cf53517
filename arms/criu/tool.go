package criu

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/drumsbench/drumsbench/arms/hosttool"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Oldest CRIU that is accepted: earlier ones cannot dump TCP sockets on kernels from 6.16 on.
const (
	MinMajor = 4
	MinMinor = 2
)

// Tool is the CRIU in use, as it was read, not as somebody wrote it down.
type Tool struct {
	// Path is absolute and free of symbolic links.
	Path string
	// Version as the program itself gives it: "4.2.1", with its git id where it is no release.
	Version string
	// SHA256 of the program.
	SHA256 string
	// Origin is "closure" for a private copy and "operator" for one that the operator named.
	Origin string
	// Shim says what an operator's program has preloaded that is no part of CRIU; empty for nothing. Tests on a machine
	// without CAP_SYS_RESOURCE have one (scripts/criu-shim); it is in the record of every run.
	Shim string
	// Record is the file that names the program, RecordSHA256 its digest: it stands for the closure's packages.
	Record, RecordSHA256 string
	// Packages and Libraries of a closure. Each library was compared with its digest. Empty for an operator's program, whose libraries are the host's.
	Packages  []Package
	Libraries []Library
}

// Package is a distribution package that a closure came from.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
}

// Library is a file of a closure's lib folder.
type Library struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
}

// record is operator.json and closure.json, as scripts/setup and scripts/criu-closure write them.
type record struct {
	Criu struct {
		Path   string `json:"path"`
		SHA256 string `json:"sha256"`
		Shim   string `json:"shim"`
	} `json:"criu"`
	// Path stands at the top where an operator wrote the file by hand.
	Path      string    `json:"path"`
	Packages  []Package `json:"packages"`
	Libraries []Library `json:"libraries"`
}

const setupHint = "run scripts/setup; DRUMSBENCH_CRIU names a criu of your own"

// Locate finds the CRIU of a state directory and asks it for its version:
// STATE/criu/operator.json where it is present, else STATE/criu/current. A
// missing or too old program, and one that is not the recorded one any more, is
// engine.ErrRefused with the remedy.
func Locate(ctx context.Context, state string) (Tool, error) {
	t, err := locate(filepath.Join(state, "criu"))
	if err != nil {
		return Tool{}, refuse("find criu", err, setupHint)
	}
	v, err := t.askVersion(ctx)
	if err != nil {
		if ctx.Err() == nil {
			err = refuse("check criu", fmt.Errorf("%s: %w", t.Path, err), setupHint)
		}
		return Tool{}, err
	}
	t.Version = v.String()
	if v.Major < MinMajor || v.Major == MinMajor && v.Minor < MinMinor {
		return Tool{}, refuse("check criu", fmt.Errorf("%s is version %s, %d.%d or newer is needed", t.Path, v, MinMajor, MinMinor), setupHint)
	}
	return t, nil
}

func refuse(op string, err error, hint string) error {
	return &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", engine.ErrRefused, err), Hint: hint}
}

func locate(dir string) (Tool, error) {
	t := Tool{Origin: "operator", Record: filepath.Join(dir, "operator.json")}
	data, err := os.ReadFile(t.Record)
	if errors.Is(err, os.ErrNotExist) {
		t.Origin, t.Record = "closure", filepath.Join(dir, "current", "closure.json")
		data, err = os.ReadFile(t.Record)
	}
	if err != nil {
		return Tool{}, err
	}
	if t.Record, err = filepath.EvalSymlinks(t.Record); err != nil {
		return Tool{}, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return Tool{}, fmt.Errorf("parse %s: %w", t.Record, err)
	}
	digest := sha256.Sum256(data)
	t.RecordSHA256 = hex.EncodeToString(digest[:])
	t.Packages, t.Libraries, t.Shim = r.Packages, r.Libraries, r.Criu.Shim
	path := r.Criu.Path
	if path == "" {
		path = r.Path
	}
	if !filepath.IsAbs(path) {
		return Tool{}, fmt.Errorf("%s names no absolute path of a program", t.Record)
	}
	if t.Path, err = filepath.EvalSymlinks(path); err != nil {
		return Tool{}, err
	}
	if t.SHA256, err = hosttool.Digest(t.Path); err != nil {
		return Tool{}, err
	}
	if t.Origin == "closure" && r.Criu.SHA256 == "" {
		return Tool{}, fmt.Errorf("%s holds no digest of %s", t.Record, t.Path)
	}
	if r.Criu.SHA256 != "" && r.Criu.SHA256 != t.SHA256 {
		return Tool{}, fmt.Errorf("%s has digest %s, %s says %s", t.Path, t.SHA256, t.Record, r.Criu.SHA256)
	}
	for _, l := range t.Libraries {
		file := filepath.Join(filepath.Dir(t.Record), "lib", filepath.Base(l.Name))
		have, err := hosttool.Digest(file)
		if err != nil {
			return Tool{}, err
		}
		if have != l.SHA256 {
			return Tool{}, fmt.Errorf("%s has digest %s, %s says %s", file, have, t.Record, l.SHA256)
		}
	}
	return t, nil
}

// Facts of the tool for the record.
func (t Tool) Facts() []bench.Fact {
	known := func(name, value, source string) bench.Fact {
		return engine.Known(value, source, engine.ViewHost).Fact("criu." + name)
	}
	facts := []bench.Fact{
		known("version", t.Version, t.Path+" swrk"),
		known("sha256", t.SHA256, t.Path),
		known("path", t.Path, t.Record),
		known("origin", t.Origin, t.Record),
		known("record.sha256", t.RecordSHA256, t.Record),
	}
	if t.Shim != "" {
		facts = append(facts, known("shim", t.Shim, t.Record))
	}
	if t.Origin != "closure" {
		return append(facts, engine.Unknown[string]("an operator's criu uses the host's libraries", engine.ViewHost).Fact("criu.packages"))
	}
	names := make([]string, len(t.Packages))
	for i, p := range t.Packages {
		names[i] = p.Name + "=" + p.Version
	}
	return append(facts, known("packages", strings.Join(names, " "), t.Record))
}

// Pinned requires that the tool is the one that a manifest names; an empty pin names none. ErrRefused otherwise.
func (t Tool) Pinned(pin bench.SHA256) error {
	return hosttool.Pinned("criu", t.Path, t.SHA256, pin,
		"name the pinned one with DRUMSBENCH_CRIU and run scripts/setup, or change the manifest")
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

type vetCmd struct {
	Paths []string `arg:"" name:"path" help:"Folder of a manifest, or its .cue file."`
	Tag   []string `short:"t" sep:"none" placeholder:"KEY=VALUE" help:"Set a field that carries @tag(KEY); may be repeated."`
}

// Help teaches the command.
func (vetCmd) Help() string {
	return `Checks each manifest against the schema in this program and against the rules between fields.
Nothing is run and nothing is fetched. A mistake is one line, file:line:col: path: what, with a
hint after it where there is one.

Examples:

  drumsbench vet manifests/locks
  drumsbench vet -t locks=criu manifests/locks
  drumsbench vet -o json manifests/locks

Exit codes: 0 every manifest is good, 1 there are mistakes, 2 wrong usage.`
}

// vetted is one manifest that passed.
type vetted struct {
	Path     string       `json:"path"`
	Name     bench.Name   `json:"name"`
	Manifest bench.SHA256 `json:"manifest"`
	Workload bench.SHA256 `json:"workload"`
	// Schema says which schema the module declares, if it is another one than this program's.
	Schema bench.Fact `json:"schema"`
}

// Run checks every path before it says anything.
func (c vetCmd) Run(_ context.Context, g *globals) error {
	var good []vetted
	var problems compile.Problems
	for _, path := range c.Paths {
		m, err := compile.Load(compile.Options{Path: path, Tags: c.Tag})
		var found compile.Problems
		if errors.As(err, &found) {
			problems = append(problems, found...)
			continue
		}
		if err != nil {
			return err
		}
		workload, err := compile.Workload(m.Manifest)
		if err != nil {
			return err
		}
		good = append(good, vetted{path, m.Manifest.Name, m.Digest, workload, m.SchemaVersion.Fact("schema version")})
	}
	if len(problems) > 0 {
		return problems
	}
	if g.json() {
		return printJSON(g.Stdout, good)
	}
	var b strings.Builder
	for _, v := range good {
		fmt.Fprintf(&b, "%s: ok: %s, workload %.12s\n", v.Path, v.Name, v.Workload)
		if !v.Schema.Known {
			fmt.Fprintf(&b, "%s: schema version unknown: %s\n", v.Path, v.Schema.Reason)
		}
	}
	return printText(g.Stdout, b.String())
}

// loadDeclared loads a manifest that declares this program's schema.
func loadDeclared(path string, tags []string) (compile.Loaded, error) {
	m, err := compile.Load(compile.Options{Path: path, Tags: tags})
	if err != nil {
		return m, err
	}
	if _, ok := m.SchemaVersion.Get(); !ok {
		return m, &engine.Error{Op: "load " + path, Err: fmt.Errorf("%w: %s", engine.ErrUnknown, m.SchemaVersion.Reason()),
			Hint: "declare the schema of this program, or take it with: drumsbench schema vendor"}
	}
	return m, nil
}

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas"
)

type schemaCmd struct {
	Vendor vendorCmd `cmd:"" help:"Write the schema into a repository, so that stock cue works there without network."`
}

type vendorCmd struct {
	Dir string `arg:"" optional:"" default:"." help:"Folder in the repository; its module is used, or one is made here."`
}

// Help teaches the command.
func (vendorCmd) Help() string {
	return `Writes the schema of this program to cue.mod/vendor/drumsbench and makes cue.mod/local-module.cue
use it; other dependencies in it stay. Where there is no module yet, one is made. Editors and stock
cue then see the schema without network. The engine itself never reads the copy: it uses the schema
in the program, and says so where the copy differs. Run it again after each update of the program.

Examples:

  drumsbench schema vendor
  drumsbench schema vendor ~/manifests && cd ~/manifests && cue vet -c ./...

Exit codes: 0 written and read back, 1 not written, 2 wrong usage.`
}

// Run writes the schema.
func (c vendorCmd) Run(_ context.Context, g *globals) error {
	root, written, err := compile.Vendor(c.Dir)
	if err != nil {
		return err
	}
	if g.json() {
		return printJSON(g.Stdout, struct {
			Root    string   `json:"root"`
			Schema  string   `json:"schema"`
			Version string   `json:"version"`
			Written []string `json:"written"`
		}{root, schemas.APIVersion, schemas.Version, written})
	}
	return printText(g.Stdout, fmt.Sprintf("schema %s in %s: wrote %s\n", schemas.APIVersion, root, strings.Join(written, ", ")))
}

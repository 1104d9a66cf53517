// Package schemas embeds the CUE schema into the program, so that the program
// and the schema that it checks by can never differ. The CUE files are the only
// place where a field is defined; package bench holds the Go types that are
// generated from them.
package schemas

import "embed"

// FS holds the CUE module: cue.mod/module.cue and the packages below it.
//
//go:embed cue.mod/module.cue bench/*.cue
var FS embed.FS

const (
	// Module is the path of the CUE module, as a manifest's module.cue names it in deps.
	Module = "github.com/drumsbench/drumsbench/schemas@v0"
	// Version of the CUE module, as a manifest's module.cue declares it in deps.
	Version = "v0.1.0"
	// Package is the import path of the schema.
	Package = "github.com/drumsbench/drumsbench/schemas/bench"
	// APIVersion is what a manifest for this schema declares in apiVersion.
	APIVersion = "bench/v1alpha1"
)

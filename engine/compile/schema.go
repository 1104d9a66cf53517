package compile

import (
	"fmt"
	"io/fs"
	"path"
	"sync"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/load"
	"cuelang.org/go/cue/parser"

	"github.com/drumsbench/drumsbench/schemas"
)

// schemaFiles is the embedded schema as the loader's overlay has it.
var schemaFiles = sync.OnceValue(func() map[string]load.Source {
	files := map[string]load.Source{}
	_ = eachSchemaFile(func(name string, data []byte) {
		files[path.Join(schemaRoot(), name)] = load.FromBytes(data)
	})
	return files
})

func eachSchemaFile(do func(name string, data []byte)) error {
	return fs.WalkDir(schemas.FS, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(schemas.FS, name)
		if err == nil {
			do(name, data)
		}
		return err
	})
}

// schemaSyntax is the parsed bench package.
func schemaSyntax() ([]*ast.File, error) {
	var files []*ast.File
	var first error
	err := eachSchemaFile(func(name string, data []byte) {
		if path.Dir(name) != "bench" {
			return
		}
		file, err := parser.ParseFile(path.Join(schemaRoot(), name), data, parser.ParseComments)
		if err != nil && first == nil {
			first = err
		}
		files = append(files, file)
	})
	if err == nil {
		err = first
	}
	return files, err
}

// newSchema compiles the embedded schema in a context of its own.
func newSchema() (*cue.Context, cue.Value, error) {
	files, err := schemaSyntax()
	if err != nil {
		return nil, cue.Value{}, fmt.Errorf("parse embedded schema: %w", err)
	}
	instance := build.NewContext().NewInstance(schemaRoot(), nil)
	instance.ImportPath = schemas.Package
	for _, file := range files {
		if err := instance.AddSyntax(file); err != nil {
			return nil, cue.Value{}, fmt.Errorf("build embedded schema: %w", err)
		}
	}
	ctx := cuecontext.New()
	value := ctx.BuildInstance(instance)
	return ctx, value, value.Err()
}

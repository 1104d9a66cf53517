// Package compile turns what a person wrote in CUE into typed values, and says
// what is wrong with it in words that point at the person's own line.
//
// What always holds: the schema is the one in this program, whatever schema the
// person's repository names; nothing is fetched, no registry or cache is asked;
// and a value that is returned has passed the schema and the rules between its
// fields.
package compile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/inject/embed"
	"cuelang.org/go/cue/load"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/mod/module"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Options say what is loaded.
type Options struct {
	// Path is a folder, which is one package, or a single .cue file; absolute or relative to the working directory.
	Path string
	// Tags are "key=value" and set fields that carry @tag(key), like cue -t.
	Tags []string
}

// Loaded is a manifest that has passed.
type Loaded struct {
	// Manifest with every default filled in, see Effective.
	Manifest bench.Manifest
	// JSON is the manifest as canonical JSON (RFC 8785): what a run keeps as manifest.json.
	JSON []byte
	// Digest is the SHA-256 of JSON.
	Digest bench.SHA256
	// Tags as they were given.
	Tags map[string]string
	// Dir is the absolute path of the folder that holds the manifest: its relative paths start here.
	Dir string
	// SchemaVersion is unknown where the module declares or carries another schema
	// than the one in this program, which is the one that was used.
	SchemaVersion engine.Reading[string]
}

// Load reads the manifest at o.Path.
//
// Errors: Problems for mistakes in the manifest; engine.ErrUsage for a
// malformed tag or a path that is not there; engine.ErrRefused for an
// environment that would change what the manifest means, and for a manifest whose
// evaluation takes more time or memory than one does: CUE runs on then, so the
// process ought to end.
func Load(o Options) (Loaded, error) {
	return within(func() (Loaded, error) { return loadManifest(o) })
}

func loadManifest(o Options) (Loaded, error) {
	src, err := open(o)
	if err != nil {
		return Loaded{}, err
	}
	var m bench.Manifest
	if err := src.decode("Manifest", &m); err != nil {
		return Loaded{}, err
	}
	if m, err = Effective(m); err != nil {
		return Loaded{}, err
	}
	if problems := src.place(append(manifestRules(m), checkerRules(src.dir, m.Checker)...)); len(problems) > 0 {
		return Loaded{}, problems
	}
	data, err := canonical.JSON(m)
	if err != nil {
		return Loaded{}, &engine.Error{Op: "encode manifest", Err: err}
	}
	return Loaded{
		Manifest: m, JSON: data, Digest: canonical.Sum(data),
		Tags: src.tags, Dir: src.dir, SchemaVersion: src.module.version,
	}, nil
}

// LoadRecipe reads the image recipe at path, a folder or a single file. Errors as Load's.
func LoadRecipe(path string) (bench.Recipe, error) {
	return within(func() (bench.Recipe, error) { return loadRecipe(path) })
}

func loadRecipe(path string) (bench.Recipe, error) {
	src, err := open(Options{Path: path})
	if err != nil {
		return bench.Recipe{}, err
	}
	var r bench.Recipe
	if err := src.decode("Recipe", &r); err != nil {
		return bench.Recipe{}, err
	}
	if problems := src.place(recipeRules(r)); len(problems) > 0 {
		return bench.Recipe{}, problems
	}
	return r, nil
}

// source is one package or file of a person's module, not yet evaluated.
type source struct {
	module *userModule
	// dir is the folder of the package; arg is what the loader is told to load in it.
	dir, arg string
	tags     map[string]string
	tagArgs  []string
	instance *build.Instance
}

// usage is an error about the caller's words.
type usage string

func (u usage) Error() string { return string(u) }
func (u usage) Unwrap() error { return engine.ErrUsage }

var tagForm = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)=(.*)$`)

// open finds the module around o.Path.
func open(o Options) (*source, error) {
	if err := refuseEnvironment(); err != nil {
		return nil, err
	}
	src := &source{tags: map[string]string{}, tagArgs: o.Tags}
	for _, tag := range o.Tags {
		parts := tagForm.FindStringSubmatch(tag)
		if parts == nil {
			return nil, &engine.Error{Op: "read tag", Hint: "write -t key=value",
				Err: usage(fmt.Sprintf("%q is not key=value", tag))}
		}
		if _, twice := src.tags[parts[1]]; twice {
			return nil, &engine.Error{Op: "read tag", Hint: "give each tag once",
				Err: usage(parts[1] + " is set twice")}
		}
		src.tags[parts[1]] = parts[2]
	}
	path, err := filepath.Abs(o.Path)
	if err != nil {
		return nil, &engine.Error{Op: "find manifest", Err: err}
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &engine.Error{Op: "find manifest", Err: usage(o.Path + ": no such file or folder"),
			Hint: "name a folder that holds a manifest, or the file itself"}
	case err != nil:
		return nil, &engine.Error{Op: "find manifest", Err: err}
	case info.IsDir():
		src.dir, src.arg = path, "."
	case !strings.HasSuffix(path, ".cue"):
		return nil, &engine.Error{Op: "find manifest", Err: usage(o.Path + " is not a .cue file"),
			Hint: "name a folder that holds a manifest, or the file itself"}
	default:
		src.dir, src.arg = filepath.Dir(path), filepath.Base(path)
	}
	if src.module, err = findModule(src.dir); err != nil {
		return nil, err
	}
	if problem := src.checkFolder(); problem != nil {
		return nil, Problems{*problem}
	}
	return src, nil
}

// checkFolder tells what CUE tells in words that point elsewhere: a folder whose
// name cannot be part of an import path, and files without a package clause.
func (src *source) checkFolder() *Problem {
	if src.arg != "." {
		return readable(filepath.Join(src.dir, src.arg))
	}
	rel, err := filepath.Rel(src.module.root, src.dir)
	if err == nil && rel != "." && module.CheckImportPath("example.com/"+filepath.ToSlash(rel)) != nil {
		return &Problem{File: display(src.dir), Text: fmt.Sprintf("the folder's name %q cannot be part of a CUE import path", rel),
			Hint: "rename it to letters, digits, - and _, or name the file"}
	}
	files, err := filepath.Glob(filepath.Join(src.dir, "*.cue"))
	if err != nil || len(files) == 0 {
		return nil // the loader says so
	}
	for _, name := range files {
		if problem := readable(name); problem != nil {
			return problem
		}
	}
	for _, name := range files {
		file, err := parser.ParseFile(name, nil, parser.PackageClauseOnly)
		if err != nil || file.PackageName() != "" {
			return nil
		}
	}
	return &Problem{File: display(files[0]), Text: "no package clause", Hint: fmt.Sprintf("begin the file with: package %s", packageName(src.dir))}
}

var notInPackage = regexp.MustCompile(`[^a-z0-9_]+`)

// packageName is a name for a package in dir.
func packageName(dir string) string {
	name := strings.TrimLeft(notInPackage.ReplaceAllString(strings.ToLower(filepath.Base(dir)), ""), "0123456789")
	if name == "" {
		return "manifest"
	}
	return name
}

// parse is how files are read; nil is CUE's own way.
type parse func(name string, source any, config parser.Config) (*ast.File, error)

// instances loads the package with an overlay in which the schema is schema.
func (src *source) instances(schema map[string]load.Source, read parse) []*build.Instance {
	overlay := make(map[string]load.Source, len(schema)+1)
	for name, file := range src.module.overlay {
		overlay[name] = file
	}
	for name, file := range schema {
		overlay[name] = file
	}
	return load.Instances([]string{src.arg, schemas.Package}, &load.Config{
		Dir: src.dir, ModuleRoot: src.module.root,
		Overlay: overlay, Registry: registry{}, Env: []string{}, Tags: src.tagArgs, ParseFile: bounded(read),
	})
}

// evaluate builds the package and the schema in one context.
func (src *source) evaluate(overlay map[string]load.Source, read parse) (value, schema cue.Value, instance *build.Instance, err error) {
	ctx := cuecontext.New(cuecontext.WithInjection(embed.New()))
	for _, loaded := range src.instances(overlay, read) {
		if strings.HasPrefix(loaded.ImportPath, schemas.Package) {
			schema = ctx.BuildInstance(loaded)
			continue
		}
		instance = loaded
		if loaded.Err != nil {
			return value, schema, instance, loaded.Err
		}
		value = ctx.BuildInstance(loaded)
	}
	if err := schema.Err(); err != nil {
		return value, schema, instance, &engine.Error{Op: "read schema of this program", Err: err}
	}
	return value, schema, instance, nil
}

// decode evaluates the package against a definition of the schema and fills out.
func (src *source) decode(definition string, out any) error {
	value, schema, instance, err := src.evaluate(schemaFiles(), nil)
	src.instance = instance
	if err != nil {
		return src.explain(definition, err)
	}
	value = value.Unify(schema.LookupPath(cue.MakePath(cue.Def(definition))))
	if err := value.Validate(cue.Concrete(true), cue.Final()); err != nil {
		return src.explain(definition, err)
	}
	data, err := value.MarshalJSON()
	if err != nil {
		return src.explain(definition, err)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return &engine.Error{Op: "decode " + strings.ToLower(definition), Err: err}
	}
	return nil
}

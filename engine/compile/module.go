package compile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"cuelang.org/go/cue/load"
	"cuelang.org/go/mod/modfile"
	"cuelang.org/go/mod/modregistry"
	"cuelang.org/go/mod/module"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas"
)

// userModule is the CUE module that a manifest lies in, with the schema of this
// program in the place of whatever schema the module names.
type userModule struct {
	root string
	// overlay is laid over the host's files: the module's dependencies, with the schema among them.
	overlay map[string]load.Source
	version engine.Reading[string]
}

// schemaRoot is where the schema seems to lie. There is no such folder on the
// host: the loader wants an absolute path for each file, and this one carries
// the schema's digest so that a message about it says which schema is meant.
var schemaRoot = sync.OnceValue(func() string { return "/drumsbench-schema-" + schemaDigest()[:12] })

// schemaDigest is over the names and contents of all files of the embedded schema.
var schemaDigest = sync.OnceValue(func() string {
	digest, err := digestOf(schemas.FS)
	if err != nil {
		panic("the embedded schema cannot be read: " + err.Error()) // an embed.FS is memory
	}
	return digest
})

// digestOf is over the module file and the bench package of a folder that holds the schema.
func digestOf(fsys fs.FS) (string, error) {
	files := map[string]string{}
	names, err := fs.Glob(fsys, "bench/*.cue")
	if err != nil {
		return "", err
	}
	for _, name := range append(names, "cue.mod/module.cue") {
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return "", err
		}
		files[name] = string(data)
	}
	digest, err := canonical.Digest(files)
	return string(digest), err
}

// findModule walks up from dir to the folder that holds cue.mod.
func findModule(dir string) (*userModule, error) {
	for root := dir; ; root = filepath.Dir(root) {
		name := filepath.Join(root, "cue.mod", "module.cue")
		if problem := readable(name); problem != nil {
			return nil, Problems{*problem}
		}
		data, err := os.ReadFile(name)
		if err == nil {
			return newModule(root, name, data)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, &engine.Error{Op: "read module", Err: err}
		}
		if root == filepath.Dir(root) {
			return nil, Problems{{
				File: display(dir), Text: "not in a CUE module: there is no cue.mod/module.cue here or in a folder above",
				Hint: "run drumsbench schema vendor in the top folder of your manifests: it makes one, with the schema in it",
			}}
		}
	}
}

func newModule(root, name string, data []byte) (*userModule, error) {
	if _, err := os.Lstat(schemaRoot()); !errors.Is(err, fs.ErrNotExist) {
		return nil, &engine.Error{Op: "lay out schema", Err: fmt.Errorf("%w: %s must not exist on the host", engine.ErrRefused, schemaRoot())}
	}
	declared, effective, err := parseModule(root, name, data)
	if err != nil {
		return nil, err
	}
	m := &userModule{root: root, version: schemaVersion(root, effective)}
	// The loader's view: the module's own dependencies, and our schema under its own name.
	effective.Deps[schemas.Module] = &modfile.Dep{Version: schemas.Version}
	local, err := modfile.FormatLocal(effective, declared)
	if err != nil {
		return nil, loadProblems(name, err)
	}
	m.overlay = map[string]load.Source{filepath.Join(root, "cue.mod", "local-module.cue"): load.FromBytes(local)}
	return m, nil
}

// parseModule reads a module's two files: what it declares, and what holds here
// once local-module.cue is laid over it.
func parseModule(root, name string, data []byte) (declared, effective *modfile.File, err error) {
	declared, err = modfile.ParseNonStrict(data, name)
	if err != nil {
		return nil, nil, loadProblems(name, err)
	}
	if declared.QualifiedModule() == schemas.Module {
		return nil, nil, Problems{{File: display(root), Text: "this is the schema itself, not a module of manifests"}}
	}
	copied := *declared
	copied.Deps = maps.Clone(declared.Deps)
	effective = &copied
	local := filepath.Join(root, "cue.mod", "local-module.cue")
	if problem := readable(local); problem != nil {
		return nil, nil, Problems{*problem}
	}
	localData, err := os.ReadFile(local)
	switch {
	case err == nil:
		if effective, err = modfile.ParseLocal(localData, local, declared); err != nil {
			return nil, nil, loadProblems(local, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, nil, &engine.Error{Op: "read module", Err: err}
	}
	if effective.Deps == nil {
		effective.Deps = map[string]*modfile.Dep{}
	}
	return declared, effective, nil
}

// schemaVersion says whether the schema that the module declares is the one in
// this program. Another one is unknown, never silently taken for this one.
func schemaVersion(root string, f *modfile.File) engine.Reading[string] {
	dep, ok := f.Deps[schemas.Module]
	if !ok {
		return engine.Known(schemas.Version, "this program's schema; the module declares none", engine.ViewHost)
	}
	if dep.ReplaceWith != "" {
		dir := dep.ReplaceWith
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(root, dir)
		}
		digest, err := digestOf(os.DirFS(dir))
		switch {
		case err != nil:
			var reason *fs.PathError
			if errors.As(err, &reason) {
				err = reason.Err
			}
			return engine.Unknown[string](fmt.Sprintf("the module's own copy of the schema in %s cannot be read: %v", dep.ReplaceWith, err), engine.ViewHost)
		case digest != schemaDigest():
			return engine.Unknown[string](fmt.Sprintf("the module's own copy of the schema in %s differs from this program's; run drumsbench schema vendor", dep.ReplaceWith), engine.ViewHost)
		}
		return engine.Known(schemas.Version, "the module's own copy of the schema equals this program's", engine.ViewHost)
	}
	if dep.Version != schemas.Version {
		return engine.Unknown[string](fmt.Sprintf("the module declares schema %s, this program's is %s", dep.Version, schemas.Version), engine.ViewHost)
	}
	return engine.Known(dep.Version, "cue.mod/module.cue", engine.ViewHost)
}

// registry serves the embedded schema and nothing else: no network, no cache of
// modules, no configuration of the host.
type registry struct{}

func (registry) ModFile(_ context.Context, m module.Version) (*modfile.File, error) {
	if m.Path() != schemas.Module {
		return nil, offline(m)
	}
	data, err := fs.ReadFile(schemas.FS, "cue.mod/module.cue")
	if err != nil {
		return nil, err
	}
	return modfile.ParseNonStrict(data, "cue.mod/module.cue")
}

func (registry) Fetch(_ context.Context, m module.Version) (module.SourceLoc, error) {
	if m.Path() != schemas.Module {
		return module.SourceLoc{}, offline(m)
	}
	return module.SourceLoc{FS: schemaFS{schemas.FS}, Dir: "."}, nil
}

func (registry) ModuleVersions(_ context.Context, name string) ([]string, error) {
	if name == schemas.Module || name == strings.TrimSuffix(schemas.Module, "@v0") {
		return []string{schemas.Version}, nil
	}
	return nil, nil
}

func offline(m module.Version) error {
	return fmt.Errorf("module %s: nothing is fetched: %w", m, modregistry.ErrNotFound)
}

// schemaFS tells the loader that the schema lies in schemaRoot, where the overlay has it.
type schemaFS struct{ fs.FS }

func (schemaFS) OSRoot() string { return schemaRoot() }

// refuseEnvironment refuses variables that change how CUE evaluates without a
// word in the manifest (cases 29). Registry and cache variables need no refusal:
// nothing reads them, since the registry is ours.
func refuseEnvironment() error {
	var set bytes.Buffer
	for _, name := range []string{"CUE_EXPERIMENT", "CUE_DEBUG"} {
		if os.Getenv(name) != "" {
			fmt.Fprintf(&set, " %s", name)
		}
	}
	if set.Len() == 0 {
		return nil
	}
	return &engine.Error{
		Op: "read environment", Hint: "unset" + set.String(),
		Err: fmt.Errorf("%w: set and would change what a manifest means:%s", engine.ErrRefused, set.String()),
	}
}

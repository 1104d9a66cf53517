package compile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"cuelang.org/go/mod/modfile"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/wholefile"
	"github.com/drumsbench/drumsbench/schemas"
)

const (
	// vendorFolder is where a module keeps its copy of the schema. Inside cue.mod no pattern such as ./... looks for packages.
	vendorFolder = "cue.mod/vendor/drumsbench"
	// newModuleName is the module that Vendor makes where there is none. Only imports within the repository use it.
	newModuleName = "manifests.example@v0"
	// languageVersion is the oldest that allows a module to be replaced by a folder.
	languageVersion = "v0.17.0"
)

// Vendor writes the schema of this program into the module around dir and makes
// the module use it, so that stock cue checks manifests there without network.
// Where there is no module it makes one in dir. It returns the paths that it
// wrote, relative to the module's folder. Idempotent; a copy of an older program
// is replaced whole.
func Vendor(dir string) (root string, written []string, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return "", nil, &engine.Error{Op: "vendor schema", Err: err}
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", nil, &engine.Error{Op: "vendor schema", Hint: "name the top folder of your manifests",
			Err: usage(dir + " is not a folder")}
	}
	root = moduleRoot(dir)
	name := "cue.mod/module.cue"
	if root == "" {
		root = dir
		data, err := modfile.Format(&modfile.File{Module: newModuleName, Language: &modfile.Language{Version: "v0.17.1"}})
		if err == nil {
			err = os.MkdirAll(filepath.Join(root, "cue.mod"), 0o755)
		}
		if err == nil {
			err = wholefile.Write(filepath.Join(root, name), data, 0o644)
		}
		if err != nil {
			return "", nil, &engine.Error{Op: "make module", Err: err}
		}
		written = append(written, name)
	}
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return "", nil, &engine.Error{Op: "read module", Err: err}
	}
	declared, effective, err := parseModule(root, filepath.Join(root, name), data)
	if err != nil {
		return "", nil, err
	}
	effective.Deps[schemas.Module] = &modfile.Dep{Version: schemas.Version, ReplaceWith: "./" + vendorFolder}
	local, err := modfile.FormatLocal(effective, declared)
	if err != nil {
		return "", nil, &engine.Error{Op: "write local-module.cue", Err: err,
			Hint: fmt.Sprintf("a module can be replaced by a folder since %s: set language: version: \"v0.17.1\" in %s", languageVersion, name)}
	}
	if err := vendorSchema(filepath.Join(root, vendorFolder)); err != nil {
		return "", nil, &engine.Error{Op: "vendor schema", Err: err}
	}
	if err := wholefile.Write(filepath.Join(root, "cue.mod/local-module.cue"), local, 0o644); err != nil {
		return "", nil, &engine.Error{Op: "write local-module.cue", Err: err}
	}
	written = append(written, vendorFolder, "cue.mod/local-module.cue")

	// Read back what stock cue will find.
	m, err := findModule(root)
	if err != nil {
		return "", nil, err
	}
	if _, known := m.version.Get(); !known {
		return "", nil, &engine.Error{Op: "read back vendored schema", Err: errors.New(m.version.Reason())}
	}
	return root, written, nil
}

// moduleRoot is the folder at or above dir that holds a module; empty if there is none.
func moduleRoot(dir string) string {
	for root := dir; ; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "cue.mod", "module.cue")); err == nil {
			return root
		}
		if root == filepath.Dir(root) {
			return ""
		}
	}
}

// vendorSchema replaces folder by the embedded schema. It is complete beside its place before it takes it.
func vendorSchema(folder string) error {
	parent := filepath.Dir(folder)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(parent, ".drumsbench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	if err := os.Chmod(fresh, 0o755); err != nil {
		return err
	}
	if err := os.CopyFS(fresh, writable{schemas.FS}); err != nil {
		return err
	}
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	return os.Rename(fresh, folder)
}

// writable gives the read-only files of an embed.FS the usual mode of a file in a repository.
type writable struct{ fs.FS }

func (w writable) Open(name string) (fs.File, error) {
	f, err := w.FS.Open(name)
	if err != nil {
		return nil, err
	}
	if dir, ok := f.(fs.ReadDirFile); ok {
		return dir, nil
	}
	return writableFile{f}, nil
}

type writableFile struct{ fs.File }

func (f writableFile) Stat() (fs.FileInfo, error) {
	info, err := f.File.Stat()
	return writableInfo{info}, err
}

type writableInfo struct{ fs.FileInfo }

func (writableInfo) Mode() fs.FileMode { return 0o644 }

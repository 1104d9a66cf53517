package schemas_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/load"
	"cuelang.org/go/mod/modfile"

	"github.com/drumsbench/drumsbench/schemas"
)

// What Go says of the schema is what the CUE says.
func TestConstants(t *testing.T) {
	instances := load.Instances([]string{"./bench"}, &load.Config{Env: []string{"CUE_REGISTRY=none"}})
	value := cuecontext.New().BuildInstance(instances[0])
	version, err := value.LookupPath(cue.MakePath(cue.Def("APIVersion"))).String()
	if err != nil || version != schemas.APIVersion {
		t.Errorf("APIVersion: CUE says %q, Go %q, %v", version, schemas.APIVersion, err)
	}
	data, err := fs.ReadFile(schemas.FS, "cue.mod/module.cue")
	if err != nil {
		t.Fatal(err)
	}
	module, err := modfile.Parse(data, "cue.mod/module.cue")
	if err != nil || module.QualifiedModule() != schemas.Module {
		t.Errorf("Module: CUE says %q, Go %q, %v", module.QualifiedModule(), schemas.Module, err)
	}
	data, err = os.ReadFile("../manifests/cue.mod/module.cue")
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := modfile.Parse(data, "../manifests/cue.mod/module.cue")
	if err != nil || manifests.Deps[schemas.Module] == nil || manifests.Deps[schemas.Module].Version != schemas.Version {
		t.Errorf("the manifests of this repository declare another schema than %s: %v", schemas.Version, err)
	}
}

// No file of the schema is left out of the program.
func TestEmbedIsComplete(t *testing.T) {
	count := 0
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(name) != ".cue" {
			return err
		}
		count++
		disk, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if embedded, err := fs.ReadFile(schemas.FS, name); err != nil || string(embedded) != string(disk) {
			t.Errorf("%s is not in the program as it is on disk: %v", name, err)
		}
		return nil
	})
	if err != nil || count < 2 {
		t.Errorf("%d files, %v", count, err)
	}
}

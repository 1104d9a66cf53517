package compile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// repository makes a module with the base manifest in dir and returns it.
func repository(t testing.TB, module string) string {
	t.Helper()
	base, err := os.ReadFile("testdata/base.cue")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range map[string]string{
		"cue.mod/module.cue": module,
		"pins/pins.cue":      "package pins\n\ntiny:   \"" + zeros + "\"\nguestd: \"" + zeros + "\"\n",
		"locks/locks.cue":    string(base),
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const plainModule = "module: \"example.com/user@v0\"\nlanguage: version: \"v0.17.1\"\n"

func TestLoad(t *testing.T) {
	dir := repository(t, plainModule)
	folder, err := Load(Options{Path: filepath.Join(dir, "locks"), Tags: []string{"locks=criu", "rollouts=3"}})
	if err != nil {
		t.Fatal(err)
	}
	m := folder.Manifest
	if m.Name != "locks" || m.Arms.Drums.Locks != "criu" || m.Experiment.Rollouts != 3 || folder.Tags["locks"] != "criu" {
		t.Errorf("tags did not reach the manifest: %+v %v", m, folder.Tags)
	}
	if m.Guest.Server.Port != 5000 || m.Readiness.Period != "10ms" || m.Arms.Drums.Attach != "raw" {
		t.Errorf("defaults of the schema are missing: %+v", m)
	}
	if m.Policy == nil || m.Policy.Oracle == nil || m.Checkpoint == nil || m.Checkpoint.GhostLimit != "64MiB" || m.State == nil {
		t.Errorf("defaults of absent structs are missing: %+v", m)
	}
	if folder.Dir != filepath.Join(dir, "locks") {
		t.Errorf("dir is %s", folder.Dir)
	}
	var again bench.Manifest
	if err := json.Unmarshal(folder.JSON, &again); err != nil {
		t.Fatal(err)
	}
	if data, err := canonical.JSON(again); err != nil || string(data) != string(folder.JSON) || canonical.Sum(data) != folder.Digest {
		t.Errorf("JSON does not round-trip: %v\n%s\n%s", err, data, folder.JSON)
	}
	if err := Validate("Manifest", folder.JSON); err != nil {
		t.Errorf("JSON does not pass the schema: %v", err)
	}

	t.Chdir(dir)
	for _, path := range []string{"locks", "./locks", "locks/", "locks/locks.cue", "./locks/locks.cue", "../" + filepath.Base(dir) + "/locks"} {
		loaded, err := Load(Options{Path: path, Tags: []string{"locks=criu", "rollouts=3"}})
		if err != nil || loaded.Digest != folder.Digest {
			t.Errorf("%s: digest %s, %v", path, loaded.Digest, err)
		}
	}
}

// Whatever schema the module names, or none, the one in the program is used,
// without network, and a different one is unknown.
func TestSchemaVersion(t *testing.T) {
	dep := "deps: \"" + schemas.Module + "\": v: \"%s\"\n"
	replaced := "deps: \"" + schemas.Module + "\": {v: \"v0.1.0\", replaceWith: \"./copy\"}\n"
	old := map[string]string{
		"copy/cue.mod/module.cue": "module: \"" + schemas.Module + "\"\nlanguage: version: \"v0.17.1\"\n",
		"copy/bench/bench.cue":    "package bench\n\n#Manifest: {name: int, ...}\n",
	}
	for _, test := range []struct {
		name, module, local string
		files               map[string]string
		known               bool
		reason              string
	}{
		{name: "none", module: plainModule, known: true},
		{name: "same", module: plainModule + fmt.Sprintf(dep, schemas.Version), known: true},
		{name: "other", module: plainModule + fmt.Sprintf(dep, "v0.9.0"), reason: "declares schema v0.9.0"},
		{name: "copy", module: plainModule, local: replaced, files: old, reason: "./copy differs"},
		{name: "no copy", module: plainModule, local: replaced, reason: "./copy cannot be read"},
		{name: "old language", module: strings.Replace(plainModule, "v0.17.1", "v0.9.0", 1), known: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("CUE_REGISTRY", "registry.invalid")
			t.Setenv("CUE_CACHE_DIR", "/nonexistent")
			dir := repository(t, test.module)
			if test.local != "" {
				write(t, dir, "cue.mod/local-module.cue", test.local)
			}
			for name, data := range test.files {
				write(t, dir, name, data)
			}
			loaded, err := Load(Options{Path: filepath.Join(dir, "locks")})
			if err != nil {
				t.Fatal(err)
			}
			_, known := loaded.SchemaVersion.Get()
			if known != test.known || !strings.Contains(loaded.SchemaVersion.Reason(), test.reason) {
				t.Errorf("known %v, reason %q", known, loaded.SchemaVersion.Reason())
			}
		})
	}
}

// A package of another module is found when its module is replaced by a folder; one that would have to be fetched is not.
func TestOtherModules(t *testing.T) {
	dir := repository(t, plainModule)
	write(t, dir, "cue.mod/local-module.cue", "deps: \"example.com/shared@v0\": {v: \"v0.0.1\", replaceWith: \"./shared\"}\n")
	write(t, dir, "shared/cue.mod/module.cue", "module: \"example.com/shared@v0\"\nlanguage: version: \"v0.17.1\"\n")
	write(t, dir, "shared/sizes/sizes.cue", "package sizes\n\nsmall: \"512MiB\"\n")
	manifest := filepath.Join(dir, "locks/locks.cue")
	data, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(data), `"example.com/user/pins"`, "\"example.com/user/pins\"\n\t\"example.com/shared/sizes\"", 1)
	text = strings.Replace(text, `"512MiB"`, "sizes.small", 1)
	write(t, dir, "locks/locks.cue", text)
	loaded, err := Load(Options{Path: manifest})
	if err != nil || loaded.Manifest.Resources.Memory != "512MiB" {
		t.Errorf("memory %q, %v", loaded.Manifest.Resources.Memory, err)
	}
	if err := os.Remove(filepath.Join(dir, "cue.mod/local-module.cue")); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "cue.mod/module.cue", plainModule+"deps: \"example.com/shared@v0\": v: \"v0.0.1\"\n")
	var problems Problems
	if _, err := Load(Options{Path: manifest}); !errors.As(err, &problems) {
		t.Errorf("a module that would have to be fetched: %v", err)
	}
}

// cases 29: a setting outside the manifest changes behaviour.
func TestEnvironmentIsRefused(t *testing.T) {
	dir := repository(t, plainModule)
	for _, name := range []string{"CUE_EXPERIMENT", "CUE_DEBUG"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "opendef")
			_, err := Load(Options{Path: filepath.Join(dir, "locks")})
			if !errors.Is(err, engine.ErrRefused) || !strings.Contains(err.Error(), name) {
				t.Errorf("have %v", err)
			}
		})
	}
}

func TestLoadIsConcurrent(t *testing.T) {
	dir := repository(t, plainModule)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			loaded, err := Load(Options{Path: filepath.Join(dir, "locks")})
			if err == nil {
				err = Validate("Manifest", loaded.JSON)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestLoadRecipe(t *testing.T) {
	dir := repository(t, plainModule)
	write(t, dir, "tiny/recipe.cue", `package tiny

import "github.com/drumsbench/drumsbench/schemas/bench"

bench.#Recipe & {
	apiVersion: "bench/v1alpha1"
	name:       "tiny"
	suite:      "bookworm"
	packages: ["busybox-static"]
	size:  "1GiB"
	epoch: 1700000000
	uuid:  "11111111-2222-3333-4444-555555555555"
	files: [{path: "/usr/local/bin/a", source: "a", mode: "0755"}, {path: "/etc/empty", content: ""}]
	pin: "tiny"
}
`)
	for _, path := range []string{"tiny", "tiny/recipe.cue"} {
		r, err := LoadRecipe(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if r.Pin != "tiny" || len(r.Files) != 2 || r.Files[0].Mode != "0755" || r.Files[1].Mode != "0644" {
			t.Errorf("have %+v", r)
		}
	}
}

// A manifest may embed a file of its own package, as with stock cue.
func TestEmbeddedFile(t *testing.T) {
	dir := repository(t, plainModule)
	base, err := os.ReadFile("testdata/base.cue")
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "locks/locks.cue", "@extern(embed)\n"+strings.Replace(string(base), `id: "write"`,
		"id: \"write\"\n\t\tinstruction: string @embed(file=do.txt,type=text)", 1))
	write(t, dir, "locks/do.txt", "write a row")
	loaded, err := Load(Options{Path: filepath.Join(dir, "locks")})
	if err != nil || loaded.Manifest.Task.Instruction != "write a row" {
		t.Errorf("have %q, %v", loaded.Manifest.Task.Instruction, err)
	}
}

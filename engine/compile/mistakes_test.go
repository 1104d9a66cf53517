package compile

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write the golden files of this package anew")

// TestMistakes holds what a person sees for each common mistake. A case is
// testdata/mistakes/NAME.txtar: a base manifest in locks/locks.cue, changed by
// the directives in the archive's comment, and the message in "want".
//
//	replace: OLD => NEW   in the base manifest; \n and \t are those characters
//	load: PATH            instead of locks
//	tag: KEY=VALUE
//	recipe                load it as a recipe
//	bare                  without the base module and manifest
//
// Files of the archive are laid over the base.
func TestMistakes(t *testing.T) {
	cases, err := filepath.Glob("testdata/mistakes/*.txtar")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	base, err := os.ReadFile("testdata/base.cue")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range cases {
		name, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			mistake(t, name, archive, string(base))
		})
	}
}

func mistake(t *testing.T, name string, archive *txtar.Archive, manifest string) {
	o, recipe, bare := Options{Path: "locks"}, false, false
	unescape := strings.NewReplacer(`\n`, "\n", `\t`, "\t")
	for line := range strings.Lines(string(archive.Comment)) {
		directive, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch directive {
		case "replace":
			before, after, ok := strings.Cut(value, " =>")
			after = strings.TrimPrefix(after, " ")
			before, after = unescape.Replace(before), unescape.Replace(after)
			if !ok || strings.Count(manifest, before) != 1 {
				t.Fatalf("%q does not stand once in the base manifest", before)
			}
			manifest = strings.Replace(manifest, before, after, 1)
		case "load":
			o.Path = value
		case "tag":
			o.Tags = append(o.Tags, value)
		case "recipe":
			recipe = true
		case "bare":
			bare = true
		}
	}
	dir := t.TempDir()
	if !bare {
		write(t, dir, "cue.mod/module.cue", "module: \"example.com/user@v0\"\nlanguage: version: \"v0.17.1\"\n")
		write(t, dir, "pins/pins.cue", "package pins\n\ntiny:   \""+zeros+"\"\nguestd: \""+zeros+"\"\n")
		write(t, dir, "locks/locks.cue", manifest)
	}
	want := -1
	for i, file := range archive.Files {
		if file.Name == "want" {
			want = i
			continue
		}
		write(t, dir, file.Name, string(file.Data))
	}
	t.Chdir(dir)

	var err error
	if recipe {
		_, err = LoadRecipe(o.Path)
	} else {
		_, err = Load(o)
	}
	if err == nil {
		t.Fatal("loaded")
	}
	var problems Problems
	var got strings.Builder
	if errors.As(err, &problems) {
		for _, p := range problems {
			got.WriteString(p.Error() + "\n")
			if p.Hint != "" {
				got.WriteString("hint: " + p.Hint + "\n")
			}
		}
	} else {
		got.WriteString(err.Error() + "\n")
	}
	if strings.Contains(got.String(), dir) || strings.Contains(got.String(), "drumsbench-schema") {
		t.Errorf("the message names a place that is not the person's:\n%s", got.String())
	}
	if *update {
		file := txtar.File{Name: "want", Data: []byte(got.String())}
		if want < 0 {
			archive.Files = append(archive.Files, file)
		} else {
			archive.Files[want] = file
		}
		if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want < 0 {
		t.Fatalf("no want; the message is\n%s", got.String())
	}
	if string(archive.Files[want].Data) != got.String() {
		t.Errorf("have\n%swant\n%s", got.String(), archive.Files[want].Data)
	}
}

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"

func write(t *testing.T, dir, name, data string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

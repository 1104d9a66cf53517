package compile

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var tokens = regexp.MustCompile(`"[^"\n]*"|[A-Za-z_#]+|[0-9]+|[^\s]|\n`)

// TestAnyMistakeIsTold damages a manifest in a random place. It loads, or each
// problem has words and stands in the person's own files: never a panic, never a
// line of the schema, never nothing.
func TestAnyMistakeIsTold(t *testing.T) {
	dir := repository(t, plainModule)
	base, err := os.ReadFile("testdata/base.cue")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	all := tokens.FindAllString(string(base), -1)
	rapid.Check(t, func(r *rapid.T) {
		words := slices.Clone(all)
		for range rapid.IntRange(1, 3).Draw(r, "mistakes") {
			i := rapid.IntRange(0, len(words)-1).Draw(r, "at")
			switch rapid.IntRange(0, 3).Draw(r, "kind") {
			case 0:
				words = slices.Delete(words, i, i+1)
			case 1:
				words = slices.Insert(words, i, words[i])
			case 2:
				words[i] = all[rapid.IntRange(0, len(all)-1).Draw(r, "by")]
			case 3:
				words[i] = rapid.SampledFrom([]string{"{}", "[]", "null", "-1", "1.5", `""`, "_", "_|_", "true", `"\u0000"`, "for x in y {x}", "if true {a: 1}", "...", "1 | 2", "#X", "[string]: int"}).Draw(r, "new")
			}
		}
		text := strings.Join(words, " ")
		if err := os.WriteFile(filepath.Join(dir, "locks/locks.cue"), []byte(text), 0o644); err != nil {
			r.Fatal(err)
		}
		_, err := Load(Options{Path: "locks"})
		if err == nil {
			return
		}
		var problems Problems
		if !errors.As(err, &problems) || len(problems) == 0 {
			r.Fatalf("no problems in %v\n%s", err, text)
		}
		for _, p := range problems {
			if p.Text == "" || strings.Contains(p.Error()+p.Hint, "drumsbench-schema") || strings.Contains(p.Error()+p.Hint, openPrefix) {
				r.Fatalf("bad words: %s\n%s", p.Error(), text)
			}
			if !slices.Contains([]string{"locks/locks.cue", "pins/pins.cue", "locks"}, p.File) {
				r.Fatalf("not in the person's files: %s\n%s", p.Error(), text)
			}
		}
	})
}

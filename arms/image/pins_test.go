package image

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
)

const pinsText = `// Package pins holds digests.
package pins

// The small one.
tiny:   "0000000000000000000000000000000000000000000000000000000000000000" // rewritten
guestd: "1111111111111111111111111111111111111111111111111111111111111111"
"two-words": "2222222222222222222222222222222222222222222222222222222222222222"
#Other: string
`

func TestRewritePin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pins.cue")
	if err := os.WriteFile(file, []byte(pinsText), 0o640); err != nil {
		t.Fatal(err)
	}
	a, b, c := strings.Repeat("a", 64), strings.Repeat("b", 64), strings.Repeat("c", 64)
	for name, sha := range map[string]string{"tiny": a, "two-words": b, "fresh": c} {
		if err := RewritePin(file, name, sha); err != nil {
			t.Fatal(err)
		}
	}
	pins, err := ReadPins(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(pins["tiny"]) != a || string(pins["two-words"]) != b || string(pins["fresh"]) != c || string(pins["guestd"]) != strings.Repeat("1", 64) {
		t.Errorf("pins %v", pins)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, keep := range []string{"// Package pins holds digests.", "// The small one.", "// rewritten", "#Other:"} {
		if !strings.Contains(string(text), keep) {
			t.Errorf("lost %q:\n%s", keep, text)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	before, _ := os.Stat(file)
	if err := RewritePin(file, "tiny", a); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(file); !os.SameFile(before, after) {
		t.Error("written although nothing changed")
	}
}

// The repository's own file keeps every byte but the digest.
func TestRewritePinOfThisRepository(t *testing.T) {
	file := copyFile(t, "../../manifests/pins/pins.cue")
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pins, err := ReadPins(file)
	if err != nil {
		t.Fatal(err)
	}
	sha := strings.Repeat("ab", 32)
	for _, name := range []string{"tiny", "guestd"} {
		if pins[name] == "" {
			t.Fatalf("no pin %s", name)
		}
		if err := RewritePin(file, name, sha); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.Replace(string(old), field(string(old), name), strings.Replace(field(string(old), name), string(pins[name]), sha, 1), 1); string(text) != want {
			t.Errorf("got\n%swanted\n%s", text, want)
		}
		if err := RewritePin(file, name, string(pins[name])); err != nil {
			t.Fatal(err)
		}
		if text, _ = os.ReadFile(file); string(text) != string(old) {
			t.Errorf("there and back is not the same:\n%s", text)
		}
	}
}

// field is the line of a pin.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, name+":") {
			return line
		}
	}
	return ""
}

func TestRewritePinRefuses(t *testing.T) {
	sha := strings.Repeat("a", 64)
	for name, c := range map[string]struct{ text, pin, sha string }{
		"short digest":   {pinsText, "tiny", sha[1:]},
		"bad name":       {pinsText, "Tiny!", sha},
		"computed value": {"package pins\ntiny: other\nother: \"x\"\n", "tiny", sha},
		"twice":          {"package pins\ntiny: \"x\"\ntiny: \"x\"\n", "tiny", sha},
		"no CUE":         {"package pins\ntiny: {", "tiny", sha},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pins.cue")
			if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := RewritePin(file, c.pin, c.sha); !errors.Is(err, engine.ErrUsage) {
				t.Errorf("got %v", err)
			}
			if text, _ := os.ReadFile(file); string(text) != c.text {
				t.Errorf("changed all the same:\n%s", text)
			}
		})
	}
	if err := RewritePin(filepath.Join(t.TempDir(), "absent.cue"), "tiny", sha); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("absent file: %v", err)
	}
}

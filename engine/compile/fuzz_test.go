package compile

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// JSON of any form is what the schema says, or is refused with a reason.
func FuzzValidate(f *testing.F) {
	definitions := []string{"Record", "Receipt", "LedgerLine", "Checkpoint", "SlotHandle", "Registration", "Plan", "Manifest"}
	for i := range definitions {
		for _, seed := range []string{`{}`, `null`, `{"a":1,"a":2}`, `[[[[1e999]]]]`, `{"apiVersion":"drumsbench/v1","files":[{"path":"../a","size":"-1"}]}`, `"\ud800"`, `{"":{"":0}}`, `1E400`, `-0`} {
			f.Add(uint8(i), []byte(seed))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		err := Validate(definitions[int(which)%len(definitions)], data)
		if err == nil && !json.Valid(data) {
			t.Errorf("%q passes and is no JSON", data)
		}
	})
}

// A manifest is a program of somebody else's. Reading it ends within the bounds, and what passes has a digest.
func FuzzManifest(f *testing.F) {
	dir := repository(f, plainModule)
	base, err := os.ReadFile("testdata/base.cue")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(base)
	for _, seed := range []string{"package locks\n", "package locks\na: b\nb: a\n", "package locks\nx: [for i in [1,2] {i}]\n", "package locks\nimport \"strings\"\na: strings.Repeat(\"a\", 3)\n",
		"package locks\na: \"\\(b)\"\nb: 1 & 2\n", "package locks\n@extern(embed)\na: _ @embed(file=/etc/passwd)\n", "package locks\na: {a: #x}\n#x: {b: #x | *1}\n"} {
		f.Add([]byte(seed))
	}
	file := filepath.Join(dir, "locks", "locks.cue")
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 8<<10 {
			return // a tenth of a second each is enough
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Load(Options{Path: filepath.Join(dir, "locks"), Tags: []string{"locks=criu", "rollouts=3"}})
		if err == nil && (m.Digest == "" || !json.Valid(m.JSON)) {
			t.Errorf("%+v", m)
		}
	})
}

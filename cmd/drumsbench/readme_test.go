//go:build linux && !elsewhere

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReadme does what README.md says under "A manifest of your own", as it
// stands there and in an empty folder: stock cue accepts the manifest, the run
// passes, and the picture of the plan is that of its plan. -update draws it anew.
func TestReadme(t *testing.T) {
	const page = "../../README.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, section, found := strings.Cut(string(text), "\n## A manifest of your own\n")
	section, after, ended := strings.Cut(section, "\n## ")
	if !found || !ended {
		t.Fatal("README.md has no section on a manifest of one's own, or nothing after it")
	}
	cue, err := exec.Command("go", "tool", "-n", "cue").Output()
	if err != nil {
		t.Fatalf("build stock cue: %v", err)
	}
	b := newBed(t)
	if err := os.MkdirAll(filepath.Join(b.state, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(b.program, filepath.Join(b.state, "bin", "drumsbench")); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(b.state, "newcomer")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	script := "set -euo pipefail\n" + shellBlocks(section) + `
"$CUE" vet -c ./...
sed -i 's/"leave-a-note"/7/' note/note.cue
if "$CUE" vet -c ./... || drumsbench vet note; then exit 9; fi
sed -i 's/id: .*/id: "leave-a-note"/' note/note.cue
drumsbench plan --overview note >overview
`
	var out bytes.Buffer
	cmd := exec.Command("bash", "-x", "-c", script)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "DRUMSBENCH_STATE="+b.state, "CUE="+strings.TrimSpace(string(cue)))
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"note: ok", "drums-restore  drums  restore", "5/5", "0.0->1.0 x5"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("nothing says %q\n%s", want, out.String())
		}
	}
	drawn, err := os.ReadFile(filepath.Join(folder, "mine", "overview"))
	if err != nil {
		t.Fatal(err)
	}
	const open, shut = "```mermaid\n", "```\n"
	head, rest, _ := strings.Cut(section, open)
	have, tail, found := strings.Cut(rest, shut)
	if !found {
		t.Fatal("README.md has no picture of the plan")
	}
	if *update {
		text := before + "\n## A manifest of your own\n" + head + open + string(drawn) + shut + tail + "\n## " + after
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(string(drawn), have); diff != "" {
		t.Errorf("the picture of the plan (go test -update draws it anew):\n%s", diff)
	}
}

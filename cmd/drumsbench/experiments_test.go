//go:build linux && !elsewhere

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestExperimentsPage runs the commands of docs/experiments.md, as they stand there.
func TestExperimentsPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/experiments.md")
	if err != nil {
		t.Fatal(err)
	}
	b := newBed(t)
	file := filepath.Join(b.state, "page.sh")
	if err := os.WriteFile(file, []byte("set -euo pipefail\n"+shellBlocks(string(page))), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command("bash", "-x", file)
	cmd.Env = append(os.Environ(), "DRUMSBENCH_STATE="+b.state, "PATH="+filepath.Dir(b.program)+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	// What the page says of the commands has to be so.
	for _, want := range []string{"1 planned", "experiment  quick: verified", "experiment.rollouts is 9, registered is 8", "experiment  quick: failed",
		"made after the first run: pass", "4 runs: 2 verified, 1 preliminary, 1 failed, 0 planned"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("nothing says %q\n%s", want, out.String())
		}
	}
	site, err := os.ReadFile(filepath.Join(b.state, "site", "index.html"))
	if err != nil || !bytes.Contains(site, []byte("Amendment 1")) || !bytes.Contains(site, []byte("Bar missed")) {
		t.Errorf("the site does not show both verdicts: %v", err)
	}
}

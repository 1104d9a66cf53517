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

// shellBlocks are the sh blocks of a page, in order.
func shellBlocks(page string) string {
	var script strings.Builder
	inside := false
	for line := range strings.Lines(page) {
		switch mark := strings.TrimSpace(line); {
		case inside && mark == "```":
			inside = false
		case inside:
			script.WriteString(line)
		case mark == "```sh":
			inside = true
		}
	}
	return script.String()
}

// TestOperatingPage runs the commands of docs/operating.md, as they stand there.
func TestOperatingPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	script := shellBlocks(string(page))
	for _, word := range []string{"provision", "dump", "restore", "reset", "status", "exec", "release"} {
		if !strings.Contains(script, "drumsbench slot "+word) {
			t.Errorf("the page shows no slot %s", word)
		}
	}
	b := newBed(t)
	// What the page says in a comment has to be so.
	const says = "cat /root/note # draft, and nothing else"
	if strings.Count(script, says) != 1 {
		t.Fatalf("the page does not have the line that ends %q", says)
	}
	script = strings.Replace(script, says, `cat /root/note >"$0.note"; test "$(cat "$0.note")" = draft`, 1)
	file := filepath.Join(b.state, "page.sh")
	if err := os.WriteFile(file, []byte("set -euo pipefail\n"+script), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command("bash", "-x", file)
	cmd.Env = append(os.Environ(), "DRUMSBENCH_STATE="+b.state, "PATH="+filepath.Dir(b.program)+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"desk: running", "gate-stopped-locks", "locks-slot-0: stopped", "passed", "slot second resets to the checkpoint in it", "nothing is left"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("nothing says %q\n%s", want, out.String())
		}
	}
	if left, err := filepath.Glob(filepath.Join(b.state, "released", "*")); err != nil || len(left) != 3 {
		t.Errorf("released: %v, %v", left, err)
	}
}

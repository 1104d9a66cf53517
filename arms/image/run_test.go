package image

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A recipe's command has the tree as its root and nothing of the machine's around
// it; one that fails fails the build.
func TestRunInside(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal("busybox is not installed; scripts/setup does that: ", err)
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/busybox"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", "/of/the/machine")
	const look = "echo $$ $SOURCE_DATE_EPOCH ${HOME:-none}; /bin/busybox ls /; /bin/busybox ip addr 2>&1 | /bin/busybox grep -c inet"
	b := &build{BuildOptions: BuildOptions{Recipe: bench.Recipe{Epoch: 77, Run: []bench.Exec{{"/bin/busybox", "sh", "-c", "(" + look + ") > /made; true"}}}}}
	if err := b.runInside(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	made, err := os.ReadFile(filepath.Join(dir, "made"))
	if have := strings.Fields(string(made)); err != nil || strings.Join(have, " ") != "1 77 none bin made 0" {
		t.Errorf("the command saw %q: %v", have, err)
	}
	b.Recipe.Run = []bench.Exec{{"/bin/busybox", "false"}}
	if err := b.runInside(context.Background(), dir); err == nil || !strings.Contains(err.Error(), "in the tree") {
		t.Errorf("a command that fails: %v", err)
	}
}

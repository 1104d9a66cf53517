//go:build linux && !elsewhere

package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/drumsbench/drumsbench/arms/fake"
)

var update = flag.Bool("update", false, "write what the scripts compare with anew")

// TestMain lets the test binary be drumsbench itself: the scripts drive the real main.
func TestMain(m *testing.M) {
	testscript.Main(suite{m}, map[string]func(){
		"drumsbench":       main,
		"drumsbench-crash": crasher,
		"drumsbench-soak":  soaked,
		"waiter":           waiter,
	})
}

// underRace says that the test binary has the race detector in it.
var underRace bool

type suite struct{ m *testing.M }

// Run builds the program without the race detector for the tests that start it,
// hundreds of times, and would wait three times as long for it. Those that run
// rollouts in this process are under the detector.
func (s suite) Run() int {
	if !underRace || os.Getenv(insideCrash) != "" { // a crash test's own process has what its parent built
		return s.m.Run()
	}
	dir, err := os.MkdirTemp("", "drums-program-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if out, err := exec.Command("go", "build", "-o", dir, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
		return 1
	}
	os.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	return s.m.Run()
}

// TestScripts runs testdata/script/*.txtar. In a script, $ROOT is the checkout,
// $CUE the stock cue of the version that go.mod pins and $FAKE_SERVER the digest
// of the fake arm's guest server.
func TestScripts(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	cue, err := exec.Command("go", "tool", "-n", "cue").Output()
	if err != nil {
		t.Fatalf("build stock cue: %v", err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("ROOT", root)
			env.Setenv("CUE", strings.TrimSpace(string(cue)))
			env.Setenv("FAKE_SERVER", string(fake.ServerSHA256()))
			env.Setenv("DRUMSBENCH_STATE", filepath.Join(env.WorkDir, "state"))
			// Stock cue reads its configuration from the home; here it has none.
			home := filepath.Join(env.WorkDir, ".home")
			env.Setenv("HOME", home)
			return os.MkdirAll(home, 0o755)
		},
	})
}

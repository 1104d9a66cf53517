package criu

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// What docs/criu-findings.md says of this CRIU, its reproducers say too.
func TestReproducers(t *testing.T) {
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	ospke := strings.Contains(string(cpu), " ospke")
	for name, want := range map[string]int{
		"lock-on-mapped-file": 0, "sharing-lost": 0, "dump-of-missing-pages": 0, "lazy-reservation": 0, "inotify-walk": 0, "half-open-socket": 0,
		"ghost-race": 0, "user-namespace": 0, "user-namespace-devices": 0, "protection-keys": 0,
	} {
		for program, want := range map[string]int{tool.Path: want, "/bin/true": 2} { // the second is no criu
			cmd := exec.Command("../../docs/reproducers/" + name)
			cmd.Env = append(os.Environ(), "CRIU="+program, "RESTORES=3")
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			code := cmd.ProcessState.ExitCode()
			if name == "protection-keys" && code == 2 && !ospke { // a processor without them
				code = want
			}
			if name == "ghost-race" && code == 1 && want == 0 { // a race: three restores may all be lucky
				code = 0
			}
			if code != want {
				t.Errorf("%s with %s: exit %d, docs/criu-findings.md says %d\n%s", name, program, code, want, out)
			}
		}
	}
}

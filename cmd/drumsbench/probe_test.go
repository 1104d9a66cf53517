//go:build linux && !elsewhere

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/arms/hostview"
	"github.com/drumsbench/drumsbench/arms/netprobe"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// probeBed is a state directory with the real criu, in which a probe must leave nothing.
func probeBed(t *testing.T) (program, state string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("the network probe needs root")
	}
	program, err := exec.LookPath("drumsbench")
	if err != nil {
		t.Fatal(err) // TestMain puts it there
	}
	state = t.TempDir()
	if err := os.Symlink(filepath.Join(realState(), "criu"), filepath.Join(state, "criu")); err != nil {
		t.Fatal(err)
	}
	before, err := hostview.Take(t.Context(), hostview.Scope{ID: "none", Paths: []string{state}})
	if err != nil {
		t.Fatal(err)
	}
	claims := claimsOf(t, state)
	t.Cleanup(func() {
		left, err := filepath.Glob(filepath.Join(state, "*", "*"))
		left = slices.DeleteFunc(left, func(path string) bool { return strings.HasPrefix(path, filepath.Join(state, "criu")+"/") })
		if err != nil || len(left) > 0 {
			t.Errorf("left below the state directory: %q, %v", left, err)
		}
		b := bed{T: t, state: state, before: before}
		for _, claim := range claims() {
			for _, f := range b.changes(claim) {
				t.Errorf("the host is not as it was: %s %s", f.Subject, f.Text)
			}
		}
	})
	return program, state
}

// claimsOf watches which claims the probes in a state directory take: on a
// machine that others use too, they tell what is ours. Without one nothing was seen.
func claimsOf(t *testing.T, state string) (claims func() []string) {
	seen := map[string]bool{}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			entries, _ := os.ReadDir(filepath.Join(state, "work")) // made by the first probe
			for _, e := range entries {
				seen[e.Name()] = true
			}
			select {
			case <-quit:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	return func() []string {
		close(quit)
		<-ended
		if len(seen) == 0 {
			t.Error("no probe's claim was seen")
		}
		return slices.Collect(maps.Keys(seen))
	}
}

// The real command on this host: what must keep a namespace keeps it, and runc alone does not.
func TestProbeNetwork(t *testing.T) {
	program, state := probeBed(t)
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(program, "probe", "network", "--state", state, "-o", "json")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		t.Fatalf("%v: %s%s", err, stdout.String(), stderr.String())
	}
	if err := compile.Validate("NetworkProbe", stdout.Bytes()); err != nil {
		t.Error(err)
	}
	var r bench.NetworkProbe
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	have := map[string]bench.Preservation{}
	for _, l := range r.Layers {
		have[l.Layer] = l.Outcome
	}
	for name, want := range map[string]bench.Preservation{"kernel": netprobe.Preserved, "criu": netprobe.Preserved, "oci-own": netprobe.Lost, "oci-holder": netprobe.Preserved} {
		if have[name] != want {
			t.Errorf("%s: %s, want %s\n%s", name, have[name], want, stdout.String())
		}
	}
	for _, name := range []string{"kernel-release", "criu.version", "criu.sha256", "runc.version", "runc.sha256"} {
		if !slices.ContainsFunc(r.Facts, func(f bench.Fact) bool { return f.Name == name && f.Known }) {
			t.Errorf("%s is not known", name)
		}
	}
}

// What docs/network.md shows is what its command prints here: the first three
// columns, and each layer's words. Numbers are the host's.
func TestNetworkPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/network.md")
	if err != nil {
		t.Fatal(err)
	}
	program, state := probeBed(t)
	cmd := exec.Command("sh", "-euc", shellBlocks(string(page)))
	cmd.Env = append(os.Environ(), "DRUMSBENCH_STATE="+state, "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, shown, _ := strings.Cut(string(page), "```text\n")
	shown, _, _ = strings.Cut(shown, "```")
	columns := regexp.MustCompile(`^(\S+ +(yes|no) +\S+( at \S+)?)  .*`)
	words := func(text string) (list []string) {
		for line := range strings.Lines(text) {
			line = strings.TrimRight(line, "\n")
			if !strings.HasPrefix(line, "  gone: ") && !strings.HasPrefix(line, "  new: ") {
				list = append(list, strings.Join(strings.Fields(columns.ReplaceAllString(line, "$1")), " "))
			}
		}
		return list
	}
	if want, have := words(shown), words(string(out)); len(want) < 10 || !slices.Equal(want, have) {
		t.Errorf("the page shows\n%s\nthe command prints\n%s", strings.Join(want, "\n"), strings.Join(have, "\n"))
	}
	for line := range strings.Lines(shown) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "gone: ") && !strings.Contains(string(out), line) {
			t.Errorf("nothing says %q", line)
		}
	}
}

// A probe that is stopped takes away what it made, whenever that is.
func TestProbeNetworkStopped(t *testing.T) {
	program, state := probeBed(t)
	for _, after := range []time.Duration{50, 150, 250, 400, 600, 800} {
		var stderr bytes.Buffer
		cmd := exec.Command(program, "probe", "network", "--state", state)
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after * time.Millisecond)
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		var exit *exec.ExitError
		// It may have been done, or not have taken over the signal yet.
		if err != nil && !(errors.As(err, &exit) && (exit.ExitCode() == codeFailed || exit.ExitCode() == -1)) || strings.Contains(stderr.String(), "sweep") {
			t.Errorf("after %d ms: %v, %s", after, err, stderr.String())
		}
	}
}

func TestNetworkText(t *testing.T) {
	full := &bench.Network{Links: []bench.Link{{Name: "lo", Up: true}}, Addresses: []string{"a", "b"}, Routes: []string{"r"}}
	down := &bench.Network{Links: []bench.Link{{Name: "lo"}}, Addresses: []string{"a"}}
	have := networkText(bench.NetworkProbe{Verdict: netprobe.Lost, Layers: []bench.NetworkLayer{
		{Layer: "kernel", Required: true, Outcome: netprobe.Preserved, Text: "one", Before: full, After: full, Dumped: []bench.NetworkPart{{Kind: "link", Bytes: 7}}},
		{Layer: "oci-holder", Required: true, Outcome: netprobe.Lost, LostAt: "restore", Text: "two", Reason: "so\nso", Hint: "mend", Log: "/l", Before: full, After: down, Missing: []string{"x"}, Extra: []string{"y"}},
	}})
	want := `network: lost in a layer that has to keep it

LAYER       HAS TO KEEP IT  OUTCOME          BEFORE                       AFTER                         DUMPED
kernel      yes             preserved        lo up, 2 addresses, 1 route  the same                      link 7 B
oci-holder  yes             lost at restore  lo up, 2 addresses, 1 route  lo down, 1 address, 0 routes  nothing

kernel: one

oci-holder: two
  lost: so so
  gone: x
  new: y
  remedy: mend
  log: /l
`
	if have != want {
		t.Errorf("have\n%swant\n%s", have, want)
	}
	for verdict, said := range map[bench.Preservation]string{netprobe.Preserved: "^network: kept", netprobe.Unknown: "^network: not known"} {
		if text := networkText(bench.NetworkProbe{Verdict: verdict}); !regexp.MustCompile(said).MatchString(text) {
			t.Errorf("%s: %s", verdict, text)
		}
	}
}

// Which layers decide.
func TestNetworkVerdict(t *testing.T) {
	layer := func(required bool, o bench.Preservation) bench.NetworkLayer {
		return bench.NetworkLayer{Required: required, Outcome: o}
	}
	for _, c := range []struct {
		layers []bench.NetworkLayer
		want   bench.Preservation
	}{
		{nil, netprobe.Unknown},
		{[]bench.NetworkLayer{layer(false, netprobe.Preserved)}, netprobe.Unknown},
		{[]bench.NetworkLayer{layer(true, netprobe.Preserved), layer(false, netprobe.Lost)}, netprobe.Preserved},
		{[]bench.NetworkLayer{layer(true, netprobe.Preserved), layer(false, netprobe.Unknown)}, netprobe.Preserved},
		{[]bench.NetworkLayer{layer(true, netprobe.Unknown), layer(true, netprobe.Preserved)}, netprobe.Unknown},
		{[]bench.NetworkLayer{layer(true, netprobe.Unknown), layer(true, netprobe.Lost)}, netprobe.Lost},
		{[]bench.NetworkLayer{layer(true, ""), layer(true, netprobe.Preserved)}, netprobe.Unknown},
	} {
		if have := netprobe.Verdict(c.layers); have != c.want {
			t.Errorf("%+v: %s, want %s", c.layers, have, c.want)
		}
	}
}

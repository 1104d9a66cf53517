//go:build linux && !elsewhere

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// ciPage is docs/ci.md: the files of the repository that it shows, in order, and
// the commands that it shows with what they print.
type ciPage struct {
	files    map[string]string
	commands []shown
}

// shown is a command with its output.
type shown struct{ command, output string }

var (
	fileName = regexp.MustCompile("^`([^`]+)`:$")
	fence    = regexp.MustCompile("^```([a-z]*)$")
)

// readPage takes a page apart: a block that follows a line of a file's name and a
// colon is that file; a block of console is commands, each after "$ ", with their output.
func readPage(text string) (p ciPage, err error) {
	p.files = map[string]string{}
	name, language := "", ""
	var block strings.Builder
	inside := false
	for i, line := range strings.Split(text, "\n") {
		switch mark := fence.FindStringSubmatch(line); {
		case mark != nil && !inside:
			inside, language = true, mark[1]
			block.Reset()
		case mark != nil:
			inside = false
			switch {
			case name != "":
				if _, twice := p.files[name]; twice {
					return p, fmt.Errorf("line %d: %s twice", i+1, name)
				}
				p.files[name] = block.String()
			case language == "console":
				p.commands = append(p.commands, readConsole(block.String())...)
			}
			name = ""
		case inside:
			block.WriteString(line + "\n")
		case fileName.MatchString(line):
			name = fileName.FindStringSubmatch(line)[1]
		case line != "" && name != "":
			return p, fmt.Errorf("line %d: no block follows the name %s", i+1, name)
		}
	}
	if inside {
		return p, errors.New("a block has no end")
	}
	return p, nil
}

func readConsole(text string) (list []shown) {
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			list = append(list, shown{command: strings.TrimSpace(command)})
		} else if len(list) > 0 {
			list[len(list)-1].output += line
		}
	}
	return list
}

// withOutputs is the page with other outputs of its commands, in order.
func withOutputs(text string, outputs []string) string {
	var b strings.Builder
	console, skip := false, false
	for _, line := range strings.SplitAfter(text, "\n") {
		mark := fence.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		switch {
		case mark != nil:
			console, skip = mark[1] == "console", false
			b.WriteString(line)
		case console && strings.HasPrefix(line, "$ "):
			b.WriteString(line + outputs[0])
			outputs, skip = outputs[1:], true
		case !skip:
			b.WriteString(line)
		}
	}
	return b.String()
}

// repository is the one that the page shows, in a folder of its own.
type repository struct {
	t    *testing.T
	dir  string
	home string
	bin  string
}

// offline runs a command of the page's as a person's shell would, without
// network: cue is the stock one that go.mod pins, drumsbench the one under test.
func (r repository) offline(command string) (output string, code int) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "-n", "sh", "-ec", command)
	cmd.Dir = r.dir
	cmd.Env = []string{"PATH=" + r.bin + ":/usr/bin:/bin", "HOME=" + r.home, "LC_ALL=C"}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatalf("%s: %v", command, err)
	}
	return strings.ReplaceAll(string(out), r.dir, "~/desks"), cmd.ProcessState.ExitCode()
}

func newRepository(t *testing.T, files map[string]string) repository {
	t.Helper()
	r := repository{t: t, dir: t.TempDir(), home: t.TempDir(), bin: t.TempDir()}
	cue, err := exec.Command("go", "tool", "-n", "cue").Output()
	if err != nil {
		t.Fatalf("build stock cue: %v", err)
	}
	drumsbench, err := exec.LookPath("drumsbench")
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"cue": strings.TrimSpace(string(cue)), "drumsbench": drumsbench} {
		if err := os.Symlink(target, filepath.Join(r.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		path := filepath.Join(r.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// workflow is as much of a GitHub workflow as is read here.
type workflow struct {
	Jobs map[string]struct {
		Steps []struct {
			Uses string `yaml:"uses"`
			Run  string `yaml:"run"`
		} `yaml:"steps"`
	} `yaml:"jobs"`
}

// The page's repository, built from the page and from nothing else, passes the
// page's workflow with the stock cue and without network, and a mistake fails it.
func TestCIPage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root: it runs the page's commands without network")
	}
	text, err := os.ReadFile("../../docs/ci.md")
	if err != nil {
		t.Fatal(err)
	}
	page, err := readPage(string(text))
	if err != nil {
		t.Fatalf("docs/ci.md: %v", err)
	}
	const workflowFile, manifestFile = ".github/workflows/manifests.yml", "rename/rename.cue"
	if len(page.files) != 4 || page.files[workflowFile] == "" || page.files[manifestFile] == "" || len(page.commands) < 8 {
		t.Fatalf("docs/ci.md shows %d files and %d commands", len(page.files), len(page.commands))
	}
	r := newRepository(t, page.files)
	if out, code := r.offline("cue vet -c ./..."); code == 0 {
		t.Errorf("stock cue passes without the schema: %s", out)
	}
	var outputs []string
	for _, c := range page.commands {
		have, _ := r.offline(c.command)
		outputs = append(outputs, have)
		if *update {
			continue
		}
		if diff := cmp.Diff(c.output, have); diff != "" {
			t.Errorf("docs/ci.md: $ %s (-page +real; -update writes it anew):\n%s", c.command, diff)
		}
	}
	if *update {
		if err := os.WriteFile("../../docs/ci.md", []byte(withOutputs(string(text), outputs)), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	var w workflow
	if err := yaml.Unmarshal([]byte(page.files[workflowFile]), &w); err != nil {
		t.Fatal(err)
	}
	var steps []string
	for _, job := range w.Jobs {
		for _, s := range job.Steps {
			if version, ok := strings.CutPrefix(s.Run, "go install cuelang.org/go/cmd/cue@"); ok {
				if want := pinnedCUE(t); version != want {
					t.Errorf("the workflow installs cue %s, go.mod pins %s", version, want)
				}
				continue
			}
			if s.Run != "" {
				steps = append(steps, s.Run)
			}
		}
	}
	if len(steps) != 2 || steps[0] != "cue vet -c ./..." {
		t.Fatalf("the workflow runs %q", steps)
	}
	for _, s := range steps {
		if out, code := r.offline(s); code != 0 || out != "" {
			t.Errorf("the workflow's %q exits %d: %s", s, code, out)
		}
	}

	// Each of these is a mistake that CI is there for; the engine finds the same.
	good := page.files[manifestFile]
	for _, m := range []struct{ old, new string }{
		{`"1GiB"`, `"1GB"`},
		{`rollouts: *10 | int @tag(rollouts,type=int)`, `rollouts: 0`},
		{`canary: file: "/root/.canary"`, ``},
		{`pins.desk`, `pins.dosk`},
		{`pins.desk`, `"tbd"`},
		{`arms: drums: {}`, `arms: drum: {}`},
		{`readiness: {}`, `readiness: {deadlin: "1s"}`},
		{`"bench/v1alpha1"`, `"bench/v2"`},
		{`"-d"`, `7`},
	} {
		bad := strings.Replace(good, m.old, m.new, 1)
		if bad == good {
			t.Fatalf("the manifest has no %s", m.old)
		}
		if err := os.WriteFile(filepath.Join(r.dir, manifestFile), []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, code := r.offline(steps[0]); code == 0 {
			t.Errorf("the workflow passes with %s: %s", m.new, out)
		}
		if out, code := r.offline("drumsbench vet rename"); code != codeFailed || !strings.HasPrefix(out, manifestFile+":") {
			t.Errorf("the engine, with %s: exit %d: %s", m.new, code, out)
		}
	}
}

// pinnedCUE is the version of cue that go.mod pins.
func pinnedCUE(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "cuelang.org/go").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func TestReadPage(t *testing.T) {
	p, err := readPage("words\n\n`a/b.cue`:\n\n```cue\nx: 1\n```\n\n```console\n$ one\nout\nmore\n$ two\n```\n\n```sh\nnot run\n```\n")
	want := ciPage{map[string]string{"a/b.cue": "x: 1\n"}, []shown{{"one", "out\nmore\n"}, {"two", ""}}}
	if err != nil || !cmp.Equal(p, want, cmp.AllowUnexported(ciPage{}, shown{})) {
		t.Errorf("%+v %v", p, err)
	}
	if have := withOutputs("a\n```console\n$ one\nout\n$ two\n```\nb\n```sh\n$ x\ny\n```\n", []string{"new\n", "also\n"}); have != "a\n```console\n$ one\nnew\n$ two\nalso\n```\nb\n```sh\n$ x\ny\n```\n" {
		t.Errorf("%s", have)
	}
	for _, wrong := range []string{"```sh\n", "`a`:\nwords\n", "`a`:\n```cue\n```\n`a`:\n```cue\n```\n"} {
		if p, err := readPage(wrong); err == nil {
			t.Errorf("%q: %+v", wrong, p)
		}
	}
}

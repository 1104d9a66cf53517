//go:build linux && !elsewhere

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/arms/hostexec"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// deskManifest is a manifest of the desk image with the pins of the image that "scripts/prepare desk" built.
func deskManifest(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(realState(), "manifests", "manifests", name)
	for _, need := range []string{path, filepath.Join(realState(), "images", "desk.qcow2")} {
		if _, err := os.Stat(need); err != nil {
			t.Fatalf("%v: \"scripts/prepare desk\" builds the image and its pins", err)
		}
	}
	return path
}

// changedDesk is a copy of manifests/rename beside the others, so that it has their pins, with another manifest.
func changedDesk(t *testing.T, name string, change func(string) string) string {
	t.Helper()
	from := deskManifest(t, "rename")
	dir, err := os.MkdirTemp(filepath.Dir(from), "drums-"+name+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "rename.cue")
	manifest, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(change(string(manifest))), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// runDesk runs a manifest on the real arm, which must pass, and returns the folder of its runs.
func runDesk(t *testing.T, path string, args ...string) string {
	t.Helper()
	base := filepath.Join(realState(), "runs")
	if err := os.MkdirAll(base, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := os.MkdirTemp(base, "drums-desk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(out) })
	cmd := exec.Command("drumsbench", append(append([]string{"--state", realState(), "run", "--out", out}, args...), path)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &said)
	}
	return out
}

// receiptsOf are the receipts of a run by step.
func receiptsOf(t *testing.T, run string) map[string]bench.Receipt {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(run, record.EventsFile))
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]bench.Receipt{}
	for line := range bytes.Lines(b) {
		var r bench.Receipt
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		by[r.Step] = r
	}
	return by
}

// kept is what a step has under a name: the digest and the bytes.
func kept(t *testing.T, run string, r bench.Receipt, name string) (bench.SHA256, []byte) {
	t.Helper()
	for _, e := range r.Evidence {
		if e.Name == name {
			found, err := filepath.Glob(filepath.Join(run, "evidence", string(e.Sha256)[:16]+"-*"))
			if err != nil || len(found) == 0 {
				t.Fatalf("evidence %s of %s is not there: %v", name, r.Step, err)
			}
			data, err := os.ReadFile(found[0])
			if err != nil {
				t.Fatal(err)
			}
			return e.Sha256, data
		}
	}
	t.Fatalf("step %s has no evidence %s: %+v", r.Step, name, r.Evidence)
	return "", nil
}

// measuredRollouts are those that are no controls.
func measuredRollouts(r bench.Record) []bench.Rollout {
	return slices.DeleteFunc(slices.Clone(r.Rollouts), func(o bench.Rollout) bool { return o.Control != "" })
}

func factOf(r bench.Receipt, name string) string {
	for _, f := range r.Facts {
		if f.Name == name && f.Known {
			return f.Value
		}
	}
	return "(unknown)"
}

// The agent sees and types through the interface of the public server; restored
// and cold, every gate of every rollout passes.
func TestDeskRename(t *testing.T) {
	out := runDesk(t, deskManifest(t, "rename"), "--arm", "drums", "--arm", "oci", "-t", "rollouts=2")
	for _, reset := range []string{"drums-restore", "drums-cold", "oci-restore", "oci-cold"} {
		run := filepath.Join(out, reset)
		nothingOwned(t, run)
		r := readBack(t, run)
		if r.Verdict != engine.RunPassed || len(r.Rollouts) != 4 {
			t.Errorf("%s: %s with %d rollouts: %s", reset, r.Verdict, len(r.Rollouts), r.Reason)
		}
		for _, x := range r.Rollouts {
			if x.Control == "none" {
				continue
			}
			if x.Class != record.Success || x.Before == nil || *x.Before != 0 || x.After == nil || *x.After != 1 {
				t.Errorf("%s: rollout %d is %s (%s)", reset, x.Index, x.Class, x.Reason)
			}
		}
		receipts := receiptsOf(t, run)
		for _, x := range measuredRollouts(r) {
			i := x.Index
			act := receipts[fmt.Sprintf("r%d/act", i)]
			if n, err := strconv.Atoi(factOf(act, "policy.connections")); err != nil || n < 8 || factOf(act, "policy.connections-reset") != "0" {
				t.Errorf("%s: rollout %d: %s connections, %s of them reset", reset, i, factOf(act, "policy.connections"), factOf(act, "policy.connections-reset"))
			}
			before, _ := kept(t, run, act, "policy/before.png")
			after, _ := kept(t, run, act, "policy/after.png")
			if before == after {
				t.Errorf("%s: rollout %d: the screen is the same before and after", reset, i)
			}
			// What the engine saw is what the agent saw.
			if begun, _ := kept(t, run, receipts[fmt.Sprintf("r%d/evaluate-before", i)], "screen-before.png"); begun != before {
				t.Errorf("%s: rollout %d: the agent did not begin with the screen that was there", reset, i)
			}
			if left, _ := kept(t, run, receipts[fmt.Sprintf("r%d/evaluate-after", i)], "screen-after.png"); left != after {
				t.Errorf("%s: rollout %d: the agent did not leave the screen that it saw last", reset, i)
			}
			if x.Memory == nil || x.Memory.Processes < 7 { // guestd, five services, the terminal's shell
				t.Errorf("%s: rollout %d: memory %+v", reset, i, x.Memory)
			}
		}
	}
}

// Four desks of one checkpoint at once: each has its own screen, port and
// canary, and passes every gate, also those that compare them with each other and
// with two cold desks.
func TestDeskSiblings(t *testing.T) {
	path := changedDesk(t, "siblings", func(manifest string) string {
		const before = "\n\tcanary: file:"
		if strings.Count(manifest, before) != 1 {
			t.Fatal("manifests/rename has its canary in another form")
		}
		return strings.Replace(manifest, before, "\n\thygiene: {}"+before, 1)
	})
	out := runDesk(t, path, "--arm", "drums", "-t", "rollouts=4", "-t", "slots=4", "--reset", "restore")
	run := filepath.Join(out, "drums-restore")
	nothingOwned(t, run)
	r := readBack(t, run)
	siblings := measuredRollouts(r)
	if r.Verdict != engine.RunPassed || len(siblings) != 4 {
		t.Fatalf("%s, %d rollouts: %s", r.Verdict, len(siblings), r.Reason)
	}
	for _, c := range countGates(r) {
		if c.Passed != c.Of || strings.HasPrefix(c.Gate, "stopped-") && c.Of != 6 { // with the controls
			t.Errorf("gate %s passed %d times of %d", c.Gate, c.Passed, c.Of)
		}
	}
	receipts := receiptsOf(t, run)
	for fact, want := range map[string]string{"differs.hostname": "4", "differs.canary": "4", "differs.server-draw": "4", "residue.address-layout": "declared"} {
		if have := factOf(receipts["s0/gate-hygiene"], fact); !strings.Contains(have, want) {
			t.Errorf("siblings: %s is %q, want %q", fact, have, want)
		}
	}
	if have := factOf(receipts["s0/gate-audit"], "shared-devices"); have != `["/dev/null"]` {
		t.Errorf("siblings share the devices %s", have)
	}
	slots, urls, canaries, before, after := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[bench.SHA256]bool{}, map[bench.SHA256]bool{}
	// All four acted at one time.
	var lastStart, firstEnd int64 = 0, 1 << 62
	for _, x := range siblings {
		act := receipts[fmt.Sprintf("r%d/act", x.Index)]
		start, err := strconv.ParseInt(string(act.Start), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		end, err := strconv.ParseInt(string(act.End), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		lastStart, firstEnd = max(lastStart, start), min(firstEnd, end)
		_, said := kept(t, run, act, "policy.stdout")
		for line := range strings.Lines(string(said)) {
			if url, ok := strings.CutPrefix(line, "rename: server "); ok {
				urls[url] = true
			}
		}
		b, _ := kept(t, run, act, "policy/before.png")
		a, _ := kept(t, run, act, "policy/after.png")
		before[b], after[a] = true, true
		slots[x.Slot] = true
		if canary := factOf(receipts[fmt.Sprintf("r%d/reseed", x.Index)], "canary.sha256"); len(canary) == 64 {
			canaries[canary] = true
		}
	}
	if len(slots) != 4 || len(urls) != 4 || len(canaries) != 4 {
		t.Errorf("slots %v, ports %v, canaries %v, want four of each", slots, urls, canaries)
	}
	// Each agent types its own seed; nobody sees what another did.
	if len(before) != 1 || len(after) != 4 {
		t.Errorf("%d pictures before, want one; %d after, want four", len(before), len(after))
	}
	if lastStart >= firstEnd {
		t.Errorf("the four did not act at one time: the last began %d ns after the first had ended", lastStart-firstEnd)
	}
}

// The desktop program keeps its snapshot through restores, and loses it where the locks are left to CRIU.
func TestDeskSQLite(t *testing.T) {
	path := deskManifest(t, "sqlite")
	out := runDesk(t, path, "-t", "rollouts=2")
	for _, reset := range []string{"restore", "cold"} {
		run := filepath.Join(out, "drums-"+reset)
		nothingOwned(t, run)
		if r := readBack(t, run); r.Verdict != engine.RunPassed {
			t.Errorf("%s: %s: %s", reset, r.Verdict, r.Reason)
		}
	}
	out = filepath.Join(t.TempDir(), "criu")
	cmd := exec.Command("drumsbench", "--state", realState(), "run", "--out", out, "-t", "locks=criu", "-t", "rollouts=1", "--reset", "restore", path)
	said, err := cmd.CombinedOutput()
	if got := exitOf(t, err); got != 1 || !strings.Contains(string(said), "/var/lib/book/book.db-shm bytes 128-128: is lost") {
		t.Errorf("exit code %d\n%s", got, said)
	}
}

// The hands of the desk do what agents of the public server ask of them.
func TestDeskHands(t *testing.T) {
	text, err := os.ReadFile("testdata/desk/pyautogui.py")
	if err != nil {
		t.Fatal(err)
	}
	quoted, err := json.Marshal(string(text))
	if err != nil {
		t.Fatal(err)
	}
	path := changedDesk(t, "hands", func(manifest string) string {
		const oracle = "oracle: ["
		if strings.Count(manifest, oracle) != 1 {
			t.Fatal("manifests/rename has its oracle in another form")
		}
		manifest = strings.Replace(manifest, oracle, oracle+`{exec: ["/usr/bin/python3", "-c", `+string(quoted)+`], timeout: "60s"}, `, 1)
		// Each time that it is to be ready, the terminal answers keys, and is as before once they are taken back.
		const window = `windows: [{class: "XTerm"}]`
		if strings.Count(manifest, window) != 1 {
			t.Fatal("manifests/rename has its windows in another form")
		}
		return strings.Replace(manifest, window, `windows: [{class: "XTerm", service: "terminal"}], input: {
			act: [{exec: ["/usr/bin/python3", "-c", "import pyautogui; pyautogui.write('drums')"]}]
			// A terminal hides the pointer while somebody types.
			undo: [{exec: ["/usr/bin/python3", "-c", "import pyautogui; pyautogui.press('backspace', presses=5); pyautogui.move(1, 0); pyautogui.move(-1, 0)"]}]
			region: {x: 320, y: 160, width: 200, height: 60, why: "the terminal's first lines"}
		}`, 1)
	})
	out := runDesk(t, path, "--arm", "drums", "-t", "policy=oracle", "-t", "rollouts=1", "--reset", "restore")
	run := filepath.Join(out, "drums-restore")
	if _, said := kept(t, run, receiptsOf(t, run)["r1/act"], "oracle 0.stdout"); string(said) != "all of it\n" {
		t.Errorf("it said %q", said)
	}
	for _, step := range []string{"base/readiness", "r2/readiness"} {
		r := receiptsOf(t, run)[step]
		if f, err := strconv.ParseFloat(factOf(r, "input-changed"), 64); err != nil || f < 0.01 || factOf(r, "input-undone") != "true" {
			t.Errorf("%s: the terminal answered %s, %s", step, factOf(r, "input-changed"), factOf(r, "input-undone"))
		}
		before, _ := kept(t, run, r, "screen.png")
		if after, _ := kept(t, run, r, "screen-input.png"); before == after {
			t.Errorf("%s: the pictures before and after the keys are one", step)
		}
	}
}

// Each agent in manifests/ is the one that its manifest pins.
func TestAgentsArePinned(t *testing.T) {
	for _, name := range []string{"rename"} {
		m, err := compile.Load(compile.Options{Path: filepath.Join("..", "..", "manifests", name)})
		if err != nil {
			t.Fatal(err)
		}
		p := m.Manifest.Policy.Host
		if p == nil {
			t.Errorf("manifests/%s has no agent", name)
			continue
		}
		if err := hostexec.Verify(engine.HostProgram{Exec: p.Exec, Dir: m.Dir, SHA256: p.Sha256}); err != nil {
			t.Errorf("manifests/%s: %v; write the digest into manifests/pins/agents.cue", name, err)
		}
	}
}

//go:build linux && !elsewhere

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/drumsbench/drumsbench/arms/hostview"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// bed is a state directory of a test's own, and the program as people run it.
type bed struct {
	*testing.T
	program, state, manifests string
	before                    hostview.Snapshot
}

// newBed takes a copy of the image and the pins that scripts/prepare made. At
// the end of the test the host has to be as it was.
func newBed(t *testing.T) *bed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("slots need root")
	}
	program, err := exec.LookPath("drumsbench")
	if err != nil {
		t.Fatal(err) // TestMain puts it there
	}
	real := realState()
	if err := os.MkdirAll(real, 0o755); err != nil {
		t.Fatal(err)
	}
	state, err := os.MkdirTemp(real, "drums-slots-")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{T: t, program: program, state: state, manifests: filepath.Join(state, "manifests", "manifests")}
	t.Cleanup(b.close)
	b.takeSources(real)
	// No run has this claim: what is ours is said afterwards.
	if b.before, err = hostview.Take(t.Context(), hostview.Scope{ID: "none", Paths: []string{state}}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bed) takeSources(real string) {
	b.Helper()
	lock := flock.New(filepath.Join(real, "prepare.lock"))
	if err := lock.Lock(); err != nil {
		b.Fatal(err)
	}
	defer lock.Close()
	err := errors.Join(
		os.MkdirAll(filepath.Join(b.state, "work"), 0o755), os.MkdirAll(filepath.Join(b.state, "images"), 0o755),
		os.MkdirAll(filepath.Join(b.state, "bin"), 0o755),
		os.CopyFS(b.manifests, os.DirFS(filepath.Join(real, "manifests", "manifests"))),
		os.CopyFS(filepath.Join(b.state, "manifests", "schemas"), schemas.FS), // this program's own
		copyFile(filepath.Join(real, "images", "tiny.qcow2"), filepath.Join(b.state, "images", "tiny.qcow2")),
		copyFile(filepath.Join(real, "bin", "canary"), filepath.Join(b.state, "bin", "canary")),
		os.Symlink(filepath.Join(real, "criu"), filepath.Join(b.state, "criu")),
	)
	if err != nil {
		b.Fatalf("%v: scripts/prepare makes it", err)
	}
}

// close takes away what a test that failed left, and requires that one that did not left nothing.
func (b *bed) close() {
	names, err := slotNames(b.state)
	if err != nil {
		b.Error(err)
	}
	for _, name := range slices.Backward(names) {
		if !b.Failed() {
			b.Errorf("slot %s was not released", name)
		}
		b.run("slot", "release", name)
	}
	claims := map[string]bool{}
	ledgers, err := filepath.Glob(filepath.Join(b.state, "*", "*", record.LedgerFile))
	more, gerr := filepath.Glob(filepath.Join(b.state, "*", "*", "*", record.LedgerFile))
	if err := errors.Join(err, gerr); err != nil {
		b.Error(err)
	}
	for _, path := range append(ledgers, more...) {
		open, _, err := record.ReadLedger(path)
		if err != nil {
			b.Error(err)
		}
		for _, o := range open {
			b.Errorf("%s still owns %s %s", path, o.Kind, o.Claim.Path)
		}
		first, err := os.ReadFile(path)
		if err != nil {
			b.Error(err)
		}
		var line bench.LedgerLine
		if head, _, _ := bytes.Cut(first, []byte("\n")); json.Unmarshal(head, &line) == nil {
			claims[filepath.Base(line.Claim.Path)] = true
		}
	}
	for claim := range claims {
		for _, f := range b.changes(claim) {
			b.Errorf("the host is not as it was: %s %s (want %s, have %s)", f.Subject, f.Text, f.Want, f.Have)
		}
	}
	left, err := os.ReadDir(filepath.Join(b.state, "work"))
	if err != nil || len(left) > 0 {
		b.Errorf("left in the scratch directory: %v, %v", left, err)
	}
	if err := os.RemoveAll(b.state); err != nil {
		b.Error(err)
	}
}

// changes are what is ours and was not there before. The first process of a slot
// is waited for by the host's init, which takes its time.
func (b *bed) changes(claim string) (ours []bench.Finding) {
	for range 100 {
		after, err := hostview.Take(context.Background(), hostview.Scope{ID: claim, Paths: []string{b.state}})
		if err != nil {
			return []bench.Finding{{Subject: "host", Text: err.Error()}}
		}
		ours = slices.DeleteFunc(hostview.Diff(b.before, after), func(f bench.Finding) bool { return f.Verdict != engine.Fail })
		if len(ours) == 0 {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return ours
}

func (b *bed) command(args ...string) *exec.Cmd {
	cmd := exec.Command(b.program, args...)
	cmd.Env = append(os.Environ(), "DRUMSBENCH_STATE="+b.state)
	return cmd
}

// said is what a command printed and how it ended.
type said struct {
	stdout, stderr string
	code           int
}

func (b *bed) run(args ...string) (s said) {
	b.Helper()
	var stdout, stderr bytes.Buffer
	cmd := b.command(args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		b.Fatal(err)
	}
	return said{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// want runs a command that has to end with a code and to print each text, on whichever stream.
func (b *bed) want(code int, texts []string, args ...string) said {
	b.Helper()
	s := b.run(args...)
	if s.code != code {
		b.Fatalf("drumsbench %s: exit %d, want %d\n%s%s", strings.Join(args, " "), s.code, code, s.stdout, s.stderr)
	}
	for _, text := range texts {
		if !strings.Contains(s.stdout+s.stderr, text) {
			b.Fatalf("drumsbench %s: does not say %q\n%s%s", strings.Join(args, " "), text, s.stdout, s.stderr)
		}
	}
	return s
}

func (b *bed) locks() string { return filepath.Join(b.manifests, "locks") }

func (b *bed) slot(name string) string { return slotFolder(b.state, name) }

// shell runs a line in a slot and returns what it printed.
func (b *bed) shell(slot, line string) string {
	b.Helper()
	return b.want(0, nil, "slot", "exec", slot, "--", "/bin/busybox", "sh", "-c", line).stdout
}

// status of one slot.
func (b *bed) status(name string) slotState {
	b.Helper()
	var list []slotState
	if err := json.Unmarshal([]byte(b.want(0, nil, "slot", "status", "-o", "json", name).stdout), &list); err != nil || len(list) != 1 {
		b.Fatalf("status of %s: %v, %v", name, list, err)
	}
	return list[0]
}

func (b *bed) wantState(name, state, reason string) slotState {
	b.Helper()
	s := b.status(name)
	if s.State != state || !strings.Contains(s.Reason, reason) {
		b.Fatalf("slot %s is %s (%s), want %s (%s)", name, s.State, s.Reason, state, reason)
	}
	return s
}

func (b *bed) handle(name string) bench.SlotHandle {
	b.Helper()
	h, _, err := record.ReadHandle(b.slot(name))
	if err != nil {
		b.Fatal(err)
	}
	return h
}

// reseal changes a slot's handle and lets the chain say that a command did.
func (b *bed) reseal(name string, change func(*bench.SlotHandle)) {
	b.Helper()
	d, err := record.Reopen(b.slot(name))
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	h := b.handle(name)
	change(&h)
	digest, err := d.WriteHandle(h)
	if err == nil {
		err = d.Events.Append(bench.Receipt{Time: engine.Timestamp(time.Now()), Event: "step", Step: "planted", Kind: record.KindCommand, Verdict: engine.Pass,
			Facts: []bench.Fact{fact(record.HandleFact, string(digest))}})
	}
	if err != nil {
		b.Fatal(err)
	}
}

// A slot goes through every command, each a process of its own, and is what the commands say.
func TestSlotByHand(t *testing.T) {
	b := newBed(t)
	b.want(0, []string{"desk: running, pid "}, "slot", "provision", "--arm", "drums", "--name", "desk", b.locks())
	b.want(1, []string{"there is one of that name", "slot release desk"}, "slot", "provision", "--arm", "drums", "--name", "desk", b.locks())
	b.wantState("desk", "running", "")
	b.want(1, []string{"the slot has no checkpoint", "slot dump desk"}, "slot", "reset", "desk")
	b.want(1, []string{"it is running", "slot reset desk"}, "slot", "restore", "desk")

	// Exec gives back what the command printed, and its exit status.
	if s := b.run("slot", "exec", "desk", "--", "/bin/busybox", "sh", "-c", "echo out; echo err >&2; exit 3"); s.code != 1 || s.stdout != "out\n" || !strings.HasPrefix(s.stderr, "err\n") || !strings.Contains(s.stderr, "exited with 3") {
		t.Errorf("exec: %+v", s)
	}
	if s := b.run("slot", "exec", "-o", "json", "desk", "--", "/bin/busybox", "sh", "-c", "echo out; echo err >&2; exit 3"); s.code != 1 || s.stderr != "" || !strings.Contains(s.stdout, `"exit": 3`) || !strings.Contains(s.stdout, `"stdout": "out\n"`) {
		t.Errorf("exec -o json: %+v", s)
	}
	b.want(1, []string{"deadline exceeded", "--timeout"}, "slot", "exec", "--timeout", "100ms", "desk", "--", "/bin/busybox", "sleep", "10")
	b.want(2, []string{"name a command"}, "slot", "exec", "desk", "--", "")

	// Dump, and back: the state is the one of the dump.
	b.shell("desk", "echo kept > /root/note")
	b.want(0, []string{"desk: vacant", "checkpoints/slot-0"}, "slot", "dump", "desk")
	b.wantState("desk", "vacant", "")
	b.want(1, []string{"it does not run, it is vacant"}, "slot", "exec", "desk", "--", "/bin/true")
	b.want(1, []string{"it does not run, it is vacant"}, "slot", "dump", "desk")
	b.want(0, []string{"desk: running", "gate-stopped-locks", "gate-live", "gate-network"}, "slot", "restore", "desk")
	first := b.wantState("desk", "running", "")
	if first.Guest != "running" {
		t.Errorf("guest: %+v", first)
	}
	b.shell("desk", "echo lost >> /root/note; touch /root/new")
	b.want(0, []string{"desk: running"}, "slot", "reset", "desk")
	if got := b.shell("desk", "cat /root/note; test -e /root/new && echo new; true"); got != "kept\n" {
		t.Errorf("after the reset: %q", got)
	}
	if second := b.wantState("desk", "running", ""); second.Pid == first.Pid {
		t.Errorf("the reset left the process %d", first.Pid)
	}
	// What was restored can be dumped again; the first checkpoint stays.
	b.shell("desk", "touch /root/again")
	b.want(0, nil, "slot", "dump", "desk")
	b.want(0, []string{"desk: running"}, "slot", "restore", "desk")
	if got := b.shell("desk", "cat /root/note; ls /root/again"); got != "kept\n/root/again\n" {
		t.Errorf("after the second dump: %q", got)
	}

	// Another slot from its checkpoint, at the same time; each has its own state.
	cp := filepath.Join(b.slot("desk"), "checkpoints", "slot-0")
	b.want(0, []string{"second: running"}, "slot", "restore", "--from", cp, "--name", "second")
	b.shell("second", "echo second > /root/note")
	if got := b.shell("desk", "cat /root/note"); got != "kept\n" {
		t.Errorf("desk sees the other slot's state: %q", got)
	}
	b.want(0, nil, "slot", "reset", "second")
	if got := b.shell("second", "cat /root/note"); got != "kept\n" {
		t.Errorf("second after its reset: %q", got)
	}
	b.want(1, []string{"slot second resets to the checkpoint in it"}, "slot", "release", "desk")

	// The chain is whole; a sweep without a name leaves the slots alone.
	b.want(0, nil, "sweep")
	b.wantState("second", "running", "")
	b.want(0, []string{"desk: sound", "second: sound", "checkpoints/slot-0"}, "verify", slotsFolder(b.state))
	b.want(0, []string{"nothing of it is left"}, "slot", "release", "second")
	b.want(0, []string{"nothing of it is left", "released/desk-"}, "slot", "release", "desk")
	b.want(0, []string{"there is no slot"}, "slot", "status")
	b.want(2, []string{"no such slot"}, "slot", "release", "desk")
	b.wantReleased("desk")
}

// A slot of the oci arm is dumped too, although runc takes the container's control
// groups away with it: it is looked at, reset and released from there.
func TestOCISlotByHand(t *testing.T) {
	b := newBed(t)
	b.want(0, []string{"desk: running, pid "}, "slot", "provision", "--arm", "oci", "--name", "desk", b.locks())
	b.shell("desk", "echo kept > /root/note")
	b.want(0, []string{"desk: vacant"}, "slot", "dump", "desk")
	b.wantState("desk", "vacant", "")
	b.want(0, []string{"desk: running"}, "slot", "restore", "desk")
	b.shell("desk", "echo lost >> /root/note")
	b.want(0, []string{"desk: running"}, "slot", "reset", "desk")
	if got := b.shell("desk", "cat /root/note"); got != "kept\n" {
		t.Errorf("after the reset: %q", got)
	}
	b.want(0, []string{"nothing of it is left"}, "slot", "release", "desk")
	b.wantReleased("desk")

	// One that nobody restored is released as it is.
	b.want(0, nil, "slot", "provision", "--arm", "oci", "--name", "vacant", b.locks())
	b.want(0, []string{"vacant: vacant"}, "slot", "dump", "vacant")
	b.want(0, []string{"nothing of it is left"}, "slot", "release", "vacant")
	b.wantReleased("vacant")
}

// wantReleased requires that the chain of a released slot is whole and ended.
func (b *bed) wantReleased(name string) {
	b.Helper()
	found, err := filepath.Glob(filepath.Join(b.state, "released", name+"-*"))
	if err != nil || len(found) != 1 {
		b.Fatalf("released: %v, %v", found, err)
	}
	if events, _, err := record.ReadEvents(found[0]); err != nil || events[len(events)-1].Event != "run_end" {
		b.Errorf("the chain of the released slot does not end: %v", err)
	}
	b.want(0, []string{"sound"}, "verify", found[0])
}

// Each command refuses a slot that is not as the last one left it, with the
// reason; release takes every one of them away.
func TestSlotRefusals(t *testing.T) {
	b := newBed(t)
	made := 0
	// fresh is a slot with a checkpoint that runs.
	fresh := func() string {
		made++
		name := fmt.Sprintf("desk-%d", made)
		b.want(0, nil, "slot", "provision", "--arm", "drums", "--name", name, b.locks())
		return name
	}
	edit := func(change func(*bench.SlotHandle)) func(*bed, string) {
		return func(b *bed, name string) { b.reseal(name, change) }
	}
	for _, c := range []struct {
		name          string
		plant         func(b *bed, name string)
		text          string
		state, reason string
	}{
		{"handle that was changed", func(b *bed, name string) {
			path := filepath.Join(b.slot(name), record.HandleFile)
			text, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, bytes.Replace(text, []byte(`"pids":`), []byte(`"pids": `), 1), 0o644)
			}
			if err == nil {
				text = append(text[:len(text)-1], ' ', '}')
				err = os.WriteFile(path, text, 0o644)
			}
			if err != nil {
				b.Fatal(err)
			}
		}, "handle.json is not what the last command on the slot wrote down", "refused", "handle.json"},
		{"handle that is no handle", func(b *bed, name string) {
			if err := os.WriteFile(filepath.Join(b.slot(name), record.HandleFile), []byte("{}"), 0o644); err != nil {
				b.Fatal(err)
			}
		}, "refused", "refused", ""},
		{"handle that is gone", func(b *bed, name string) {
			if err := os.Remove(filepath.Join(b.slot(name), record.HandleFile)); err != nil {
				b.Fatal(err)
			}
		}, "did not end", "unfinished", "did not end"},
		{"another boot", edit(func(h *bench.SlotHandle) { h.Boot = "00000000-0000-0000-0000-000000000000" }), "the host was started anew", "dead", "started anew"},
		{"another engine", edit(func(h *bench.SlotHandle) { h.Engine.Sha256 = bench.SHA256(strings.Repeat("0", 64)) }), "made by another drumsbench", "refused", "another drumsbench"},
		{"another guest server", edit(func(h *bench.SlotHandle) { h.Server = bench.SHA256(strings.Repeat("0", 64)) }), "server pin is not that of the manifest", "refused", "server pin"},
		{"another workload", edit(func(h *bench.SlotHandle) { h.Workload = bench.SHA256(strings.Repeat("0", 64)) }), "workload is not that of the manifest", "refused", "workload"},
		{"another plan", edit(func(h *bench.SlotHandle) { h.Plan = bench.SHA256(strings.Repeat("0", 64)) }), "plan.json was changed", "refused", "plan.json"},
		{"another manifest", func(b *bed, name string) {
			path := filepath.Join(b.slot(name), record.ManifestFile)
			text, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, bytes.Replace(text, []byte(`"pids":128`), []byte(`"pids":129`), 1), 0o644)
			}
			if err != nil {
				b.Fatal(err)
			}
		}, "manifest.json was changed", "refused", "manifest.json"},
		{"settings", edit(func(h *bench.SlotHandle) { h.Settings["locks"] = "criu" }), "arm settings are others", "refused", "arm settings"},
		{"a process that is not the slot's", edit(func(h *bench.SlotHandle) {
			for i := range h.Owned {
				if h.Owned[i].Kind == "process" {
					h.Owned[i].Identity.Pid = 1
				}
			}
		}), "ledger owns other things", "unfinished", "ledger"},
		{"a command that was cut short", func(b *bed, name string) {
			l, err := record.OpenLedger(filepath.Join(b.slot(name), record.LedgerFile))
			if err == nil {
				_, err = l.Intend("directory", bench.Claim{Path: filepath.Join(b.handle(name).Work, "slot-0.1")})
			}
			if err == nil {
				err = l.Close()
			}
			if err != nil {
				b.Fatal(err)
			}
		}, "a command was cut short", "unfinished", "cut short"},
		{"a folder of another name", func(b *bed, name string) {
			if err := os.Rename(b.slot(name), b.slot(name+"-x")); err != nil {
				b.Fatal(err)
			}
			if err := os.Rename(b.slot(name+"-x"), b.slot(name)); err != nil {
				b.Fatal(err)
			}
			b.reseal(name, func(h *bench.SlotHandle) { h.Name = "other" })
		}, "the folder was moved", "refused", "folder was moved"},
		{"a slot that was swept", func(b *bed, name string) { b.want(0, nil, "sweep", b.slot(name)) }, "the slot was swept", "dead", "swept"},
		{"a chain that was damaged", func(b *bed, name string) {
			path := filepath.Join(b.slot(name), record.EventsFile)
			text, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, bytes.Replace(text, []byte(`"verdict":"pass"`), []byte(`"verdict":"fail"`), 1), 0o644)
			}
			if err != nil {
				b.Fatal(err)
			}
		}, "go on with chain", "", ""},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			b := &bed{T: t, program: b.program, state: b.state, manifests: b.manifests}
			name := fresh()
			c.plant(b, name)
			for _, args := range [][]string{{"exec", name, "--", "/bin/true"}, {"dump", name}, {"reset", name}, {"restore", name}} {
				b.want(1, []string{c.text}, append([]string{"slot"}, args...)...)
			}
			if c.state != "" {
				b.wantState(name, c.state, c.reason)
			}
			if strings.HasPrefix(c.text, "handle.json") {
				b.want(1, []string{"handle.json: edited"}, "verify", b.slot(name))
			}
			b.want(0, []string{"nothing of it is left"}, "slot", "release", name)
		})
	}
}

// Another program than the one that made the slot may only release it.
func TestSlotOfAnotherProgram(t *testing.T) {
	b := newBed(t)
	b.want(0, nil, "slot", "provision", "--arm", "drums", "--name", "desk", b.locks())
	real, err := filepath.EvalSymlinks(b.program)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(b.state, "other", "drumsbench")
	if err := errors.Join(os.MkdirAll(filepath.Dir(other), 0o755), copyFile(real, other)); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(other, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("another build")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	b.program = other
	b.want(1, []string{"the slot was made by another drumsbench", "use the program that made it"}, "slot", "exec", "desk", "--", "/bin/true")
	b.wantState("desk", "refused", "only release works")
	b.want(0, []string{"nothing of it is left"}, "slot", "release", "--purge", "desk")
}

// A slot whose processes died is dead, by the host's own word, and a reset revives it.
func TestSlotThatDied(t *testing.T) {
	b := newBed(t)
	b.want(0, nil, "slot", "provision", "--arm", "drums", "--name", "desk", b.locks())
	kill := func() {
		t.Helper()
		pid := int(b.wantState("desk", "running", "").Pid)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for range 500 {
			if b.status("desk").State == "dead" {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("the slot does not die: %+v", b.status("desk"))
	}
	kill()
	b.wantState("desk", "dead", "which started at tick")
	b.want(1, []string{"slot is dead"}, "slot", "exec", "desk", "--", "/bin/true")
	b.want(1, []string{"slot is dead"}, "slot", "dump", "desk")
	b.want(1, []string{"the slot has no checkpoint"}, "slot", "reset", "desk")
	b.want(0, []string{"nothing of it is left"}, "slot", "release", "desk")

	b.want(0, nil, "slot", "provision", "--arm", "drums", "--name", "desk", b.locks())
	b.want(0, nil, "slot", "dump", "desk")
	b.want(0, nil, "slot", "restore", "desk")
	kill()
	b.want(0, []string{"desk: running"}, "slot", "reset", "desk")
	b.wantState("desk", "running", "")
	kill()
	b.want(0, []string{"nothing of it is left"}, "slot", "release", "--purge", "desk")
}

// Of two commands on one slot the second is refused; one that is killed in the
// middle leaves a slot that only release is for.
func TestSlotIsForOneCommand(t *testing.T) {
	b := newBed(t)
	b.want(0, nil, "slot", "provision", "--arm", "drums", "--name", "desk", b.locks())
	long := b.command("slot", "exec", "desk", "--", "/bin/busybox", "sh", "-c", "touch /root/begun; sleep 60")
	if err := long.Start(); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if b.status("desk").State == "busy" {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	b.wantState("desk", "busy", "")
	b.want(1, []string{"another command works on it"}, "slot", "exec", "desk", "--", "/bin/true")
	b.want(1, []string{"another command works on it"}, "slot", "release", "desk")
	b.want(1, []string{"an engine holds the run"}, "sweep", b.slot("desk"))
	if err := long.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := long.Wait(); err == nil {
		t.Error("an exec that was interrupted ended with 0")
	}
	// Exec changed nothing that is owned, so the slot goes on.
	b.wantState("desk", "running", "")

	b.want(0, nil, "slot", "dump", "desk")
	ledger := filepath.Join(b.slot("desk"), record.LedgerFile)
	// stop sends a reset a signal once it has begun: its first line in the ledger is
	// the end of the tenancy before.
	stop := func(s os.Signal) {
		t.Helper()
		info, err := os.Stat(ledger)
		if err != nil {
			t.Fatal(err)
		}
		reset := b.command("slot", "reset", "desk")
		if err := reset.Start(); err != nil {
			t.Fatal(err)
		}
		for range 2000 {
			if now, err := os.Stat(ledger); err == nil && now.Size() > info.Size() {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if err := reset.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		if err := reset.Wait(); err == nil {
			t.Errorf("a reset that got the signal %s ended with 0", s)
		}
	}
	// One that is interrupted takes back what it began: the next one works.
	stop(syscall.SIGINT)
	b.want(0, []string{"desk: running"}, "slot", "reset", "desk")
	stop(syscall.SIGKILL)
	b.wantState("desk", "unfinished", "cut short")
	b.want(1, []string{"a command was cut short"}, "slot", "reset", "desk")
	// Without its ledger nobody can say that nothing is left.
	if err := os.Rename(ledger, ledger+".x"); err != nil {
		t.Fatal(err)
	}
	b.want(3, []string{"the ledger in", "is gone"}, "slot", "release", "desk")
	if err := os.Rename(ledger+".x", ledger); err != nil {
		t.Fatal(err)
	}
	b.want(0, []string{"nothing of it is left"}, "slot", "release", "desk")
}

// The arms whose slots end with the program have no slots by hand.
func TestSlotNeedsAnArmThatLasts(t *testing.T) {
	folder := t.TempDir()
	h := fakeCrash(t, folder)
	b := &bed{T: t, program: h.Program(t.Context(), nil).Path, state: h.State}
	args := []string{"-t", h.Run[1], h.Run[len(h.Run)-1]}
	b.want(1, []string{"a slot of the fake arm ends with the program that made it"}, append([]string{"slot", "provision", "--name", "desk"}, args...)...)
	b.want(1, []string{"a slot of the fake arm ends with the program that made it"}, append([]string{"run", "--reset", "restore", "--keep-on-failure"}, args...)...)
	if names, err := slotNames(h.State); err != nil || len(names) > 0 {
		t.Errorf("slots %v, %v", names, err)
	}
}

// A checkpoint of one run serves a second one, in a process of its own, with
// every gate; what it is not of is refused by name.
func TestRunFromCheckpoint(t *testing.T) {
	b := newBed(t)
	first := filepath.Join(b.state, "runs", "first")
	b.want(0, []string{"passed"}, "run", "--arm", "drums", "-t", "rollouts=1", "--reset", "restore", "--out", first, b.locks())
	dir := filepath.Join(first, "drums-restore")
	cp := filepath.Join(dir, "checkpoints", "slot-0")
	// Of a real restore the parts are known that a log of criu's is not needed for.
	b.want(0, []string{"restore of n 1 resets", "kill ", "criu start ", "forks ", "repair ", "first answer ", "not accounted "}, "show", "--profile", dir)
	var profiles []bench.Profile
	if err := json.Unmarshal([]byte(b.want(0, nil, "show", "--profile", "-o", "json", dir).stdout), &profiles); err != nil || len(profiles) != 1 || len(profiles[0].Parts) < 15 {
		t.Errorf("%v, %+v", err, profiles)
	} else {
		for _, k := range profiles[0].Parts {
			switch k.Name {
			case "namespaces", "helper processes", "pages":
				if k.P50 != nil || k.Reason == "" {
					t.Errorf("without a log of criu's it is known how long %s took: %+v", k.Name, k)
				}
			default:
				if k.P50 == nil || k.Share == nil {
					t.Errorf("%s has no number: %s", k.Name, k.Reason)
				}
			}
		}
	}

	second := filepath.Join(b.state, "runs", "second")
	s := b.want(0, []string{"passed", "base/checkpoint"}, "run", "-t", "rollouts=4", "-t", "slots=2", "--from-checkpoint", cp, "--out", second, b.locks())
	if strings.Contains(s.stderr, "dump") || strings.Contains(s.stderr, "base/provision") {
		t.Errorf("the second run made a checkpoint of its own:\n%s", s.stderr)
	}
	one, two := b.record(dir), b.record(filepath.Join(second, "drums-restore"))
	if two.Checkpoint == "" || two.Checkpoint != one.Checkpoint || two.Digests["plan"] == one.Digests["plan"] || two.Digests["workload"] != one.Digests["workload"] || len(two.Rollouts) != 6 {
		t.Errorf("the record of the second run: checkpoint %s of %s, digests %v and %v, %d rollouts", two.Checkpoint, one.Checkpoint, two.Digests, one.Digests, len(two.Rollouts))
	}
	for _, r := range two.Rollouts {
		if r.Class != record.Success && r.Control != "none" {
			t.Errorf("rollout %d: %s %s", r.Index, r.Class, r.Reason)
		}
	}
	b.want(0, []string{"sound"}, "verify", second)
	b.want(2, []string{"restore only"}, "run", "--reset", "cold", "--from-checkpoint", cp, b.locks())
	b.want(2, []string{"serves no other"}, "run", "--arm", "fake", "--from-checkpoint", cp, b.locks())
	b.want(2, []string{"holds no checkpoint"}, "run", "--from-checkpoint", dir, b.locks())

	// Each fact that decides, in a copy.
	setFact := func(name, value string) func(*bench.Checkpoint) {
		return func(h *bench.Checkpoint) {
			i := slices.IndexFunc(h.Facts, func(f bench.Fact) bool { return f.Name == name })
			if i < 0 || !h.Facts[i].Known {
				t.Errorf("the checkpoint does not say %s", name)
				return
			}
			h.Facts[i].Value = value
		}
	}
	other := strings.Repeat("0", 64)
	for _, c := range []struct {
		name, text string
		change     func(*bench.Checkpoint)
	}{
		{"kernel", "the checkpoint is of another kernel-release", setFact("kernel-release", "6.1.0-13-amd64")},
		{"machine", "the checkpoint is of another machine", setFact("machine", "riscv64")},
		{"cpu", "the checkpoint is of another cpu-features", setFact("cpu-features", other)},
		{"criu version", "the checkpoint is of another criu.version", setFact("criu.version", "4.0")},
		{"criu program", "the checkpoint is of another criu.sha256", setFact("criu.sha256", other)},
		{"engine", "the checkpoint is of another engine.sha256", setFact(engine.EngineDigest, other)},
		{"guest server", "the checkpoint's guest server is another than the manifest's", setFact(engine.ServerDigest, other)},
		{"image", "it is of another image", func(h *bench.Checkpoint) { h.Image = bench.SHA256(other) }},
		{"workload", "the checkpoint is of another workload", func(h *bench.Checkpoint) { h.Workload = bench.SHA256(other) }},
		{"silence", "is not known on both sides", func(h *bench.Checkpoint) {
			h.Facts = slices.DeleteFunc(h.Facts, func(f bench.Fact) bool { return f.Name == "kernel-release" })
		}},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			b := &bed{T: t, program: b.program, state: b.state, manifests: b.manifests}
			copied := b.copyRun(dir)
			b.changeHandle(copied, c.change)
			b.want(1, []string{c.text}, "run", "-t", "rollouts=1", "--from-checkpoint", copied, "--out", filepath.Join(b.state, "runs", filepath.Base(t.Name())), b.locks())
			b.want(1, []string{c.text}, "slot", "restore", "--from", copied, "--name", "refused")
			b.wantState("refused", "gone", "")
			b.want(0, []string{"nothing of it is left"}, "slot", "release", "--purge", "refused")
		})
	}
	t.Run("damaged", func(t *testing.T) {
		b := &bed{T: t, program: b.program, state: b.state, manifests: b.manifests}
		copied := b.copyRun(dir)
		f, err := os.OpenFile(filepath.Join(copied, "state.json"), os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(" ")
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		b.want(1, []string{"state.json changed its size"}, "run", "-t", "rollouts=1", "--from-checkpoint", copied, "--out", filepath.Join(b.state, "runs", "damaged"), b.locks())
	})
	// A copy that nobody changed is as good: its files are hashed, and hold.
	copied := b.copyRun(dir)
	b.want(0, []string{"copied: running"}, "slot", "restore", "--from", copied, "--name", "copied")
	b.want(0, nil, "slot", "reset", "copied")
	b.want(0, nil, "slot", "release", "copied")
	// Away from its run, it needs a manifest.
	alone := filepath.Join(b.state, "alone")
	if out, err := exec.Command("cp", "-a", copied, alone).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b.want(2, []string{"name it with --manifest"}, "slot", "restore", "--from", alone, "--name", "alone")
	b.want(0, []string{"alone: running"}, "slot", "restore", "--from", alone, "--name", "alone", "--manifest", b.locks())
	b.want(0, nil, "slot", "release", "alone")
}

func (b *bed) record(dir string) bench.Record {
	b.Helper()
	r, err := readRecord(dir)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// copyRun copies a run's manifest and checkpoint and returns the checkpoint's folder.
func (b *bed) copyRun(run string) string {
	b.Helper()
	to, err := os.MkdirTemp(b.state, "copy-")
	if err != nil {
		b.Fatal(err)
	}
	// cp -a keeps extended attributes of layers, which os.CopyFS does not.
	if out, err := exec.Command("cp", "-a", filepath.Join(run, record.ManifestFile), filepath.Join(run, "checkpoints"), to).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(to, "checkpoints", "slot-0")
}

func (b *bed) changeHandle(cp string, change func(*bench.Checkpoint)) {
	b.Helper()
	opened, err := checkpoint.Open(cp)
	if err != nil {
		b.Fatal(err)
	}
	change(&opened.Handle)
	text, err := json.Marshal(opened.Handle)
	if err == nil {
		err = os.WriteFile(filepath.Join(cp, checkpoint.HandleFile), text, 0o600)
	}
	if err != nil {
		b.Fatal(err)
	}
}

// An image that a daemon shows outlives the command too.
func TestSlotOnFuse(t *testing.T) {
	b := newBed(t)
	dir := b.variant("fused", `arms: drums: {`, `arms: drums: {
		attach: "fuse"`)
	b.want(0, nil, "slot", "provision", "--arm", "drums", "--name", "desk", dir)
	b.shell("desk", "echo kept > /root/note")
	b.want(0, nil, "slot", "dump", "desk")
	b.want(0, nil, "slot", "restore", "desk")
	b.want(0, nil, "slot", "reset", "desk")
	if got := b.shell("desk", "cat /root/note"); got != "kept\n" {
		t.Errorf("after the reset: %q", got)
	}
	for _, o := range b.handle("desk").Owned {
		if o.Kind == "export" {
			if err := syscall.Kill(int(o.Identity.Pid), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 200 {
		if b.status("desk").State == "refused" {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.wantState("desk", "refused", "the program that shows the image")
	b.want(1, []string{"the program that shows the image"}, "slot", "reset", "desk")
	b.want(0, []string{"nothing of it is left"}, "slot", "release", "desk")
}

// variant is the manifest of locks with one text replaced.
func (b *bed) variant(name, old, new string) string {
	b.Helper()
	dir := filepath.Join(b.manifests, name)
	text, err := os.ReadFile(filepath.Join(b.locks(), "locks.cue"))
	if err == nil && bytes.Count(text, []byte(old)) != 1 {
		err = fmt.Errorf("the manifest does not have %q once", old)
	}
	if err == nil {
		text = bytes.Replace(text, []byte(old), []byte(new), 1)
		err = errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "locks.cue"), text, 0o644))
	}
	if err != nil {
		b.Fatal(err)
	}
	return dir
}

// broken is the manifest of locks with an oracle that does nothing.
func (b *bed) broken() string {
	b.Helper()
	return b.variant("broken", `["/usr/bin/python3", "/usr/local/lib/locks/write.py"]`, `["/bin/true"]`)
}

// The slot of a run that failed stays for a person to look at, owned by the
// run's ledger, until it is released.
func TestKeepOnFailure(t *testing.T) {
	b := newBed(t)
	out := filepath.Join(b.state, "runs", "broken")
	run := filepath.Join(out, "drums-restore")
	s := b.want(1, []string{"kept    slot locks-slot-0: running", "drumsbench slot exec locks-slot-0"},
		"run", "--arm", "drums", "--keep-on-failure", "-t", "rollouts=2", "--reset", "restore", "--out", out, b.broken())
	if !strings.Contains(s.stdout, "r1/evaluate-after") { // where the oracle acts
		t.Errorf("the run says:\n%s", s.stdout)
	}
	r := b.record(run)
	verdicts := map[string]bench.Verdict{}
	for _, o := range r.Steps {
		verdicts[o.Step] = o.Verdict
	}
	for _, step := range []string{"release/slot-0", "release/root"} {
		if verdicts[step] != engine.NotRun {
			t.Errorf("%s: %s", step, verdicts[step])
		}
	}
	b.want(0, []string{"sound", "still owns"}, "verify", run)
	b.want(0, []string{"sound"}, "verify", b.slot("locks-slot-0"))
	state := b.wantState("locks-slot-0", "running", "evaluate-after")
	if state.Run != run {
		t.Errorf("the slot is of run %q", state.Run)
	}
	// What the rollout left is there to be looked at; a reset takes it back, and a sweep leaves it alone.
	b.shell("locks-slot-0", "test -s /root/.canary && touch /root/looked")
	b.want(0, nil, "slot", "reset", "locks-slot-0")
	if got := b.shell("locks-slot-0", "test -e /root/looked && echo there; true"); got != "" {
		t.Errorf("after the reset: %q", got)
	}
	b.want(0, nil, "sweep")
	b.wantState("locks-slot-0", "running", "")
	b.want(0, []string{"nothing of it is left"}, "slot", "release", "locks-slot-0")
	b.wantReleased("locks-slot-0")
	b.want(0, []string{"sound"}, "verify", run)

	// A gate that judged the stopped tree keeps it stopped; sibling slots are released.
	out = filepath.Join(b.state, "runs", "lost")
	b.want(1, []string{"kept    slot locks-slot-0: stopped"}, "run", "--arm", "drums", "--keep-on-failure", "-t", "locks=criu", "-t", "rollouts=2", "-t", "slots=2", "--reset", "restore", "--out", out, b.locks())
	b.wantState("locks-slot-0", "stopped", "is lost")
	b.want(1, []string{"it does not run, it is stopped"}, "slot", "exec", "locks-slot-0", "--", "/bin/true")
	// A sweep of the run by name takes the slot away all the same.
	b.want(0, nil, "sweep", filepath.Join(out, "drums-restore"))
	b.wantState("locks-slot-0", "dead", "swept")
	b.want(0, []string{"nothing of it is left"}, "slot", "release", "locks-slot-0")

	// A run that passes keeps nothing; one whose provision fails has nothing to keep.
	if s := b.want(0, []string{"passed"}, "run", "--arm", "drums", "--keep-on-failure", "-t", "rollouts=1", "--reset", "restore", "--out", filepath.Join(b.state, "runs", "fine"), b.locks()); strings.Contains(s.stdout, "kept ") {
		t.Errorf("a run that passed kept a slot:\n%s", s.stdout)
	}
	b.want(0, []string{"there is no slot"}, "slot", "status")
}

// A provision by hand that fails leaves nothing, unless it is asked to.
func TestProvisionThatFails(t *testing.T) {
	b := newBed(t)
	dir := b.variant("unready", `deadline: "30s"`, `deadline: "2s", probes: [{exec: ["/bin/false"]}]`)
	b.want(1, []string{"gone: nothing of it is left", "wait for readiness"}, "slot", "provision", "--arm", "drums", "--name", "desk", dir)
	b.wantState("desk", "gone", "readiness")
	b.want(1, []string{"is not there"}, "slot", "exec", "desk", "--", "/bin/true")
	b.want(0, nil, "slot", "release", "--purge", "desk")
	b.want(1, []string{"desk: running", "wait for readiness"}, "slot", "provision", "--arm", "drums", "--keep-on-failure", "--name", "desk", dir)
	b.shell("desk", "cat /run/guestd/reader.log; true")
	b.want(0, nil, "slot", "release", "--purge", "desk")
	if left, err := os.ReadDir(slotsFolder(b.state)); err != nil || len(left) > 0 {
		t.Errorf("left of purged slots: %v, %v", left, err)
	}
}

func TestFreeName(t *testing.T) {
	state := t.TempDir()
	long := strings.Repeat("a", 60)
	names := map[string]string{"desk": "desk", long: long[:48]}
	for base, want := range names {
		if got, err := freeName(state, base); err != nil || got != want {
			t.Errorf("%s: %q, %v", base, got, err)
		}
	}
	for _, name := range slices.Sorted(maps.Values(names)) {
		if err := os.MkdirAll(slotFolder(state, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := checkName(name); err != nil {
			t.Error(err)
		}
	}
	for base, want := range map[string]string{"desk": "desk-2", long: long[:46] + "-2"} {
		got, err := freeName(state, base)
		if err != nil || got != want {
			t.Errorf("%s: %q, %v", base, got, err)
		}
		if err := checkName(got); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "..", "a/b", "Desk", "1a", "-a", strings.Repeat("a", 49)} {
		if err := checkName(bad); !errors.Is(err, engine.ErrUsage) {
			t.Errorf("%q is a name: %v", bad, err)
		}
	}
}

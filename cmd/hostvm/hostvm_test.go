package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

var (
	whole = flag.Bool("hostvm", false, "boot the machine and run the suite host-vm (scripts/test host-vm)")
	keep  = flag.String("hostvm-keep", "", "folder that the records and the consoles are kept in")
	stays = flag.Bool("hostvm-up", false, "take the machine that scripts/host-vm up left running, for -run of one part")
)

// host is the machine of the suite, as its subtests use it.
type host struct {
	*testing.T
	m *Machine
}

// run runs a script and returns what it said and its exit code.
func (h host) run(script string) (string, int) {
	h.Helper()
	var said bytes.Buffer
	code, err := h.m.Run(h.Context(), h.m.Environment()+shell+script, &said)
	if err != nil {
		h.Fatalf("%v\n%s", err, said.String())
	}
	return said.String(), code
}

// must runs a script that has to end with a code and to say all of the texts.
func (h host) must(code int, script string, says ...string) string {
	h.Helper()
	said, have := h.run(script)
	if have != code {
		h.Fatalf("exit code %d, want %d, of\n%s\n%s", have, code, script, said)
	}
	for _, text := range says {
		if !strings.Contains(said, text) {
			h.Errorf("nothing says %q after\n%s\n%s", text, script, said)
		}
	}
	return said
}

// shell is what each script begins with: the operator's profile, and the suite's words.
const shell = `[ ! -e /etc/profile.d/drumsbench.sh ] || . /etc/profile.d/drumsbench.sh
manifests=$DRUMSBENCH_STATE/manifests/manifests
scope() { env -u DRUMSBENCH_CGROUP systemd-run -q --scope -p Delegate=yes "$@"; }
# clean fails where anything of a run is left on the host, and says what. What it looks with may find nothing, which is
# an exit code of 1: only what was said counts.
clean() {
	drumsbench sweep || return
	local left
	left=$(find /sys/fs/cgroup -type d -name 'drums-*'; findmnt -rno TARGET | grep drums-; losetup -nl
	  for n in /sys/block/nbd*; do [ ! -e $n/pid ] || echo $n; done; ip netns
	  for name in criu runc guestd qemu-; do pgrep -a $name; done) # one by one: a longer pattern matches no name
	[ -z "$left" ] || { echo "left: $left"; return 1; }
	left=$(drumsbench doctor -o json)
	grep -A2 '"subject": "leftovers"' <<<"$left" | grep '"ok"' || { echo "$left"; return 1; }
}
set -uo pipefail
`

// TestHostVM is the suite: one machine, in the order of an operator's life.
func TestHostVM(t *testing.T) {
	if !*whole {
		t.Skip("a suite of its own: scripts/test host-vm")
	}
	state := stateDir()
	files := map[string]string{
		"state/manifests/manifests/light/light.cue": "testdata/light/light.cue",
		"tests": filepath.Join(state, "hostvm", "tests"),
	}
	options := Options{State: state, Page: "../../docs/operating.md", Files: files, Log: os.Stderr}
	var m *Machine
	if *stays {
		m = theOneThatIsUp(t, options)
	} else {
		m = ownMachine(t, options)
	}
	sub := func(name string, f func(host)) {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			f(host{t, m})
			t.Logf("%.0f s", time.Since(begin).Seconds())
		})
		if t.Failed() && !*stays {
			t.FailNow() // what follows rests on it
		}
	}
	sub("install", host.install)
	sub("doctor", host.doctor)
	sub("packages", host.packages)
	sub("scope", host.scopes)
	sub("slots", host.slots)
	sub("systemd", host.systemd)
	sub("limits", host.limits)
	sub("records", host.records)
	sub("upgrade", host.upgrade)
	sub("oom", host.oom)
	sub("disk", host.disk)
	sub("reboot", host.reboot)
	sub("features", host.features)
}

// ownMachine is one that has just been booted, and goes with the test.
func ownMachine(t *testing.T, options Options) *Machine {
	m, err := New(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if *keep != "" {
			for n := range m.boots {
				name := fmt.Sprintf("console-%d", n+1)
				if _, err := tool(context.Background(), "cp", m.disk(name), filepath.Join(*keep, name)); err != nil {
					t.Error(err)
				}
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := m.Start(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	return m
}

// theOneThatIsUp is installed already, and stays.
func theOneThatIsUp(t *testing.T, options Options) *Machine {
	m, err := kept(options.State)
	if err != nil || m == nil {
		t.Fatalf("no machine is up: %v", err)
	}
	options.Stay = true
	m.options = options
	if m.boot, err = bootOf(t.Context(), filepath.Join(options.State, "images", "host.qcow2"), filepath.Join(options.State, "hostvm")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.keep(); err != nil { // it may have booted anew
			t.Error(err)
		}
	})
	const light = "/manifests/manifests/light/light.cue"
	if err := m.PutFile(t.Context(), "testdata/light/light.cue", options.State+light); err != nil {
		t.Fatal(err)
	}
	return m
}

// The page's own blocks, on a host that has never seen the program.
func (h host) install() {
	if err := h.m.Install(h.Context()); err != nil {
		h.Fatal(err)
	}
	h.must(0, "stat -fc %T /sys/fs/cgroup; systemctl is-active drumsbench.service; cat $DRUMSBENCH_CGROUP/keeper/cgroup.procs", "cgroup2fs\nactive\n")
	// A restart of the service leaves what runs in the group alone.
	h.must(0, `g=$DRUMSBENCH_CGROUP/drums-test; mkdir $g && { sleep 1000 & } && echo $! >$g/cgroup.procs && systemctl restart drumsbench.service &&
		grep -qx $! $g/cgroup.procs && kill $! && { wait; rmdir $g; }`)
}

func (h host) doctor() {
	h.must(0, "drumsbench doctor --arm drums,oci", "cgroups       unified, with cpu, memory, pids", "drums: can run on this host", "oci: can run on this host", `cgroups: "systemd" can be used`)
	// The agent's service holds others too: so does a login's scope.
	h.must(1, "env -u DRUMSBENCH_CGROUP drumsbench doctor --arm drums", "also holds process", "systemd-run --scope -p Delegate=yes")
	h.must(3, "DRUMSBENCH_CGROUP=/sys/fs/cgroup/none.slice drumsbench doctor --arm drums")
	h.must(1, "DRUMSBENCH_CGROUP=/sys/fs/cgroup/system.slice/hostvm.service drumsbench slot provision --name wrong --arm drums $manifests/light", "holds processes itself")
	h.must(0, "drumsbench slot release wrong && clean")
}

// halves are the tests of packages whose v2 halves run nowhere else, without those of v1's rules, of a newer
// kernel's overlay, and of what has no halves.
var halves = []struct {
	name, run, skip string
	least           int
}{
	{"cgroup", "Adopt|Group|Kill|Freeze|Remove|Limits|Bounds|Slice|Scope|Delegated|Unified|StepAside", "TestAdopt$|TighterGroupAbove|LimitsGone|BesideZombies", 20},
	{"sweep", "TestScopes|TestProcessesAndGroups|TestGroups|TestProcessOutsideItsGroup", "TestGroups/a_v1_group", 4},
	{"doctor", "OnThisHost|DiagnoseThisHost", "^$", 4},
}

func (h host) packages() {
	for _, p := range halves {
		said := h.must(0, fmt.Sprintf("mkdir -p /root/%[1]s && cd /root/%[1]s && DRUMSBENCH_REQUIRE_REAL=1 scope /media/in/tests/%[1]s.test -test.v -test.timeout 20m -test.run '%[2]s' -test.skip '%[3]s' 2>&1", p.name, p.run, p.skip))
		if n := strings.Count(said, "\n--- PASS: Test"); n < p.least {
			h.Errorf("%s: only %d tests ran\n%s", p.name, n, said)
		}
	}
	h.must(0, "clean")
}

// Runs in a scope of systemd's, whose group goes with its last process: what runc switched on must not stay in it.
func (h host) scopes() {
	h.must(0, "scope drumsbench run --arm oci --reset restore --out $DRUMSBENCH_STATE/runs/scope $manifests/light", "passed")
	h.must(0, "clean && ! systemctl list-units --type=scope --no-legend | grep drumsbench")
}

// Siblings from one checkpoint over nbd, locks lost without the repair, slots by hand on both arms, whose
// groups outlive their processes and are taken over by each command.
func (h host) slots() {
	h.must(0, "drumsbench run --arm drums --reset restore -t slots=2 -t attach=nbd --out $DRUMSBENCH_STATE/runs/nbd $manifests/light", "passed")
	h.must(1, "drumsbench run --arm drums --reset restore -t locks=criu --out $DRUMSBENCH_STATE/runs/lost $manifests/light", "gate-stopped-locks", "/tmp/kept")
	for _, arm := range []string{"drums", "oci"} {
		h.must(0, `drumsbench slot provision --arm `+arm+` --name desk $manifests/light && drumsbench slot dump desk && drumsbench slot status &&
			drumsbench slot restore desk && drumsbench slot exec desk -- /bin/busybox ps -o user,args && drumsbench slot release desk`, "vacant", "1000     /usr/bin/python3")
	}
	// A desktop, as the pages' own manifest has it, but for a deadline that is made for real processors.
	h.must(0, `slow=$manifests/slow; mkdir -p $slow && cp $manifests/rename/* $slow && mv $slow/rename.cue $slow/slow.cue &&
		sed -i 's/^package rename/package slow/; s/deadline: "30s"/deadline: "10m"/' $slow/slow.cue && grep -q 10m $slow/slow.cue &&
		drumsbench slot provision --arm drums --name screen -t policy=none $slow && drumsbench slot dump screen &&
		drumsbench slot restore screen && drumsbench slot exec screen -- /bin/sh -c 'cat /run/desktop.ready' && drumsbench slot release screen`, "vacant", "todo")
	h.must(0, "clean")
}

// criu works under the slot's limits where cgroup v2 bounds them, at a dump from its first step on.
func (h host) limits() {
	for _, how := range []string{"drums", "oci", "oci -t cgroups=systemd"} {
		h.must(0, fmt.Sprintf(`groups() { while :; do for p in /proc/[0-9]*; do
			read -r name <$p/comm && [ "$name" = criu ] && grep -qaE '^criu: (dump|restore)' $p/cmdline && cat $p/cgroup; done; done 2>/dev/null; }
		watched() { # COMMAND...: which groups each criu was seen in meanwhile
			groups >/tmp/seen & local watcher=$! rc=0
			"$@" >&2 || rc=$?
			kill $watcher; wait $watcher; sort -u /tmp/seen; [ -s /tmp/seen ] || rc=9; return $rc; }
		bound='/drums-[0-9a-f]{12}-slot-0-[0-9]+([.]scope)?(/tools)?$'
		drumsbench slot provision --arm %s --name where $manifests/light || exit 1
		watched drumsbench slot dump where || exit 2
		! grep -Ev "$bound" /tmp/seen || exit 3
		watched drumsbench slot restore where || exit 4
		grep -E "$bound" /tmp/seen || exit 5
		drumsbench slot release where`, how))
	}
	h.must(0, "clean")
}

// The records come back, verify accepts them on this host, and they show v2.
func (h host) records() {
	into := *keep
	if into == "" {
		into = h.TempDir()
	}
	into = filepath.Join(into, "runs")
	h.unpack(h.m.options.State+"/runs", into)
	program := filepath.Join(h.m.options.State, "bin", "drumsbench")
	for name, passed := range map[string]bool{"scope": true, "nbd": true, "lost": false, "systemd": true} {
		if out, err := exec.CommandContext(h.Context(), program, "verify", filepath.Join(into, name)).CombinedOutput(); err != nil {
			h.Errorf("verify %s: %v\n%s", name, err, out)
		}
		found, err := filepath.Glob(filepath.Join(into, name, "*", "record.json"))
		if err != nil || len(found) != 1 {
			h.Fatalf("records of %s: %v, %v", name, found, err)
		}
		text, err := os.ReadFile(found[0])
		if err != nil {
			h.Fatal(err)
		}
		var r bench.Record
		if err := json.Unmarshal(text, &r); err != nil {
			h.Fatal(err)
		}
		if (r.Verdict == "passed") != passed {
			h.Errorf("%s: verdict %s", name, r.Verdict)
		}
		var facts bench.HostFacts
		text, err = os.ReadFile(filepath.Join(filepath.Dir(found[0]), record.HostFile))
		if err == nil {
			err = json.Unmarshal(text, &facts)
		}
		if err != nil {
			h.Fatal(err)
		}
		receipts, torn, err := record.ReadEvents(filepath.Dir(found[0]))
		if err != nil || torn != 0 {
			h.Fatalf("%s: %v, %d bytes torn", name, err, torn)
		}
		slots := 1 // a slot is provisioned, and for each rollout one is restored
		if passed {
			slots += len(r.Rollouts)
		}
		for _, lack := range lacksV2(facts, receipts, slots) {
			h.Errorf("%s: %s", name, lack)
		}
	}
}

// unpack brings a folder of the machine here as docs/operating.md has it, and what a checkpoint's seal covers with it.
func (h host) unpack(folder, into string) {
	h.Helper()
	if err := os.MkdirAll(into, 0o755); err != nil {
		h.Fatal(err)
	}
	cmd := exec.CommandContext(h.Context(), "tar", "--numeric-owner", "--same-owner", "--xattrs", "--xattrs-include=*", "-xp", "-C", into)
	r, w := io.Pipe()
	cmd.Stdin = r
	got := make(chan error, 1)
	go func() { got <- errors.Join(h.m.Get(h.Context(), folder, w), w.Close()) }()
	said, err := cmd.CombinedOutput()
	r.Close()
	if err = errors.Join(err, <-got); err != nil {
		h.Fatalf("%v\n%s", err, said)
	}
}

// A new program beside checkpoints of the old one, as the page says.
func (h host) upgrade() {
	h.must(0, `drumsbench slot provision --arm drums --name old $manifests/light && drumsbench slot dump old && drumsbench slot release old
		cp $DRUMSBENCH_STATE/bin/drumsbench /root/new && echo >>/root/new`)
	h.must(0, "export NEW=/root/new\n"+h.m.page("upgrade"))
	h.must(1, "drumsbench slot restore --from $DRUMSBENCH_STATE/released/old-*/checkpoints/slot-0 --name again", "the checkpoint is of another engine.sha256")
	h.must(0, `drumsbench slot release again; old=$(ls /usr/local/bin/drumsbench-*)
		$old slot restore --from $DRUMSBENCH_STATE/released/old-*/checkpoints/slot-0 --name again && $old slot release again
		install -m 0755 $old /usr/local/bin/drumsbench && rm $old && clean`, "again: running")
}

// started is a script that runs a command in the background and returns once its receipts name a step that has passed.
func started(unit, command, run, step string) string {
	return fmt.Sprintf(`systemd-run -q --unit=%[1]s --collect -E DRUMSBENCH_STATE -E DRUMSBENCH_CGROUP -p StandardOutput=file:/root/%[1]s.out -p StandardError=inherit %[2]s
for i in $(seq 1200); do
	if grep -qs '"step":"%[4]s"' %[3]s/*/events.jsonl; then exit 0; fi
	systemctl is-active -q %[1]s || { cat /root/%[1]s.out; exit 1; }
	sleep 0.5
done
exit 1`, unit, command, run, step)
}

// The kernel ends the engine for its memory.
func (h host) oom() {
	h.must(0, started("oomed", "drumsbench run --arm drums --reset restore -t rollouts=20 --out $DRUMSBENCH_STATE/runs/oom $manifests/light", "$DRUMSBENCH_STATE/runs/oom", "r0/resume"))
	h.must(0, `systemctl set-property --runtime oomed.service MemoryMax=1M
for i in $(seq 240); do systemctl is-active -q oomed || break; sleep 0.5; done
! systemctl is-active -q oomed && dmesg | grep -i 'killed process.*drumsbench'`, "oom")
	// What the engine had made is in its ledger and on the host, and no verdict says that the run passed.
	h.must(3, "drumsbench verify $DRUMSBENCH_STATE/runs/oom")
	h.must(0, "clean")
	h.must(0, "drumsbench sweep", "nothing")
}

// No room for a checkpoint.
func (h host) disk() {
	h.must(0, "fallocate -l $(($(df --output=avail -B1 $DRUMSBENCH_STATE | tail -1) - (6<<20))) $DRUMSBENCH_STATE/filler")
	h.must(1, "drumsbench doctor --arm drums", "space", "are free below")
	said, code := h.run("drumsbench run --arm drums --reset restore --out $DRUMSBENCH_STATE/runs/full $manifests/light 2>&1")
	if code == 0 || !strings.Contains(strings.ToLower(said), "no space left on device") {
		h.Errorf("exit code %d\n%s", code, said)
	}
	h.must(0, "rm $DRUMSBENCH_STATE/filler && clean")
}

// booted waits until the sweep at boot has ended: the agent answers before.
const booted = "systemctl start drumsbench.service && "

// The power goes while a slot is restored; after the boot nothing of the run is on the host, and sweep knows why.
func (h host) reboot() {
	h.must(0, started("cut", "drumsbench run --arm drums --reset restore -t rollouts=20 --out $DRUMSBENCH_STATE/runs/cut $manifests/light", "$DRUMSBENCH_STATE/runs/cut", "r0/resume"))
	h.must(0, "drumsbench slot provision --arm drums --name lost $manifests/light")
	before := strings.TrimSpace(h.must(0, "cat /proc/sys/kernel/random/boot_id"))
	if err := h.m.Cut(); err != nil {
		h.Fatal(err)
	}
	if err := h.m.Start(h.Context(), ""); err != nil {
		h.Fatal(err)
	}
	if after := strings.TrimSpace(h.must(0, "cat /proc/sys/kernel/random/boot_id")); after == before {
		h.Fatal("the machine has not booted anew")
	}
	// The unit has swept at boot, as the page says.
	h.must(0, booted+"systemctl is-active drumsbench.service; journalctl -b -u drumsbench.service --no-pager", "active\n", "absent  process", "the host was started anew since")
	h.must(3, "drumsbench verify $DRUMSBENCH_STATE/runs/cut")
	h.must(1, "drumsbench slot reset lost", "boot")
	h.must(0, "drumsbench slot release lost && clean")
	h.must(0, "drumsbench sweep", "nothing")
	h.must(0, "drumsbench run --arm drums --reset restore --out $DRUMSBENCH_STATE/runs/after $manifests/light && clean", "passed")
}

// A kernel that was booted without the memory controller and without nbd.
func (h host) features() {
	h.must(0, "sync")
	if err := h.m.Cut(); err != nil {
		h.Fatal(err)
	}
	if err := h.m.Start(h.Context(), "cgroup_disable=memory module_blacklist=nbd"); err != nil {
		h.Fatal(err)
	}
	h.must(1, booted+"drumsbench doctor --arm drums", "lack     cgroup-memory", "is not given memory", "nbd")
	h.must(1, "drumsbench run --arm drums --reset restore --out $DRUMSBENCH_STATE/runs/nomemory $manifests/light", "enable cgroup controllers: refused", "is not given memory")
	h.must(1, "drumsbench run --arm drums --reset restore -t attach=nbd --out $DRUMSBENCH_STATE/runs/nonbd $manifests/light", "no nbd here", "modprobe nbd")
	h.must(0, "clean")
}

// Each block of the page that the suite runs is there.
func TestPageHasTheBlocks(t *testing.T) {
	m := &Machine{options: Options{Page: "../../docs/operating.md"}}
	for name, words := range map[string][]string{"systemd": {"apt-get install", "drumsbench.service", "Delegate=yes", "drumsbench sweep", "drumsbench doctor"}, "upgrade": {"sha256sum", "install"}} {
		text := m.page(name)
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("the blocks of %s have no %q", name, w)
			}
		}
	}
	if text := m.page("none"); text != "" {
		t.Errorf("there is a block of none: %q", text)
	}
}

// The agent gives back what a script says and its exit code, and a lost one is no success.
func TestAgent(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	m := &Machine{Dir: t.TempDir()}
	m.port = freePort(t)
	go func() { served <- serve(ctx, fmt.Sprintf("127.0.0.1:%d", m.port)) }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if id, err := m.alive(ctx); err == nil && len(id) == 36 {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	var said bytes.Buffer
	code, err := m.Run(ctx, "echo out; echo err >&2; exit 7", &said)
	if err != nil || code != 7 || said.String() != "out\nerr\n" {
		t.Errorf("%d, %v, %q", code, err, said.String())
	}
	if code, err := m.Run(ctx, "kill -KILL $$", io.Discard); err != nil || code != 137 {
		t.Errorf("killed: %d, %v", code, err)
	}
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "below", "to")
	if err := os.WriteFile(from, []byte("text"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := m.PutFile(ctx, from, to); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o750 || info.Size() != 4 {
		t.Errorf("%v, %v", info, err)
	}
	var names []string
	var packed bytes.Buffer
	if err := m.Get(ctx, filepath.Dir(to), &packed); err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(&packed); ; {
		f, err := r.Next()
		if err != nil {
			break
		}
		names = append(names, f.Name)
	}
	if !slices.Contains(names, "./to") {
		t.Errorf("%q", names)
	}
	if err := m.Get(ctx, "/no/such/folder", io.Discard); err == nil {
		t.Error("a folder that is not there came")
	}
	lost := make(chan error, 1)
	go func() {
		_, err := m.Run(t.Context(), "sleep 100", io.Discard)
		lost <- err
	}()
	time.AfterFunc(200*time.Millisecond, stop)
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := <-lost; err == nil {
		t.Error("a script whose machine went away ended well")
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

package gate

import (
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A check that cannot fail is a defect: for each gate a test shows it passing
// on what is right, failing on each planted fault, and unknown where something
// was not read or there is nothing to compare with.

func known1[T any](v T) engine.Reading[T] { return engine.Known(v, "test", engine.ViewStopped) }

func unknown1[T any]() engine.Reading[T] {
	return engine.Unknown[T]("the file could not be read", engine.ViewStopped)
}

// requireVerdict also holds every finding to the rules: a subject, a text, and,
// where it failed, what was wanted or what was found.
func requireVerdict(t *testing.T, j engine.Judgement, want bench.Verdict) {
	t.Helper()
	if got := j.Verdict(); got != want {
		t.Fatalf("verdict %s, want %s; findings %+v", got, want, j.Findings)
	}
	for _, f := range j.Findings {
		if f.Subject == "" || f.Text == "" {
			t.Errorf("finding without subject or text: %+v", f)
		}
		if f.Verdict == engine.Fail && f.Want == "" && f.Have == "" {
			t.Errorf("failed finding without want and have: %+v", f)
		}
	}
	for _, f := range j.Facts {
		if f.Name == "" || f.Source == "" || !f.Known {
			t.Errorf("fact without name or source: %+v", f)
		}
	}
}

func requireFinding(t *testing.T, j engine.Judgement, subject string) bench.Finding {
	t.Helper()
	i := slices.IndexFunc(j.Findings, func(f bench.Finding) bool { return f.Subject == subject })
	if i < 0 {
		t.Fatalf("no finding about %q in %+v", subject, j.Findings)
	}
	return j.Findings[i]
}

// requireUnknownReading holds for every gate: what was not read is named with its reason and never passes.
func requireUnknownReading(t *testing.T, j engine.Judgement) {
	t.Helper()
	requireVerdict(t, j, engine.VerdictUnknown)
	if !slices.ContainsFunc(j.Findings, func(f bench.Finding) bool { return f.Have == "the file could not be read" }) {
		t.Errorf("the reason is lost: %+v", j.Findings)
	}
}

// compared tests a gate that compares a reading with a reference of the same type.
// same are the paths of changes that make no difference, each with its reason.
func compared[T any](t *testing.T, v T, judge func(T, engine.Reading[T]) engine.Judgement, same map[string]string) {
	t.Helper()
	t.Run("equal", func(t *testing.T) { requireVerdict(t, judge(v, known1(v)), engine.Pass) })
	t.Run("unknown", func(t *testing.T) { requireUnknownReading(t, judge(v, unknown1[T]())) })
	t.Run("never observed", func(t *testing.T) {
		var r engine.Reading[T]
		requireVerdict(t, judge(v, r), engine.VerdictUnknown)
	})
	t.Run("no reference", func(t *testing.T) {
		var none T
		for _, have := range []T{none, v} {
			if got := judge(none, known1(have)).Verdict(); got == engine.Pass {
				t.Errorf("passes without a reference on %+v", have)
			}
		}
		requireVerdict(t, judge(none, known1(none)), engine.VerdictUnknown)
	})
	seen := map[string]bool{}
	for _, c := range variants(v) {
		seen[c.path] = true
		t.Run("fault "+c.path, func(t *testing.T) {
			for name, j := range map[string]engine.Judgement{
				"the reading has it":   judge(v, known1(c.value)),
				"the reference has it": judge(c.value, known1(v)),
			} {
				if reason, ok := same[c.path]; ok {
					if j.Verdict() != engine.Pass {
						t.Errorf("%s: makes a difference, although %s: %+v", name, reason, j.Findings)
					}
					continue
				}
				t.Run(name, func(t *testing.T) {
					// A reference that lost the last thing of a kind is none, which is unknown.
					if j.Verdict() == engine.VerdictUnknown && name == "the reference has it" && strings.HasSuffix(c.path, "[0] is gone") {
						return
					}
					requireVerdict(t, j, engine.Fail)
				})
			}
		})
	}
	for path := range same {
		if !seen[path] {
			t.Errorf("no change %s was made: %v", path, seen)
		}
	}
}

// Case 1, 2: a lock that a restore with return code 0 lost.
func TestLocks(t *testing.T) {
	const aside = "mapping says why CRIU loses a lock, it is not part of the lock"
	compared(t, sampleLocks(), JudgeLocks, map[string]string{"[0].Mapped": aside, "[1].Mapped": aside, "[2].Mapped": aside})
}

func TestLocksNamesWhatIsLost(t *testing.T) {
	all := sampleLocks()
	j := JudgeLocks(all, known1(slices.Delete(slices.Clone(all), 1, 2)))
	requireVerdict(t, j, engine.Fail)
	f := requireFinding(t, j, "pid 7 POSIX READ lock on /root/notes.db-shm bytes 124-124")
	if f.Want != "held" || f.Have != "not held" || !strings.Contains(f.Hint, "repair") {
		t.Errorf("%+v", f)
	}
	if len(j.Findings) != 1 {
		t.Errorf("more than the lost lock: %+v", j.Findings)
	}
	j = JudgeLocks(all, known1(all[:2]))
	if f := requireFinding(t, j, "pid 8 FLOCK WRITE lock on /root/whole bytes 0-EOF"); f.Hint != "" {
		t.Errorf("the hint is about POSIX locks on mapped files only: %+v", f)
	}
	j = JudgeLocks(all[:2], known1(all))
	if f := requireFinding(t, j, "pid 8 FLOCK WRITE lock on /root/whole bytes 0-EOF"); f.Want != "not held" || f.Have != "held" {
		t.Errorf("%+v", f)
	}
}

// A census that found no lock is a reference; a census that was not taken is none.
func TestLocksOfASlotWithoutLocks(t *testing.T) {
	requireVerdict(t, JudgeLocks([]bench.Lock{}, known1([]bench.Lock{})), engine.Pass)
	requireVerdict(t, JudgeLocks(nil, known1([]bench.Lock{})), engine.VerdictUnknown)
	requireVerdict(t, JudgeLocks([]bench.Lock{}, known1(sampleLocks())), engine.Fail)
}

func TestProcesses(t *testing.T) { compared(t, sampleProcesses(), JudgeProcesses, nil) }

func TestProcessesNamesThePid(t *testing.T) {
	j := JudgeProcesses(sampleProcesses(), known1(sampleProcesses()[:1]))
	requireVerdict(t, j, engine.Fail)
	if f := requireFinding(t, j, "pid 7"); f.Text != "process is gone" || !strings.Contains(f.Want, "locks.py") {
		t.Errorf("%+v", f)
	}
}

func TestState(t *testing.T) { compared(t, sampleState(), JudgeState, nil) }

func TestStateNamesThePath(t *testing.T) {
	dirty := sampleState()
	dirty.Entries = append(dirty.Entries, bench.StateEntry{Path: "/root/left-over", Type: "file"})
	j := JudgeState(sampleState(), known1(dirty))
	requireVerdict(t, j, engine.Fail)
	if f := requireFinding(t, j, "/root/left-over"); f.Text != "path is new" || f.Have == "" || f.Hint == "" {
		t.Errorf("%+v", f)
	}
}

func TestMounts(t *testing.T) {
	same := map[string]string{
		"[2].Options[2]":       "the number of a peer group is given out in turn",
		"[0].Super[1]":         "the layers of a restored slot are others",
		"[0].Super[1] is gone": "a restored overlay may say it as lowerdir+",
		"[0].Super[2]":         "each slot has its own upper",
		"[0].Super[2] is gone": "each slot has its own upper",
		"[0].Super[3]":         "each slot has its own work folder",
		"[0].Super[3] is gone": "each slot has its own work folder",
		"[0].Super[4]":         "index is for the dump only",
		"[0].Super[4] is gone": "index is for the dump only",
		"[0].Super[5]":         "nfs_export is for the dump only",
		"[0].Super[5] is gone": "nfs_export is for the dump only",
	}
	compared(t, sampleMounts(), JudgeMounts, same)
}

// Two tables with the same lines can be two trees: on which of two stacked
// mounts a third one lies is told by their order alone.
func TestMountsSeesAnotherTree(t *testing.T) {
	m := func(point, source string) bench.Mount {
		return bench.Mount{Point: point, Root: "/", Fstype: "tmpfs", Source: source}
	}
	onTop := []bench.Mount{m("/", "r"), m("/a", "1"), m("/a", "2"), m("/a/b", "3")}
	below := []bench.Mount{m("/", "r"), m("/a", "1"), m("/a/b", "3"), m("/a", "2")}
	requireVerdict(t, JudgeMounts(onTop, known1(slices.Clone(onTop))), engine.Pass)
	requireVerdict(t, JudgeMounts(onTop, known1(below)), engine.Fail)
	swapped := []bench.Mount{onTop[0], onTop[2], onTop[1], onTop[3]}
	requireVerdict(t, JudgeMounts(onTop, known1(swapped)), engine.Fail)
}

func TestNetwork(t *testing.T) { compared(t, sampleNetwork(), JudgeNetwork, nil) }

// Case 4: loopback is down after a restore that returned 0.
func TestNetworkShowsTheDifference(t *testing.T) {
	down := sampleNetwork()
	down.Links = slices.Clone(down.Links)
	down.Links[0].Up, down.Addresses = false, nil
	j := JudgeNetwork(sampleNetwork(), known1(down))
	requireVerdict(t, j, engine.Fail)
	if f := requireFinding(t, j, "lo"); f.Want != "UP" || f.Have != "DOWN" || f.Hint == "" {
		t.Errorf("%+v", f)
	}
	requireFinding(t, j, "lo 127.0.0.1/8 scope host")
}

// Case 4, before a dump.
func TestNetworkUp(t *testing.T) {
	change := func(f func(*bench.Network)) engine.Reading[bench.Network] {
		n := clone(reflect.ValueOf(sampleNetwork())).Interface().(bench.Network)
		f(&n)
		return known1(n)
	}
	requireVerdict(t, JudgeNetworkUp(known1(sampleNetwork())), engine.Pass)
	requireUnknownReading(t, JudgeNetworkUp(unknown1[bench.Network]()))
	for name, f := range map[string]func(*bench.Network){
		"down":                     func(n *bench.Network) { n.Links[0].Up = false },
		"no lo":                    func(n *bench.Network) { n.Links[0].Name = "lo0" },
		"no link":                  func(n *bench.Network) { n.Links = nil },
		"no address":               func(n *bench.Network) { n.Addresses = nil },
		"IPv6 only":                func(n *bench.Network) { n.Addresses = n.Addresses[1:] },
		"address of another link":  func(n *bench.Network) { n.Addresses[0] = "eth0 127.0.0.1/8 scope host" },
		"another address":          func(n *bench.Network) { n.Addresses[0] = "lo 127.0.0.1/80 scope host" },
		"address that contains it": func(n *bench.Network) { n.Addresses[0] = "lo 10.0.0.1/8 peer 127.0.0.1/8 scope host" },
	} {
		t.Run(name, func(t *testing.T) {
			j := JudgeNetworkUp(change(f))
			requireVerdict(t, j, engine.Fail)
			requireFinding(t, j, "lo")
		})
	}
}

// Case 11 (tasks left outside), case 27 (a bound that was silently not set).
func TestLimits(t *testing.T) {
	requireVerdict(t, JudgeLimits(sampleResources(), known1(sampleLimits())), engine.Pass)
	requireUnknownReading(t, JudgeLimits(sampleResources(), unknown1[engine.Limits]()))
	requireVerdict(t, JudgeLimits(bench.Resources{}, known1(engine.Limits{})), engine.VerdictUnknown)

	// Each field of the reading, so that a new one must be thought of here.
	faults := map[string]map[string]func(*engine.Limits){
		"VCPUs": {
			"vcpus: more":        func(l *engine.Limits) { l.VCPUs = 2.01 },
			"vcpus: fewer":       func(l *engine.Limits) { l.VCPUs = 1.99 },
			"vcpus: no limit":    func(l *engine.Limits) { l.VCPUs = -1 },
			"vcpus: no number":   func(l *engine.Limits) { l.VCPUs = math.NaN() },
			"vcpus: without end": func(l *engine.Limits) { l.VCPUs = math.Inf(1) },
		},
		"Memory": {
			"memory: more":     func(l *engine.Limits) { l.Memory += 4096 },
			"memory: less":     func(l *engine.Limits) { l.Memory -= 4096 },
			"memory: no limit": func(l *engine.Limits) { l.Memory = -1 },
			"memory: v1's own": func(l *engine.Limits) { l.Memory = math.MaxInt64 &^ 4095 },
		},
		"Swap": {
			"swap: more":     func(l *engine.Limits) { l.Swap = 4096 },
			"swap: no limit": func(l *engine.Limits) { l.Swap = -1 },
		},
		"Pids": {
			"pids: more":     func(l *engine.Limits) { l.Pids++ },
			"pids: fewer":    func(l *engine.Limits) { l.Pids-- },
			"pids: no limit": func(l *engine.Limits) { l.Pids = -1 },
		},
		"Confinement": {
			"confinement: a capability": func(l *engine.Limits) { l.Confinement.Beyond = []string{"task 77 has capabilities number 21"} },
		},
		"Outside": {"task 77: outside": func(l *engine.Limits) { l.Outside = []int{77} }},
		"Tasks":   nil, // below: no task is unknown
		"Groups":  nil, // says where the bounds were read, and is no bound
	}
	for i := range reflect.TypeFor[engine.Limits]().NumField() {
		name := reflect.TypeFor[engine.Limits]().Field(i).Name
		if _, ok := faults[name]; !ok {
			t.Errorf("no fault is planted in engine.Limits.%s", name)
		}
		for fault, plant := range faults[name] {
			t.Run(fault, func(t *testing.T) {
				l := sampleLimits()
				plant(&l)
				j := JudgeLimits(sampleResources(), known1(l))
				requireVerdict(t, j, engine.Fail)
				subject, _, _ := strings.Cut(fault, ":")
				f := requireFinding(t, j, subject)
				if f.Want == "" || f.Have == "" {
					t.Errorf("without want and have: %+v", f)
				}
				if (f.Have == "no limit") != strings.HasSuffix(fault, "no limit") {
					t.Errorf("%+v", f)
				}
			})
		}
	}
	t.Run("no task", func(t *testing.T) {
		l := sampleLimits()
		l.Tasks = nil
		requireVerdict(t, JudgeLimits(sampleResources(), known1(l)), engine.VerdictUnknown)
	})
	for what, lose := range map[string]func(*engine.Confinement){
		"capabilities": func(c *engine.Confinement) { c.Capabilities = "" },
		"devices":      func(c *engine.Confinement) { c.Devices = "" },
	} {
		t.Run("no "+what, func(t *testing.T) {
			l := sampleLimits()
			lose(&l.Confinement)
			j := JudgeLimits(sampleResources(), known1(l))
			requireVerdict(t, j, engine.VerdictUnknown)
			requireFinding(t, j, what)
		})
	}
	t.Run("rounded to a page", func(t *testing.T) {
		l := sampleLimits()
		l.Memory -= 4095
		requireVerdict(t, JudgeLimits(sampleResources(), known1(l)), engine.Pass)
	})
	// Each bound that a manifest can set.
	for _, c := range variants(sampleResources()) {
		t.Run("requested "+c.path, func(t *testing.T) {
			j := JudgeLimits(c.value, known1(sampleLimits()))
			switch c.path {
			case ".Memory": // "512MiB9" is no size
				requireVerdict(t, j, engine.VerdictUnknown)
			case ".Swap": // "09" is less than a page
				requireVerdict(t, j, engine.Pass)
			default:
				requireVerdict(t, j, engine.Fail)
			}
		})
	}
	for _, size := range []struct{ memory, swap bench.Bytes }{{"1GiB", "0"}, {"512MiB", "1MiB"}} {
		r := sampleResources()
		r.Memory, r.Swap = size.memory, size.swap
		requireVerdict(t, JudgeLimits(r, known1(sampleLimits())), engine.Fail)
	}
}

// Case 6 (a bind of a host device), case 7 (a recursive /sys).
func TestMountContract(t *testing.T) {
	requireVerdict(t, JudgeMountContract(known1(sampleMounts())), engine.Pass)
	requireUnknownReading(t, JudgeMountContract(unknown1[[]bench.Mount]()))
	requireVerdict(t, JudgeMountContract(known1[[]bench.Mount](nil)), engine.VerdictUnknown)
	requireVerdict(t, JudgeMountContract(known1(sampleMounts()[1:])), engine.VerdictUnknown)

	with := func(more ...bench.Mount) engine.Reading[[]bench.Mount] {
		return known1(append(sampleMounts(), more...))
	}
	sys := func(name, fstype string) bench.Mount {
		return bench.Mount{Point: "/sys/" + name, Root: "/", Fstype: fstype, Source: fstype}
	}
	for name, c := range map[string]struct {
		mounts   []bench.Mount
		subjects []string
	}{
		"device":            {[]bench.Mount{{Point: "/dev/tty", Root: "/tty", Fstype: "devtmpfs", Source: "udev"}}, []string{"/dev/tty"}},
		"device on a tmpfs": {[]bench.Mount{{Point: "/dev/tty", Root: "/tty", Fstype: "tmpfs", Source: "tmpfs"}}, []string{"/dev/tty"}},
		"host folder":       {[]bench.Mount{{Point: "/mnt", Root: "/srv", Fstype: "ext4", Source: "/dev/sda1"}}, []string{"/mnt"}},
		"overlay elsewhere": {[]bench.Mount{{Point: "/opt", Root: "/", Fstype: "overlay", Source: "overlay"}}, []string{"/opt"}},
		"recursive /sys": {[]bench.Mount{sys("kernel/config", "configfs"), sys("kernel/debug", "debugfs"), sys("fs/bpf", "bpf")},
			[]string{"/sys/kernel/config", "/sys/kernel/debug", "/sys/fs/bpf"}},
	} {
		t.Run(name, func(t *testing.T) {
			j := JudgeMountContract(with(c.mounts...))
			requireVerdict(t, j, engine.Fail)
			for _, s := range c.subjects {
				if f := requireFinding(t, j, s); f.Hint == "" {
					t.Errorf("no remedy: %+v", f)
				}
			}
			if len(j.Findings) != len(c.subjects) {
				t.Errorf("findings %+v, want %q", j.Findings, c.subjects)
			}
			requireVerdict(t, JudgeMountContract(with(c.mounts...), c.subjects...), engine.Pass)
		})
	}
	for name, change := range map[string]func(*bench.Mount){
		"the host's root": func(m *bench.Mount) { m.Fstype = "ext4" },
		"a bound root":    func(m *bench.Mount) { m.Root = "/srv/slot" },
	} {
		t.Run(name, func(t *testing.T) {
			m := sampleMounts()
			change(&m[0])
			j := JudgeMountContract(known1(m), "/") // an arm cannot allow another root
			requireVerdict(t, j, engine.Fail)
			requireFinding(t, j, "/")
		})
	}
}

// Case 13, 14: what ties a slot to the outside comes from the arm and is passed on as it is.
func TestEnclosure(t *testing.T) {
	requireVerdict(t, JudgeEnclosure(known1([]bench.Finding{})), engine.Pass)
	requireUnknownReading(t, JudgeEnclosure(unknown1[[]bench.Finding]()))
	f := bench.Finding{Verdict: engine.Fail, Subject: "pid 7 socket 99", Text: "its peer is outside", Want: "inside", Have: "/run/dbus", Hint: "start it inside"}
	j := JudgeEnclosure(known1([]bench.Finding{f}))
	requireVerdict(t, j, engine.Fail)
	if got := requireFinding(t, j, f.Subject); got != f {
		t.Errorf("%+v, want %+v", got, f)
	}
	f.Verdict = engine.VerdictUnknown
	requireVerdict(t, JudgeEnclosure(known1([]bench.Finding{f})), engine.VerdictUnknown)
	f.Verdict = "" // nobody's verdict
	if JudgeEnclosure(known1([]bench.Finding{f})).Verdict() != engine.Fail {
		t.Error("a finding without a verdict passes")
	}
}

func TestCheckpoint(t *testing.T) {
	requireVerdict(t, JudgeCheckpoint(sampleCheckpoint()), engine.Pass)
	if JudgeCheckpoint(bench.Checkpoint{}).Verdict() == engine.Pass {
		t.Error("an empty handle passes")
	}
	for name, c := range map[string]struct {
		plant   func(*bench.Checkpoint)
		verdict bench.Verdict
		subject string
	}{
		"no file":             {func(c *bench.Checkpoint) { c.Files = nil }, engine.Fail, "files"},
		"no processes":        {func(c *bench.Checkpoint) { c.Reference.Processes = nil }, engine.VerdictUnknown, "reference processes"},
		"no mounts":           {func(c *bench.Checkpoint) { c.Reference.Mounts = nil }, engine.VerdictUnknown, "reference mounts"},
		"no links":            {func(c *bench.Checkpoint) { c.Reference.Network.Links = nil }, engine.VerdictUnknown, "reference network"},
		"no token":            {func(c *bench.Checkpoint) { c.Reference.Live.Token = "" }, engine.VerdictUnknown, "reference live"},
		"no counter":          {func(c *bench.Checkpoint) { c.Reference.Live.Counter = "" }, engine.VerdictUnknown, "reference live"},
		"no canary":           {func(c *bench.Checkpoint) { c.Reference.Canary = "" }, engine.VerdictUnknown, "reference canary"},
		"no state":            {func(c *bench.Checkpoint) { c.Reference.State = "" }, engine.VerdictUnknown, "reference state"},
		"no census of locks":  {func(c *bench.Checkpoint) { c.Locks = nil }, engine.VerdictUnknown, "reference locks"},
		"network said nobody": {func(c *bench.Checkpoint) { c.Facts = nil }, engine.VerdictUnknown, "network"},
		"network is not in it": {func(c *bench.Checkpoint) {
			c.Facts = []bench.Fact{{Name: engine.NetworkPreserved, Reason: "criu wrote no netdev image"}}
		}, engine.Fail, "network"},
		"network without evidence": {func(c *bench.Checkpoint) {
			c.Facts = []bench.Fact{{Name: engine.NetworkPreserved, Known: true, Source: "criu images"}}
		}, engine.VerdictUnknown, "network"},
	} {
		t.Run(name, func(t *testing.T) {
			cp := sampleCheckpoint()
			c.plant(&cp)
			j := JudgeCheckpoint(cp)
			requireVerdict(t, j, c.verdict)
			requireFinding(t, j, c.subject)
		})
	}
	// Each part of the reference is somebody's want: none may be missing unnoticed.
	for i := range reflect.TypeFor[bench.Reference]().NumField() {
		cp := sampleCheckpoint()
		reflect.ValueOf(&cp.Reference).Elem().Field(i).SetZero()
		if JudgeCheckpoint(cp).Verdict() == engine.Pass {
			t.Errorf("passes without the reference's %s", reflect.TypeFor[bench.Reference]().Field(i).Name)
		}
	}
}

func TestLive(t *testing.T) {
	live := func(token string, counter bench.Int64) bench.LiveState {
		return bench.LiveState{Token: token, Counter: counter}
	}
	judge := func(want, first, second bench.LiveState) engine.Judgement {
		return JudgeLive(want, known1(first), known1(second))
	}
	want, first, second := live("t", "100"), live("t", "101"), live("t", "102")
	requireVerdict(t, judge(want, first, second), engine.Pass)
	requireVerdict(t, judge(want, live("t", "100"), second), engine.Pass)
	requireUnknownReading(t, JudgeLive(want, unknown1[bench.LiveState](), known1(second)))
	requireUnknownReading(t, JudgeLive(want, known1(first), unknown1[bench.LiveState]()))

	for name, c := range map[string]struct {
		want, first, second bench.LiveState
		verdict             bench.Verdict
		subject             string
	}{
		"token of another":           {want, live("u", "101"), live("u", "102"), engine.Fail, "token"},
		"token changes":              {want, first, live("u", "102"), engine.Fail, "token"},
		"no token anywhere":          {live("", "100"), live("", "101"), live("", "102"), engine.VerdictUnknown, "token"},
		"no token in the checkpoint": {live("", "100"), first, second, engine.VerdictUnknown, "token"},
		"behind the checkpoint":      {want, live("t", "99"), second, engine.Fail, "counter"},
		"stands still":               {want, first, first, engine.Fail, "counter"},
		"goes back":                  {want, first, live("t", "100"), engine.Fail, "counter"},
		"more digits are not less":   {live("t", "9"), live("t", "10"), live("t", "9"), engine.Fail, "counter"},
		"checkpoint without counter": {live("t", ""), first, second, engine.VerdictUnknown, "counter"},
		"no number":                  {want, live("t", "many"), second, engine.VerdictUnknown, "counter"},
		"no second number":           {want, first, live("t", "more"), engine.VerdictUnknown, "counter"},
	} {
		t.Run(name, func(t *testing.T) {
			j := judge(c.want, c.first, c.second)
			requireVerdict(t, j, c.verdict)
			requireFinding(t, j, c.subject)
		})
	}
	// A field that is added to the live state must be judged.
	for i := range reflect.TypeFor[bench.LiveState]().NumField() {
		if name := reflect.TypeFor[bench.LiveState]().Field(i).Name; name != "Token" && name != "Counter" {
			t.Errorf("no fault is planted in bench.LiveState.%s", name)
		}
	}
}

func TestServer(t *testing.T) {
	compared(t, bench.SHA256(strings.Repeat("ab", 32)), JudgeServer, nil)
	j := JudgeServer("aa", known1(bench.SHA256("bb")))
	if f := requireFinding(t, j, "guest server"); f.Want != "aa" || f.Have != "bb" || f.Hint == "" {
		t.Errorf("%+v", f)
	}
}

// A picture waits for a person and is kept; none is unknown, and nothing passes.
func TestLook(t *testing.T) {
	j := JudgeLook("Is it painted?", known1([]byte("a picture")))
	requireVerdict(t, j, engine.Review)
	if f := requireFinding(t, j, "screen"); f.Text != "Is it painted?" || string(j.Evidence["screen.png"]) != "a picture" {
		t.Errorf("%+v %q", f, j.Evidence)
	}
	j = JudgeLook("Is it painted?", engine.Unknown[[]byte]("no answer", engine.ViewGuest))
	requireVerdict(t, j, engine.VerdictUnknown)
	if len(j.Evidence) > 0 {
		t.Errorf("evidence of nothing: %v", j.Evidence)
	}
}

func TestCanary(t *testing.T) {
	compared(t, "c0ffee", func(want string, r engine.Reading[string]) engine.Judgement {
		return JudgeCanary("/root/.canary", want, r)
	}, nil)
	for name, have := range map[string]string{"another slot's": "c0ffef", "emptied": "", "appended to": "c0ffee\n"} {
		t.Run(name, func(t *testing.T) {
			j := JudgeCanary("/root/.canary", "c0ffee", known1(have))
			requireVerdict(t, j, engine.Fail)
			if f := requireFinding(t, j, "/root/.canary"); f.Want != "c0ffee" || f.Have != have {
				t.Errorf("%+v", f)
			}
		})
	}
}

// Case 29: a setting outside the manifest.
func TestToolConfig(t *testing.T) {
	requireVerdict(t, JudgeToolConfig(known1([]string{})), engine.Pass)
	requireUnknownReading(t, JudgeToolConfig(unknown1[[]string]()))
	j := JudgeToolConfig(known1([]string{"/etc/criu/default.conf", "CRIU_CONFIG_FILE=/x"}))
	requireVerdict(t, j, engine.Fail)
	for _, s := range []string{"/etc/criu/default.conf", "CRIU_CONFIG_FILE=/x"} {
		if f := requireFinding(t, j, s); f.Hint == "" {
			t.Errorf("no remedy: %+v", f)
		}
	}
}

// tests names the gate of each constant of the package that has a test here or,
// where no pure function judges, elsewhere.
var tests = map[string]string{
	"Image":         "the arm compares the file with its pin: steps, arms/image",
	"ToolConfig":    "TestToolConfig",
	"Limits":        "TestLimits",
	"MountContract": "TestMountContract",
	"Mounts":        "TestMounts",
	"NetworkUp":     "TestNetworkUp",
	"Network":       "TestNetwork",
	"Enclosure":     "TestEnclosure",
	"Checkpoint":    "TestCheckpoint",
	"Locks":         "TestLocks",
	"Processes":     "TestProcesses",
	"State":         "TestState",
	"Live":          "TestLive",
	"Server":        "TestServer",
	"Canary":        "TestCanary",
	"Cleanup":       "TestCleanup",
	"Look":          "TestLook",
	"Carried":       "TestCarried",
	"Hygiene":       "TestHygiene",
	"Diverged":      "TestDiverged",
	"Parent":        "TestParent",
	"Audit":         "TestAudit",
	"Screen":        "TestJudgeScreen",
}

func TestEveryGateHasATest(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "gate.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			for _, n := range s.(*ast.ValueSpec).Names {
				found++
				if tests[n.Name] == "" {
					t.Errorf("gate %s has no test that plants its faults", n.Name)
				}
			}
		}
	}
	if found != len(tests) {
		t.Errorf("%d gates, %d tests", found, len(tests))
	}
}

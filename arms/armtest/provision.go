package armtest

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
)

// Case 27: bounds are read back, not believed. Case 23: the guest answers.
func testProvision(t *testing.T, h Harness) {
	r := begin(t, h)
	defer r.finish()
	s := r.provision("slot-0")
	if s.Name() != "slot-0" {
		t.Errorf("the slot's name is %q", s.Name())
	}
	r.judgeCold(s)
	first, second := r.answers(s), r.answers(s)
	if first.Live.Token != second.Live.Token {
		t.Error("the live token changes by itself")
	}
	other := r.provision("slot-1")
	if r.answers(other).Live.Token == first.Live.Token {
		t.Error("two slots have one live token")
	}
	r.write(s, r.path("mine"), "slot-0")
	r.has(other, r.path("mine"), "")
}

// A cold reset: the same place, nothing of what was there.
func testProvisionAgain(t *testing.T, h Harness) {
	r := begin(t, h)
	defer r.finish()
	s := r.provision("slot-0")
	token := r.answers(s).Live.Token
	r.write(s, r.path("dirt"), "x")
	for range 2 {
		next, err := r.arm.Provision(r.ctx(), r.ws, r.root, s, r.provisionParams("slot-0"))
		if err != nil {
			t.Fatalf("provision again: %v", describe(err))
		}
		s = next
		if p := r.ready(s); p.Live.Token == token {
			t.Error("a cold slot has the token of the one before")
		}
		r.has(s, r.path("dirt"), "")
		r.judgeCold(s)
		r.write(s, r.path("dirt"), "x")
	}
}

// What an arm has no network for is refused, and nothing is made.
func testProvisionRefused(t *testing.T, h Harness) {
	r := begin(t, h)
	defer r.finish()
	p := r.provisionParams("slot-0")
	p.Network = "no-such-network"
	s, err := r.arm.Provision(r.ctx(), r.ws, r.root, nil, p)
	if !errors.Is(err, engine.ErrRefused) {
		t.Errorf("provision with an unknown network: %v, want a refusal", describe(err))
	}
	if err == nil {
		r.keep(s)
	}
}

// aspects of an observation, each with whether it is known.
func aspects(o engine.Observation) map[engine.Aspect]bool {
	return map[engine.Aspect]bool{
		engine.AspectLimits: known(o.Limits), engine.AspectMounts: known(o.Mounts), engine.AspectNetwork: known(o.Network),
		engine.AspectLocks: known(o.Locks), engine.AspectProcesses: known(o.Processes), engine.AspectEnclosure: known(o.Enclosure),
		engine.AspectState: known(o.State), engine.AspectToolConfig: known(o.ToolConfig), engine.AspectMemory: known(o.Memory), engine.AspectCPU: known(o.CPU),
		engine.AspectStorage: known(o.Storage),
	}
}

func known[T any](r engine.Reading[T]) bool {
	_, ok := r.Get()
	return ok
}

// testRunning is about a slot that runs: one serves all, and the last takes it away.
func testRunning(t *testing.T, h Harness) {
	r := begin(t, h)
	defer r.finish()
	s := r.provision("slot-0")
	for _, c := range []struct {
		name string
		test func(*run, engine.Slot)
	}{
		{"execute", testExecute},
		{"observe only what is asked", testObserve},
		{"memory", testMemory},
		{"mortal", testMortal},
		{"dial", testDial},
		{"vacated", testVacated},
	} {
		t.Run(c.name, func(t *testing.T) {
			on := *r // a failure is the part's own
			on.t = t
			c.test(&on, s)
		})
	}
}

// all aspects that there are.
var all = slices.Collect(maps.Keys(aspects(engine.Observation{})))

func testObserve(r *run, s engine.Slot) {
	t := r.t
	for a := range aspects(engine.Observation{}) {
		for other, known := range aspects(s.Observe(r.ctx(), a)) {
			switch {
			case other == a && !known:
				t.Errorf("%s was asked for and is unknown", a)
			case other != a && known:
				t.Errorf("%s was not asked for, only %s, and is known", other, a)
			}
		}
	}
	for a, known := range aspects(s.Observe(r.ctx(), all...)) {
		if !known {
			t.Errorf("%s was asked for among all and is unknown", a)
		}
	}
	for a, known := range aspects(s.Observe(r.ctx(), "nobody's aspect")) {
		if known {
			t.Errorf("%s is known although only something that is no aspect was asked for", a)
		}
	}
	// Observing changes nothing.
	before, _ := s.Observe(r.ctx(), engine.AspectState).State.Get()
	after, _ := s.Observe(r.ctx(), engine.AspectState).State.Get()
	if len(before.Entries) != len(after.Entries) {
		t.Errorf("observing changed the state from %d to %d entries", len(before.Entries), len(after.Entries))
	}
}

// Of a place that was vacated nothing is known, and nobody answers.
func testVacated(r *run, s engine.Slot) {
	t := r.t
	if err := s.Vacate(r.ctx()); err != nil {
		t.Fatalf("vacate: %v", describe(err))
	}
	for a, known := range aspects(s.Observe(r.ctx(), all...)) {
		if known && a != engine.AspectToolConfig { // the host's, not the slot's
			t.Errorf("%s of a vacated place is known", a)
		}
	}
	r.dead(s)
	if m, ok := s.(engine.Mortal); ok {
		if err := m.Alive(); !errors.Is(err, engine.ErrDead) {
			t.Errorf("a slot that was vacated: %v, want engine.ErrDead", describe(err))
		}
	}
}

// A slot that is usable takes memory of the host, and every process of it is read.
func testMemory(r *run, s engine.Slot) {
	t := r.t
	m, known := s.Observe(r.ctx(), engine.AspectMemory).Memory.Get()
	if !known || m.Processes <= 0 || m.PrivateDirty <= 0 || m.Pss <= 0 || m.Harness < 0 {
		t.Errorf("memory of a provisioned slot: known %v, %+v", known, m)
	}
	s.Observe(r.ctx(), engine.AspectMemory) // reading changes nothing
	if o := s.Observe(r.ctx(), engine.AspectMemory).Memory; o.Source() == "" {
		t.Errorf("the reading names no source: %+v", o)
	}
}

// So does one that was restored.
func testRestoredMemory(t *testing.T, h Harness) {
	cp := h.checkpoint(t)
	r := begin(t, h)
	defer r.finish()
	slot := r.resume(r.restore(cp, nil, "slot-0"))
	r.ready(slot)
	m, known := slot.Observe(r.ctx(), engine.AspectMemory).Memory.Get()
	if !known || m.Processes <= 0 || m.PrivateDirty <= 0 || m.Pss <= 0 {
		t.Errorf("memory of a restored slot: known %v, %+v", known, m)
	}
}

func testDial(r *run, s engine.Slot) {
	t := r.t
	conn, err := s.Dial(r.ctx(), 1)
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, engine.ErrDead) {
		t.Errorf("dial a port where nobody listens: %v, want engine.ErrDead", describe(err))
	}
	r.answers(s)
	done, cancel := context.WithCancel(r.ctx())
	cancel()
	if conn, err := s.Dial(done, int(r.port())); err == nil {
		conn.Close() // a local connection may be made before the context is looked at
	} else if errors.Is(err, engine.ErrDead) {
		t.Errorf("dial with a cancelled context: %v, which says that the slot is dead", err)
	}
}

func testExecute(r *run, s engine.Slot) {
	t, c := r.t, r.client(s)
	run := func(limit time.Duration, argv ...string) guest.Result {
		t.Helper()
		res, err := c.Execute(r.ctx(), argv, limit)
		if err != nil {
			t.Fatalf("execute %q: %v", argv, describe(err))
		}
		return res
	}
	exits := func(want int, argv ...string) {
		t.Helper()
		if res := run(20*time.Second, argv...); res.Exit != want || res.Signalled || res.TimedOut {
			t.Errorf("execute %q: %+v, want exit %d", argv, res, want)
		}
	}
	exits(0, "true")
	exits(1, "false")
	exits(3, "sh", "-c", "exit 3")
	exits(127, "sh", "-c", "no-such-program-of-drums")
	testCheck(r, s)
	folder, moved := r.path("folder"), r.path("moved")
	exits(0, "mkdir", "-p", folder)
	exits(0, "touch", folder+"/file")
	exits(0, "test", "-f", folder+"/file")
	exits(0, "mv", folder, moved)
	exits(1, "test", "-d", folder)
	exits(0, "test", "-d", moved)
	r.write(s, r.path("text"), "a line\n")
	if res := run(20*time.Second, "cat", r.path("text")); string(res.Stdout) != "a line\n" || res.Truncated {
		t.Errorf("cat: %+v", res)
	}
	if res := run(20*time.Second, "head", "-c", "2000000", "/dev/zero"); !res.Truncated || len(res.Stdout) != guest.OutputLimit || bytes.Count(res.Stdout, []byte{0}) != guest.OutputLimit {
		t.Errorf("2000000 bytes of output: truncated %v, %d bytes; want %d", res.Truncated, len(res.Stdout), guest.OutputLimit)
	}
	start := time.Now()
	if res := run(300*time.Millisecond, "sleep", "60"); !res.TimedOut {
		t.Errorf("sleep beyond its time: %+v", res)
	}
	if d := time.Since(start); d > 15*time.Second {
		t.Errorf("a time of 300 ms was up after %s", d)
	}
	if _, err := c.Execute(r.ctx(), []string{"no-such-program-of-drums"}, time.Second); !errors.Is(err, guest.ErrExecute) {
		t.Errorf("execute a program that is not there: %v", describe(err))
	}
	if _, err := c.ReadFile(r.ctx(), r.path("nowhere"), 100); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("read a file that is not there: %v", describe(err))
	}
	r.answers(s)
}

// testCheck: a checker runs from a copy that nobody finds afterwards, and what it stands on is told.
func testCheck(r *run, s engine.Slot) {
	t, c := r.t, r.client(s)
	t.Helper()
	check := func(q guest.Check) guest.Checked {
		t.Helper()
		q.Timeout = 20 * time.Second
		k, err := c.Check(r.ctx(), q)
		if err != nil {
			t.Fatalf("check %q: %v", q.Exec, describe(err))
		}
		return k
	}
	answers := r.path("answers")
	before := check(guest.Check{Exec: []string{"test", "-e", answers}, Paths: []string{answers}})
	if before.Exit != 1 || before.Resolved == "" || before.Server != r.h.Manifest.Guest.Server.Sha256 {
		t.Errorf("check: %+v", before)
	}
	r.write(s, answers, "yes")
	after := check(guest.Check{Exec: []string{"test", "-e", answers}, Paths: []string{answers}})
	if after.Exit != 0 || slices.Equal(before.Before, after.Before) {
		t.Errorf("check: exit %d; a file that was asked for changed, and the lists are equal: %v", after.Exit, slices.Equal(before.Before, after.Before))
	}
	copied := check(guest.Check{Exec: []string{"sh", "-c", "test -e " + guest.ProgramPlace}, Name: "drums-check", Program: []byte("exit 7\n")})
	if copied.Exit != 0 {
		t.Errorf("the checker's copy is not where it is said to be: %+v", copied.Result)
	}
	if gone := check(guest.Check{Exec: []string{"no-such-program-of-drums"}}); gone.Resolved != "" {
		t.Errorf("a program that is not there was run: %+v", gone)
	}
}

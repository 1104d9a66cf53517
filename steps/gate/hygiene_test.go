package gate

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Each item of an identity, planted as shared or not read, is found; two cold slots are the control.
func TestHygiene(t *testing.T) {
	slot := func(name, host, machine, token string) engine.Identity {
		return engine.Identity{Slot: name, Clock: known1(time.Duration(0)),
			Parts:   map[string]engine.Reading[string]{"hostname": known1(host), "machine-id": known1(machine)},
			Residue: map[string]engine.Reading[string]{"live-token": known1(token), "hash": known1("h" + token)}}
	}
	pair := []engine.Identity{slot("base", "b0", "m", "u"), slot("pair", "b1", "m", "v")}
	declared := &bench.Hygiene{Residuals: []bench.Residual{{Name: "hash", Why: "a running interpreter keeps its seed"}}}
	clean := []engine.Identity{slot("t0", "h0", "m0", "t"), slot("left", "h1", "m1", "t"), slot("right", "h2", "m2", "t")}
	j := JudgeHygiene(pair, clean, declared)
	requireVerdict(t, j, engine.Pass)
	said := map[string]string{}
	for _, f := range j.Facts {
		said[f.Name] = f.Value
	}
	for name, want := range map[string]string{
		"differs.hostname": "3", "cold.hostname": "not the same in two cold slots", "cold.machine-id": "the same in two cold slots", "clock.left": "0s",
		"residue.live-token": "the same in every sibling, not in two cold slots; declared: it shows that memory came back",
		"residue.hash":       "the same in every sibling, not in two cold slots; declared: a running interpreter keeps its seed",
	} {
		if said[name] != want {
			t.Errorf("%s is %q, want %q", name, said[name], want)
		}
	}
	for name, c := range map[string]struct {
		change func(*engine.Identity)
		about  string
	}{
		"host name of the trunk":    {func(s *engine.Identity) { s.Parts["hostname"] = known1("h0") }, "hostname"},
		"machine id of the sibling": {func(s *engine.Identity) { s.Parts["machine-id"] = known1("m1") }, "machine-id"},
		"an old clock":              {func(s *engine.Identity) { s.Clock = known1(-time.Minute) }, "clock"},
		"a clock that is ahead":     {func(s *engine.Identity) { s.Clock = known1(time.Minute) }, "clock"},
	} {
		t.Run(name, func(t *testing.T) {
			planted := slot("right", "h2", "m2", "t")
			c.change(&planted)
			j := JudgeHygiene(pair, []engine.Identity{clean[0], clean[1], planted}, declared)
			requireVerdict(t, j, engine.Fail)
			requireFinding(t, j, c.about)
		})
	}
	// Without a machine id there is none to share.
	requireVerdict(t, JudgeHygiene(pair, []engine.Identity{slot("left", "h1", "", "t"), slot("right", "h2", "", "t")}, declared), engine.Pass)

	// A residual says by the cold pair what it is.
	both := []engine.Identity{slot("base", "b0", "m", "t"), slot("pair", "b1", "m", "t")}
	other := []engine.Identity{clean[1], slot("right", "h2", "m2", "w")}
	for want, j := range map[string]engine.Judgement{
		"the same in any two slots":     JudgeHygiene(both, clean, declared),
		"not the same in every sibling": JudgeHygiene(pair, other, declared),
	} {
		requireVerdict(t, j, engine.Pass)
		for _, f := range j.Facts {
			if f.Name == "residue.hash" && f.Value != want {
				t.Errorf("%+v, want %q", f, want)
			}
		}
	}

	for name, c := range map[string]struct {
		change func(*engine.Identity)
		about  string
	}{
		"unread host name": {func(s *engine.Identity) { s.Parts["hostname"] = unknown1[string]() }, "right hostname"},
		"no host name":     {func(s *engine.Identity) { delete(s.Parts, "hostname") }, "right hostname"},
		"unread clock":     {func(s *engine.Identity) { s.Clock = unknown1[time.Duration]() }, "right clock"},
	} {
		t.Run(name, func(t *testing.T) {
			unread := slot("right", "h2", "m2", "t")
			c.change(&unread)
			j := JudgeHygiene(pair, []engine.Identity{clean[0], unread}, declared)
			requireVerdict(t, j, engine.VerdictUnknown)
			requireFinding(t, j, c.about)
		})
	}
	unread := slot("right", "h2", "m2", "t")
	unread.Residue = maps.Clone(unread.Residue)
	unread.Residue["hash"] = unknown1[string]()
	requireVerdict(t, JudgeHygiene(pair, []engine.Identity{clean[0], unread}, nil), engine.Pass)
	j = JudgeHygiene(pair, []engine.Identity{clean[0], unread}, declared)
	requireVerdict(t, j, engine.VerdictUnknown)
	requireFinding(t, j, "hash")
	for _, f := range j.Facts {
		if f.Name == "residue.hash" && !strings.HasPrefix(f.Value, "not known: right: ") {
			t.Errorf("%+v", f)
		}
	}
	requireVerdict(t, JudgeHygiene(pair, clean[:1], declared), engine.VerdictUnknown)
	requireVerdict(t, JudgeHygiene(nil, clean, declared), engine.VerdictUnknown)
	requireVerdict(t, JudgeHygiene(pair, []engine.Identity{{Slot: "a", Clock: known1(time.Duration(0))}, {Slot: "b", Clock: known1(time.Duration(0))}}, declared), engine.VerdictUnknown)
}

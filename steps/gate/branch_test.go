package gate

import (
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func TestCarried(t *testing.T) {
	before, trunk := engine.Witness{"a", "x"}, engine.Witness{"a", "y"}
	requireVerdict(t, JudgeCarried(before, trunk, engine.Witness{"a", "y"}), engine.Pass)
	for name, lost := range map[string]engine.Witness{"as before the prefix": before, "another": {"a", "z"}, "less": {"a"}, "nothing": nil, "more": {"a", "y", "z"}} {
		t.Run(name, func(t *testing.T) { requireVerdict(t, JudgeCarried(before, trunk, lost), engine.Fail) })
	}
	f := requireFinding(t, JudgeCarried(before, trunk, before), "witness 1")
	if f.Want != `"y"` || f.Have != `"x"` || f.Hint == "" {
		t.Errorf("%+v", f)
	}
	// The prefix changed nothing that shows, or nothing was read: who could say what was carried over?
	requireVerdict(t, JudgeCarried(trunk, trunk, trunk), engine.VerdictUnknown)
	requireVerdict(t, JudgeCarried(nil, nil, nil), engine.VerdictUnknown)
}

func TestDiverged(t *testing.T) {
	act := func(word string) []bench.Command { return []bench.Command{{Exec: []string{word}}} }
	branches := []bench.Branch{{Name: "left", Act: act("l")}, {Name: "right", Act: act("r")}, {Name: "idle"}, {Name: "left-again", Act: act("l")}}
	trunk := engine.Witness{"t"}
	states := func(words ...string) (list []engine.Witness) {
		for _, w := range words {
			list = append(list, engine.Witness{w})
		}
		return list
	}
	requireVerdict(t, JudgeDiverged(branches, trunk, states("l", "r", "t", "l")), engine.Pass)
	for name, c := range map[string]struct {
		after []engine.Witness
		about string
	}{
		"one has what the other did": {states("l", "l", "t", "l"), "left and right"},
		"an act without effect":      {states("l", "t", "t", "l"), "right and idle"},
		"nobody acted, it changed":   {states("l", "r", "x", "l"), "idle"},
	} {
		t.Run(name, func(t *testing.T) {
			j := JudgeDiverged(branches, trunk, c.after)
			requireVerdict(t, j, engine.Fail)
			requireFinding(t, j, c.about)
		})
	}
	requireVerdict(t, JudgeDiverged(branches, trunk, states("l", "r")), engine.VerdictUnknown)
	requireVerdict(t, JudgeDiverged(branches[:1], trunk, states("l")), engine.VerdictUnknown)
	requireVerdict(t, JudgeDiverged(nil, trunk, nil), engine.VerdictUnknown)
}

func TestParent(t *testing.T) {
	sealed := []bench.SealedFile{{Path: "images/a", Sha256: "1"}, {Path: "layer/b", Sha256: "2"}}
	requireVerdict(t, JudgeParent(sealed, known1(map[string]bench.SHA256{"images/a": "1", "layer/b": "2"})), engine.Pass)
	for name, have := range map[string]map[string]bench.SHA256{"written": {"images/a": "1", "layer/b": "3"}, "gone": {"images/a": "1"}} {
		t.Run(name, func(t *testing.T) {
			j := JudgeParent(sealed, known1(have))
			requireVerdict(t, j, engine.Fail)
			requireFinding(t, j, "layer/b")
		})
	}
	requireUnknownReading(t, JudgeParent(sealed, unknown1[map[string]bench.SHA256]()))
	requireVerdict(t, JudgeParent(nil, known1(map[string]bench.SHA256{})), engine.VerdictUnknown)
}

func TestAudit(t *testing.T) {
	shared := func(kind engine.ObjectKind, id string) engine.Shared {
		return engine.Shared{Kind: kind, ID: id, Slots: []string{"slot-0", "slot-1"}, Holders: []string{"slot-0 pid 1", "slot-1 pid 1"}}
	}
	null := shared(engine.ObjectDevice, "/dev/null")
	requireVerdict(t, JudgeAudit(nil, nil), engine.Pass)
	requireVerdict(t, JudgeAudit(engine.Audited{null}, engine.Audited{null}), engine.Pass)
	for _, kind := range []engine.ObjectKind{engine.ObjectProcess, engine.ObjectNamespace, engine.ObjectPipe, engine.ObjectSocket, engine.ObjectEventFD, engine.ObjectLock, engine.ObjectFile} {
		t.Run(string(kind), func(t *testing.T) {
			one := shared(kind, "7")
			// That two cold slots share it as well is no excuse: only a device's.
			for _, cold := range []engine.Audited{nil, {one}} {
				j := JudgeAudit(engine.Audited{null, one}, append(engine.Audited{null}, cold...))
				requireVerdict(t, j, engine.Fail)
				if f := requireFinding(t, j, string(kind)+" 7"); f.Have != "slot-0 pid 1; slot-1 pid 1" {
					t.Errorf("%+v", f)
				}
			}
		})
	}
	// Amendment 2a: a device, if it holds nothing and a cold pair shares it too.
	requireVerdict(t, JudgeAudit(engine.Audited{null}, nil), engine.Fail)
	fuse := shared(engine.ObjectDevice, "character 10:229")
	requireVerdict(t, JudgeAudit(engine.Audited{fuse}, engine.Audited{fuse}), engine.Fail)
}

package gate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// JudgeCarried requires that a branch has what the prefix left: its witness prints what the trunk's printed at
// the branch point. A witness that the prefix did not change would print the same in a slot that lost it all.
func JudgeCarried(before, trunk, branch engine.Witness) (j engine.Judgement) {
	if len(trunk) == 0 {
		j.Add(engine.VerdictUnknown, "witness", "says nothing of the trunk")
		return j
	}
	if slices.Equal(before, trunk) {
		j.Add(engine.VerdictUnknown, "witness", "prints the same before and after the prefix: it cannot tell whether that was carried over").Hint =
			"let a witness command print something that the prefix changes"
		return j
	}
	for i := range max(len(trunk), len(branch)) {
		want, have := at(trunk, i), at(branch, i)
		if want != have {
			f := j.Add(engine.Fail, fmt.Sprintf("witness %d", i), "prints something else than at the branch point")
			f.Want, f.Have = fmt.Sprintf("%q", want), fmt.Sprintf("%q", have)
			f.Hint = "the checkpoint lost a part of the task's state, or the witness prints what is not of the task, such as the time"
		}
	}
	fact(&j, "witness-commands", len(trunk), "guest server", engine.ViewGuest)
	return j
}

func at(w engine.Witness, i int) string {
	if i < len(w) {
		return w[i]
	}
	return ""
}

// JudgeDiverged requires that branches whose acts differ have different states after them. after are the
// witnesses, in the order of the branches.
func JudgeDiverged(branches []bench.Branch, trunk engine.Witness, after []engine.Witness) (j engine.Judgement) {
	if len(branches) != len(after) {
		j.Add(engine.VerdictUnknown, "branches", fmt.Sprintf("%d witnesses of %d branches", len(after), len(branches)))
		return j
	}
	pairs := 0
	for i, a := range branches {
		for k, b := range branches[i+1:] {
			if text(a.Act) == text(b.Act) {
				continue
			}
			pairs++
			if slices.Equal(after[i], after[i+1+k]) {
				f := j.Add(engine.Fail, string(a.Name)+" and "+string(b.Name), "have the same state after different acts")
				f.Have, f.Hint = fmt.Sprintf("%q", strings.Join(after[i], "\n")), "an act had no effect or came to another slot, or no witness command prints what the acts change"
			}
		}
		if len(a.Act) == 0 && !slices.Equal(after[i], trunk) {
			f := j.Add(engine.Fail, string(a.Name), "changed, and nobody acted in it")
			f.Want, f.Have = fmt.Sprintf("%q", strings.Join(trunk, "\n")), fmt.Sprintf("%q", strings.Join(after[i], "\n"))
		}
	}
	if pairs == 0 {
		j.Add(engine.VerdictUnknown, "branches", "no two have different acts")
	}
	fact(&j, "diverged-pairs", pairs, "witness commands", engine.ViewGuest)
	return j
}

// JudgeParent requires that what the siblings came from is as it was sealed: have are the digests of its files
// as they are now, by path.
func JudgeParent(sealed []bench.SealedFile, r engine.Reading[map[string]bench.SHA256]) (j engine.Judgement) {
	have, ok := known(&j, "checkpoint", r)
	if !ok {
		return j
	}
	if len(sealed) == 0 {
		j.Add(engine.VerdictUnknown, "checkpoint", "seals no file")
	}
	const hint = "a branch wrote to the checkpoint that its siblings came from: none of them is worth a number"
	want := map[string]bool{}
	for _, s := range sealed {
		want[s.Path] = true
		switch now, there := have[s.Path]; {
		case !there:
			f := j.Add(engine.Fail, s.Path, "is gone from the checkpoint")
			f.Want, f.Hint = string(s.Sha256), hint
		case now != s.Sha256:
			f := j.Add(engine.Fail, s.Path, "changed in the checkpoint")
			f.Want, f.Have, f.Hint = string(s.Sha256), string(now), hint
		}
	}
	fact(&j, "parent-files", len(sealed), r.Source(), r.View())
	return j
}

// tolerated are the devices that two slots may share, if a cold pair shares them too: they hold nothing
// (amendment 2a of the sibling audit that this one follows).
var tolerated = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/kvm"}

// JudgeAudit requires that siblings share nothing but what slots that were never one share as well, and of that
// devices only.
//
//	a process, namespace, pipe, socket, eventfd, lock or writable file   fail
//	a device that holds something, or that the cold pair does not share  fail
//	a device such as /dev/null that the cold pair shares too             pass, named in the receipt
func JudgeAudit(siblings, cold engine.Audited) (j engine.Judgement) {
	pair := map[string]bool{}
	for _, s := range cold {
		pair[string(s.Kind)+" "+s.ID] = true
	}
	var allowed []string
	for _, s := range siblings {
		name := string(s.Kind) + " " + s.ID
		fail := func(text string) {
			f := j.Add(engine.Fail, name, text)
			f.Have, f.Hint = strings.Join(s.Holders, "; "), "what one sibling does there another sees: they are not separate environments"
		}
		switch {
		case s.Kind != engine.ObjectDevice:
			fail("is shared by " + strings.Join(s.Slots, " and "))
		case !slices.Contains(tolerated, s.ID):
			fail("is a device that holds something, shared by " + strings.Join(s.Slots, " and "))
		case !pair[name]:
			fail("is shared by " + strings.Join(s.Slots, " and ") + ", and not by two cold slots")
		default:
			allowed = append(allowed, s.ID)
		}
	}
	slices.Sort(allowed)
	fact(&j, "shared-devices", slices.Compact(allowed), "descriptors of the siblings, and of two cold slots", engine.ViewHost)
	return j
}

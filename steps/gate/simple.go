package gate

import (
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// JudgeToolConfig fails on each file or variable of the host that would change
// what the arm's tools do without the manifest knowing.
func JudgeToolConfig(r engine.Reading[[]string]) (j engine.Judgement) {
	have, ok := known(&j, "tool configuration", r)
	if !ok {
		return j
	}
	for _, s := range have {
		f := j.Add(engine.Fail, s, "changes the behaviour of a tool and is not in the manifest")
		f.Want, f.Have = "absent", "present"
		f.Hint = "remove it, or unset it, for the time of the run"
	}
	fact(&j, "tool-config", len(have), r.Source(), r.View())
	return j
}

// JudgeEnclosure passes on what the arm found that ties the slot to the outside.
func JudgeEnclosure(r engine.Reading[[]bench.Finding]) (j engine.Judgement) {
	have, ok := known(&j, "enclosure", r)
	if !ok {
		return j
	}
	j.Findings = append(j.Findings, have...)
	fact(&j, "enclosure-findings", len(have), r.Source(), r.View())
	return j
}

// JudgeServer requires that the guest server that answers is the pinned program.
func JudgeServer(want bench.SHA256, r engine.Reading[bench.SHA256]) (j engine.Judgement) {
	have, ok := known(&j, "guest server", r)
	if !ok {
		return j
	}
	if want == "" {
		j.Add(engine.VerdictUnknown, "guest server", "no program is pinned")
		return j
	}
	if have != want {
		f := j.Add(engine.Fail, "guest server", "is not the pinned program")
		f.Want, f.Have = string(want), string(have)
		f.Hint = "build the image again and pin it, or pin the server that the image holds"
	}
	fact(&j, "guest-server-sha256", string(have), r.Source(), r.View())
	return j
}

// JudgeCheckpoint requires that a checkpoint is complete: sealed files, each part of
// the reference, and the arm's evidence that the network is in it.
func JudgeCheckpoint(cp bench.Checkpoint) (j engine.Judgement) {
	if len(cp.Files) == 0 {
		f := j.Add(engine.Fail, "files", "the checkpoint seals no file")
		f.Want, f.Have = "at least 1", "0"
	}
	ref := cp.Reference
	for _, part := range []struct {
		name  string
		there bool
	}{
		{"processes", len(ref.Processes) > 0}, {"mounts", len(ref.Mounts) > 0}, {"network", len(ref.Network.Links) > 0},
		{"locks", cp.Locks != nil}, {"live", ref.Live.Token != "" && ref.Live.Counter != ""},
		{"canary", ref.Canary != ""}, {"state", ref.State != ""},
	} {
		if !part.there {
			j.Add(engine.VerdictUnknown, "reference "+part.name, "the checkpoint does not say what it must look like")
		}
	}
	found := false
	for _, f := range cp.Facts {
		if f.Name != engine.NetworkPreserved {
			continue
		}
		found = true
		switch {
		case !f.Known:
			x := j.Add(engine.Fail, "network", "the network is not in the checkpoint")
			x.Want, x.Have = "in the checkpoint", f.Reason
		case f.Value == "":
			j.Add(engine.VerdictUnknown, "network", "the arm says that the network comes back, and not how")
		default:
			fact(&j, engine.NetworkPreserved, f.Value, f.Source, f.View)
		}
	}
	if !found {
		j.Add(engine.VerdictUnknown, "network", "the arm does not say how the network comes back")
	}
	fact(&j, "checkpoint-files", len(cp.Files), "checkpoint handle", engine.ViewHost)
	return j
}

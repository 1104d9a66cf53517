package steps

import (
	"context"
	"fmt"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// OpenCheckpoint takes a checkpoint that an earlier run sealed, after it was
// found whole and of this image, host, program and workload.
func OpenCheckpoint(b *engine.Builder, at At, root engine.Promise[engine.Root], p bench.CheckpointParams) engine.Promise[engine.Checkpoint] {
	return engine.Add[engine.Checkpoint](b, at.spec(KindCheckpoint, p, deadlineCheckpoint), engine.Read(root))
}

var bindCheckpoint = engine.Bind(KindCheckpoint, func(ctx context.Context, x *engine.Exec, p bench.CheckpointParams) (engine.Checkpoint, error) {
	const op = "open checkpoint"
	arm, ok := x.Arm().(engine.CheckpointOpener)
	if !ok {
		return engine.Checkpoint{}, &engine.Error{Op: op, Err: fmt.Errorf("%w: the %s arm opens no checkpoint of another run", engine.ErrRefused, x.Arm().Describe().Kind)}
	}
	cp, err := arm.OpenCheckpoint(ctx, engine.In[engine.Root](x, 0), p.Checkpoint.Dir)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	digest, err := canonical.Digest(cp.Handle)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	x.Fact(bench.Fact{Name: "checkpoint", Known: true, Value: string(digest), Source: "checkpoint handle", View: engine.ViewHost})
	x.Fact(stored(cp))
	x.Fact(cp.Handle.Facts...)
	var j engine.Judgement
	same := func(subject, text string, want, have bench.SHA256) {
		if want != have {
			f := j.Add(engine.Fail, subject, text)
			f.Want, f.Have, f.Hint = string(want), string(have), "make the checkpoint again"
		}
	}
	same("checkpoint", "another one lies in the folder than when the plan was made", p.Checkpoint.Sha256, digest)
	same("workload", "the checkpoint is of another workload than the manifest", p.Workload, cp.Handle.Workload)
	switch server := factOf(cp.Handle, engine.ServerDigest); {
	case server.Known:
		same(engine.ServerDigest, "the checkpoint's guest server is another than the manifest's", p.Server, bench.SHA256(server.Value))
	default:
		j.Add(engine.VerdictUnknown, engine.ServerDigest, "the checkpoint does not say which guest server is in it").Have = server.Reason
	}
	if v := j.Verdict(); v != engine.Pass {
		because := engine.ErrRefused
		if v == engine.VerdictUnknown {
			because = engine.ErrUnknown
		}
		f := j.Findings[0]
		return engine.Checkpoint{}, &engine.Error{Op: op, Err: fmt.Errorf("%w: %s: %s", because, f.Subject, f.Text), Hint: "make the checkpoint again", Findings: j.Findings}
	}
	return cp, nil
})

// stored is what a checkpoint takes of the disk.
func stored(cp engine.Checkpoint) bench.Fact {
	n, err := engine.DiskUse(cp.Dir)
	if err != nil {
		return engine.Unknown[int64](err.Error(), engine.ViewHost).Fact(engine.FactCheckpointStorage)
	}
	return engine.Known(n, "blocks of the folder's files", engine.ViewHost).Fact(engine.FactCheckpointStorage)
}

// factOf is a fact of a checkpoint's handle, unknown if it is not there.
func factOf(h bench.Checkpoint, name string) bench.Fact {
	for _, f := range h.Facts {
		if f.Name == name {
			return f
		}
	}
	return bench.Fact{Name: name, Reason: "it is not recorded"}
}

package steps

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Recovers says whether the value that a step gave can be had again from what it left:
// a sealed checkpoint, a checker's answer with what it stood on, an audit.
func Recovers(s bench.Step) bool {
	return s.Kind == KindDump || s.Kind == KindEvaluate || s.Kind == KindAudit
}

// Recover is the value of a step that another engine finished, from its receipt and its
// evidence. read gives the bytes of evidence, compared with their digest. A checkpoint's
// is had by [Reopen] instead.
func Recover(s bench.Step, r bench.Receipt, read func(bench.Evidence) ([]byte, error)) (any, error) {
	wrong := func(err error) error {
		return &engine.Error{Op: "resume run", Step: s.Id, Err: fmt.Errorf("%w: what it gave cannot be had again: %w", engine.ErrRefused, err), Hint: "run it again from its beginning"}
	}
	decode := func(name string, v any) error {
		for _, e := range r.Evidence {
			if e.Name == name {
				data, err := read(e)
				if err != nil {
					return err
				}
				return json.Unmarshal(data, v)
			}
		}
		return fmt.Errorf("its receipt names no %s", name)
	}
	switch s.Kind {
	case KindEvaluate:
		var p bench.EvaluateParams
		var out engine.Score
		var err error
		if err = json.Unmarshal([]byte(s.Params), &p); err == nil {
			err = decode("checker-closure "+p.When+".json", &out.Closure)
		}
		if err == nil {
			out.Value, err = strconv.ParseFloat(receiptFact(r, FactScore), 64)
		}
		if err != nil {
			return nil, wrong(err)
		}
		return out, nil
	case KindAudit:
		var out engine.Audited
		if err := decode("shared.json", &out); err != nil {
			return nil, wrong(err)
		}
		return out, nil
	}
	return nil, wrong(fmt.Errorf("a %s step leaves nothing", s.Kind))
}

func receiptFact(r bench.Receipt, name string) string {
	for _, f := range r.Facts {
		if f.Name == name && f.Known {
			return f.Value
		}
	}
	return ""
}

// Reopen opens the checkpoint that a dump step of an earlier attempt sealed below the
// run's directory. It is compared with the digest in the step's receipt, and has to be
// whole and of this image, host and program. Its slot's place is gone.
func Reopen(ctx context.Context, x *engine.Exec, root engine.Root, r bench.Receipt) (out engine.Pair[engine.Checkpoint, engine.Place], err error) {
	const op = "open checkpoint of the interrupted attempt"
	want := bench.SHA256(receiptFact(r, "checkpoint"))
	arm, ok := x.Arm().(engine.CheckpointOpener)
	if !ok {
		return out, &engine.Error{Op: op, Err: fmt.Errorf("%w: the %s arm opens none", engine.ErrRefused, x.Arm().Describe().Kind)}
	}
	folder := filepath.Join(x.Workspace().Run, "checkpoints")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return out, &engine.Error{Op: op, Err: fmt.Errorf("%w: %w", engine.ErrRefused, err)}
	}
	for _, e := range entries {
		dir := filepath.Join(folder, e.Name())
		found, err := checkpoint.Open(dir)
		if err != nil {
			continue // of another dump
		}
		digest, err := canonical.Digest(found.Handle)
		if err != nil || digest != want {
			continue
		}
		cp, err := arm.OpenCheckpoint(ctx, root, dir)
		if err != nil {
			return out, err
		}
		out.A = cp
		return out, nil
	}
	return out, &engine.Error{Op: op, Err: fmt.Errorf("%w: no checkpoint in %s is that of step %s", engine.ErrRefused, folder, r.Step), Hint: "run it again from its beginning"}
}

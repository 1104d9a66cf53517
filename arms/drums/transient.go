package drums

import (
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A dump that met something which goes away by itself (a connection that its
// server has not accepted yet, as right after a program's start) is tried again
// while the tree runs on: dumpAttempts times at most, first after dumpPause,
// then after twice the pause before.
const (
	dumpAttempts = 6
	dumpPause    = 50 * time.Millisecond
)

// dumpTree has criu dump the tree into fresh folders, and takes the census while
// it is stopped. A dump that fails with criu.ErrTransient is tried again, each
// time from the start: none of it is silent, the waits are spans, the logs are
// evidence, and the checkpoint's facts say how many attempts it took and why.
func (s *slot) dumpTree(ctx context.Context, dir string, o criu.DumpOptions, ref engine.GuestReference) (census, error) {
	source := "criu"
	for attempt, pause := 1, dumpPause; ; attempt, pause = attempt+1, 2*pause {
		for _, d := range []string{o.ImagesDir, o.WorkDir} {
			if err := errors.Join(os.RemoveAll(d), os.Mkdir(d, 0o755)); err != nil {
				return census{}, err
			}
		}
		c, err := s.dumpOnce(ctx, dir, o, ref)
		if err == nil {
			c.attempts = bench.Fact{Name: "dump-attempts", Known: true, Value: strconv.Itoa(attempt), Source: source, View: engine.ViewHost}
			return c, nil
		}
		err = s.keepLog(o.WorkDir, err)
		if !errors.Is(err, criu.ErrTransient) || attempt == dumpAttempts {
			return census{}, err
		}
		source = "criu; attempt " + strconv.Itoa(attempt) + ": " + err.Error()
		end := engine.StartSpan(ctx, "transient")
		select {
		case <-ctx.Done():
			return census{}, &engine.Error{Op: "dump " + s.name, Err: errors.Join(context.Cause(ctx), err)}
		case <-time.After(pause):
		}
		end()
	}
}

// dumpOnce is one dump, with the census of the stopped tree.
func (s *slot) dumpOnce(ctx context.Context, dir string, o criu.DumpOptions, ref engine.GuestReference) (c census, err error) {
	defer engine.StartSpan(ctx, "criu")()
	err = s.arm.besideCRIU(s.ws, dir, func() error {
		return criu.Dump(ctx, s.arm.command(s.arm.tools.FD()), o, func(ctx context.Context, n criu.Notification) error {
			if n.Script != criu.ScriptNetworkLock { // all tasks are seized
				return nil
			}
			defer engine.StartSpan(ctx, "census")()
			s.now.tracer = n.CRIU
			defer func() { s.now.tracer = 0 }()
			var err error
			c, err = s.census(ctx, ref)
			return err
		})
	})
	return c, err
}

package engine

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Once the time is over no rollout begins; one that has begun ends, and everything is released.
func TestNoRolloutBeginsAfterItsTime(t *testing.T) {
	of := func(id string, n int64) StepSpec {
		s := spec(id)
		s.Rollout = &n
		return s
	}
	for name, late := range map[string]bool{"while it runs": false, "before it starts": true} {
		s := newScript(t)
		until := time.Now().Add(50 * time.Millisecond)
		first := bind(s, of("r0/reset", 0), func(context.Context, *Exec) (int, error) {
			time.Sleep(time.Until(until) + time.Millisecond)
			return 1, nil
		})
		act := bind(s, of("r0/act", 0), ok(1), Read(first))
		next := bind(s, of("r1/reset", 1), ok(1), Read(act))
		bind(s, of("r1/act", 1), ok(1), Read(next))
		bind(s, spec("survey"), ok(1), Read(next))
		bind(s, release("release"), ok(1), Read(next))
		e := s.executor()
		e.Until = until
		if late {
			e.Until = time.Now().Add(-time.Second)
		}
		r, err := e.Run(context.Background())
		want := map[string]bench.Verdict{"r0/reset": Pass, "r0/act": Pass, "r1/reset": NotRun, "r1/act": NotRun, "survey": NotRun, "release": Pass}
		if late {
			want["r0/reset"], want["r0/act"] = NotRun, NotRun
		}
		if err != nil || r.Verdict != RunBlocked || r.Reason != ReasonExpired || !reflect.DeepEqual(verdicts(r), want) {
			t.Errorf("%s: %v %s %q %v", name, err, r.Verdict, r.Reason, verdicts(r))
		}
	}
}

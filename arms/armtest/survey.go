package armtest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps/gate"
)

// An arm that surveys the host sees a slot while it is there, and nothing of it
// once everything was released. An arm that does not declares why.
func testSurvey(t *testing.T, h Harness) {
	arm := h.New(t)
	_, lacks := arm.Describe().NotApplicable[gate.Cleanup]
	if _, ok := arm.(engine.Surveyor); !ok || lacks {
		if !lacks {
			t.Error("the arm neither surveys the host nor declares why not")
		}
		return
	}
	r := bare(t, h)
	survey, err := r.arm.(engine.Surveyor).Survey(r.ctx(), r.ws)
	if err != nil {
		r.finish()
		t.Fatalf("survey: %v", describe(err))
	}
	checkFacts(t, survey.Facts())
	if left := r.differs(survey); len(left) > 0 {
		t.Errorf("nothing was made, and the host is not as it was: %+v", left)
	}
	r.root, err = r.arm.Mount(r.ctx(), r.ws, bench.MountParams{Image: h.Manifest.Image})
	if err != nil {
		r.finish()
		t.Fatalf("mount: %v", describe(err))
	}
	slot := r.prepared("slot-0")
	if len(r.differs(survey)) == 0 {
		t.Error("the survey does not see a slot that runs")
	}
	cp, place := r.dump(slot)
	r.resume(r.restore(cp, place, "slot-0"))
	if len(r.differs(survey)) == 0 {
		t.Error("the survey does not see a slot that was restored")
	}
	r.finish()
	var left []bench.Finding
	for range 100 { // as the gate, it gives the kernel a moment
		if left = r.differs(survey); len(left) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	r.passes(gate.Cleanup, "after the release", gate.JudgeCleanup(engine.Known(left, "survey", engine.ViewHost)))

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := r.arm.(engine.Surveyor).Survey(ctx, r.ws); err == nil {
		t.Error("a survey does not heed its context")
	}
	if _, err := survey.Compare(ctx); err == nil {
		t.Error("a comparison does not heed its context")
	}
}

// differs names what is not as the survey saw it, without what others did.
func (r *run) differs(s engine.Survey) []bench.Finding {
	r.t.Helper()
	found, err := s.Compare(r.ctx())
	if err != nil {
		r.t.Fatalf("compare the host: %v", describe(err))
	}
	return slices.DeleteFunc(found, func(f bench.Finding) bool { return f.Verdict == engine.Pass })
}

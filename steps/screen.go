package steps

import (
	"context"
	"errors"
	"fmt"
	"image"
	"strconv"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/screen"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// screenPeriod is the time between two pictures at least: a picture is work in the
// guest, and two that are equal must be of two moments to mean that the screen stands still.
const screenPeriod = 50 * time.Millisecond

// watch is the part of readiness that is about the screen; see package screen for
// the rule. It holds for the last two pictures that were taken, or it does not hold.
type watch struct {
	rule     bench.Readiness
	want     screen.Want
	pictures int
	data     []byte // the last picture, as it came
	picture  image.Image
	asked    time.Time    // when the last one was asked for, also in vain
	facts    []bench.Fact // of the look at which it held
	half     bool         // the last look lacked nothing but a picture before
}

func watchScreen(p bench.ReadinessParams) *watch {
	w := &watch{rule: p.Readiness, want: screen.Want{Windows: p.Readiness.Windows}}
	if p.Display != nil {
		w.want.Width, w.want.Height = int(p.Display.Width), int(p.Display.Height)
	}
	return w
}

// at looks once. probe is what the guest's server said a moment
// ago; pictures are only taken once they are as they must be. nil is ready, and
// leaves what was measured in facts.
func (w *watch) at(ctx context.Context, x *engine.Exec, c *guest.Client, probe guest.Probe) error {
	facts := probe.Screen
	w.half = false
	w.want.Pids = map[string]int{}
	for _, s := range probe.Services {
		if s.Alive {
			w.want.Pids[s.Name] = s.Pid
		}
	}
	switch {
	case !w.rule.Screen && len(w.rule.Windows) == 0:
		return nil
	case facts == nil:
		return errors.New("screen is not ready: the guest server says nothing of one")
	case !w.rule.Screen:
		return notReady(screen.JudgeWindows(*facts, w.want))
	}
	before := w.picture
	w.picture = nil // only pictures of two polls in a row count
	if err := notReady(screen.JudgeFacts(*facts, w.want)); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(w.asked.Add(screenPeriod))):
	}
	w.asked = time.Now()
	data, err := c.Screenshot(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	picture, err := screen.Decode(data)
	if err != nil {
		return err
	}
	w.data, w.picture = data, picture
	w.pictures++
	findings, m := screen.JudgeFrames(before, picture, *facts, w.want)
	w.half = before == nil && len(findings) == 1
	if err := notReady(findings); err != nil {
		return err
	}
	if len(w.want.Windows) > 0 {
		x, y, err := c.Pointer(ctx)
		if err != nil {
			return err
		}
		if err := notReady(screen.JudgeContents(picture, *facts, w.want.Windows, image.Pt(x, y))); err != nil {
			return err
		}
	}
	fact := func(name, value string) bench.Fact {
		return bench.Fact{Name: name, Known: true, Value: value, Source: "screenshot", View: engine.ViewGuest}
	}
	part := func(f float64) string { return strconv.FormatFloat(f, 'f', 4, 64) }
	w.facts = []bench.Fact{
		fact("screen-pictures", strconv.Itoa(w.pictures)),
		// When the accepted picture was there; what follows it in this step is our looking at it.
		fact("screen_picture_ns", strconv.FormatInt(x.SinceStart(now).Nanoseconds(), 10)),
		fact("screen-size", fmt.Sprintf("%dx%d", m.Width, m.Height)),
		fact("screen-colours", strconv.Itoa(m.Colours)),
		fact("screen-lit", part(m.Lit)),
		fact("screen-dominant", part(m.Dominant)),
		fact("screen-texture", part(m.Textured)),
	}
	return nil
}

func notReady(findings []bench.Finding) error {
	if len(findings) == 0 {
		return nil
	}
	return errors.New("screen is not ready: " + screen.Text(findings))
}

// keep makes the last picture evidence, where there is one.
func (w *watch) keep(x *engine.Exec, name string) error {
	if w.data == nil {
		return nil
	}
	return x.Evidence(name, w.data)
}

// pictureLimit bounds the picture of an evaluation.
const pictureLimit = 10 * time.Second

// picture keeps the screen as an evaluation finds it. It is for people and decides
// nothing: what an agent may do to a screen is no reason to have no score. That it
// could not be taken is a fact without a value.
func picture(ctx context.Context, x *engine.Exec, c *guest.Client, p bench.EvaluateParams) error {
	if p.Display == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pictureLimit)
	defer cancel()
	fact := bench.Fact{Name: "screen-" + p.When, Source: "screenshot", View: engine.ViewGuest}
	data, err := c.Screenshot(ctx)
	if err == nil {
		_, err = screen.Decode(data)
	}
	if err != nil {
		fact.Source, fact.Reason = "", err.Error()
		x.Fact(fact)
		return nil
	}
	fact.Known, fact.Value = true, string(canonical.Sum(data))
	x.Fact(fact)
	return x.Evidence(fact.Name+".png", data)
}

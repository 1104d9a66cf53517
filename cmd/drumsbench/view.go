package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/terminal"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// newView chooses how a run is shown on standard error: one JSON object an
// event, a live view where standard error is a terminal, else one line a step.
// run names the run, of the steps plan. Call the function to leave the terminal as it was.
func newView(g *globals, run string, plan []bench.Step) (engine.Progress, func()) {
	f, _ := g.Stderr.(*os.File)
	switch {
	case g.json():
		return jsonView{g.Stderr, run}, func() {}
	case isTerminal(g.Stderr) && os.Getenv("NO_COLOR") == "":
		v := newLiveView(g.Stderr, run, newRemaining(plan), func() (int, int) {
			width, height, err := term.GetSize(int(f.Fd()))
			if err != nil {
				return 80, 24
			}
			return width, height
		})
		return v, v.Close
	}
	return &plainView{w: g.Stderr, run: run, left: newRemaining(plan)}, func() {}
}

// plainView prints one line for each step that ended, and what was wrong with
// it, and one for each rollout with the time that is left. Steps that were not
// run are counted: what kept them from it was printed.
type plainView struct {
	w      io.Writer
	run    string
	left   *remaining
	notRun int
}

func (v *plainView) Event(e engine.Event) {
	switch e.Kind {
	case engine.RunStarted:
		_, _ = fmt.Fprintf(v.w, "%s: %d steps\n", v.run, e.Total)
	case engine.StepFinished:
		ended := v.left.Event(e)
		if e.Verdict == engine.NotRun {
			v.notRun++
			return
		}
		_, _ = io.WriteString(v.w, stepLines(e))
		if ended {
			_, _ = fmt.Fprintf(v.w, "%s: %s, %s since its start\n", v.run, v.left.text(e.At), e.At.Round(time.Second))
		}
	case engine.RunFinished:
		if v.notRun > 0 {
			_, _ = fmt.Fprintf(v.w, "%s: %d steps were not run\n", v.run, v.notRun)
		}
	}
}

// stepLines is a step that ended, on one line, and what speaks against it below.
func stepLines(e engine.Event) string {
	var b strings.Builder
	digits := len(fmt.Sprint(e.Total))
	fmt.Fprintf(&b, "%*d/%d  %-15s  %8s  %s\n", digits, e.Done, e.Total, e.Verdict, shortTime(e), e.Step.Id)
	if e.Verdict == engine.Pass {
		return b.String()
	}
	for _, f := range e.Findings {
		if f.Verdict == engine.Pass {
			continue
		}
		b.WriteString("    " + terminal.Line(findingLine(f)) + "\n")
		line(&b, "    hint", terminal.Line(f.Hint))
	}
	if e.Failure != nil {
		b.WriteString("    " + terminal.Line(e.Failure.Text) + "\n")
		line(&b, "    hint", terminal.Line(e.Failure.Hint))
		line(&b, "    log", terminal.Line(e.Failure.Log))
	}
	return b.String()
}

func shortTime(e engine.Event) string {
	if e.Verdict == engine.NotRun {
		return "-"
	}
	return short(e.Elapsed)
}

func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

// jsonView prints one JSON object for each event.
type jsonView struct {
	w   io.Writer
	run string
}

// eventLine is an event as a program reads it. Times are nanoseconds.
type eventLine struct {
	Run      string           `json:"run"`
	Event    engine.EventKind `json:"event"`
	At       int64            `json:"at"`
	Done     int              `json:"done"`
	Total    int              `json:"total"`
	Step     string           `json:"step,omitempty"`
	Kind     string           `json:"kind,omitempty"`
	Rollout  *int64           `json:"rollout,omitempty"`
	Window   string           `json:"window,omitempty"`
	Verdict  bench.Verdict    `json:"verdict,omitempty"`
	Elapsed  int64            `json:"elapsed,omitempty"`
	Findings []bench.Finding  `json:"findings,omitempty"`
	Error    *bench.Failure   `json:"error,omitempty"`
	Outcome  bench.RunVerdict `json:"outcome,omitempty"`
	Reason   string           `json:"reason,omitempty"`
}

func (v jsonView) Event(e engine.Event) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(eventLine{
		Run: v.run, Event: e.Kind, At: e.At.Nanoseconds(), Done: e.Done, Total: e.Total, Step: e.Step.Id, Kind: e.Step.Kind, Rollout: e.Step.Rollout,
		Window: e.Window + e.Step.Window, Verdict: e.Verdict, Elapsed: e.Elapsed.Nanoseconds(), Findings: e.Findings, Error: e.Failure,
		Outcome: e.Outcome, Reason: e.Reason,
	}) == nil {
		_, _ = io.WriteString(v.w, b.String())
	}
}

// Escape sequences of the live view: ECMA-48, understood by every terminal that is not "dumb".
const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	lineUp     = "\x1b[%dA"
	eraseBelow = "\r\x1b[J"
	red        = "\x1b[31m"
	plainText  = "\x1b[0m"
)

// liveView keeps a few lines at the bottom of a terminal up to date: how far
// the run is, what runs now, how steps ended. Steps that did not pass scroll by
// above it and stay. It draws at most ten times a second, and not at all while
// a measurement window is open.
type liveView struct {
	w     io.Writer
	run   string
	left  *remaining
	size  func() (width, height int)
	stop  chan struct{}
	ended sync.WaitGroup

	mu     sync.Mutex
	start  time.Time
	done   int
	total  int
	active []running
	counts map[bench.Verdict]int
	scroll strings.Builder // to be printed above with the next drawing
	drawn  int             // lines at the bottom that the next drawing replaces
	window string
	closed bool
}

type running struct {
	step  string
	since time.Time
}

// drawEvery bounds how often a terminal is drawn on.
const drawEvery = 100 * time.Millisecond

func newLiveView(w io.Writer, run string, left *remaining, size func() (int, int)) *liveView {
	v := &liveView{w: w, run: run, left: left, size: size, stop: make(chan struct{}), counts: map[bench.Verdict]int{}, start: time.Now()}
	_, _ = io.WriteString(w, hideCursor)
	v.ended.Go(v.drawAlong)
	return v
}

func (v *liveView) drawAlong() {
	tick := time.NewTicker(drawEvery)
	defer tick.Stop()
	for {
		select {
		case <-v.stop:
			return
		case <-tick.C:
			v.mu.Lock()
			if v.window == "" && !v.closed {
				v.draw()
			}
			v.mu.Unlock()
		}
	}
}

func (v *liveView) Event(e engine.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	v.done, v.total = e.Done, e.Total
	switch e.Kind {
	case engine.RunStarted:
		v.start = time.Now()
	case engine.StepStarted:
		v.active = append(v.active, running{e.Step.Id, time.Now()})
	case engine.StepFinished:
		v.active = slices.DeleteFunc(v.active, func(r running) bool { return r.step == e.Step.Id })
		v.counts[e.Verdict]++
		v.left.Event(e)
		if e.Verdict != engine.Pass && e.Verdict != engine.NotRun && e.Verdict != engine.NotApplicable {
			v.scroll.WriteString(paint(e.Verdict, stepLines(e)))
		}
	case engine.WindowOpened:
		v.window = e.Window
		v.draw() // the last thing before the quiet
	case engine.WindowClosed:
		v.window = ""
	}
}

func paint(verdict bench.Verdict, text string) string {
	if verdict == engine.Fail {
		return red + text + plainText
	}
	return text
}

// draw replaces the lines at the bottom with one write. v.mu is held.
func (v *liveView) draw() {
	width, height := v.size()
	lines := v.lines(max(1, height-1))
	var b strings.Builder
	v.erase(&b)
	for _, l := range lines {
		b.WriteString(clipTo(l, width-1) + "\n")
	}
	v.drawn = len(lines)
	_, _ = io.WriteString(v.w, b.String())
}

// erase takes the lines at the bottom away and puts what scrolls by there.
func (v *liveView) erase(b *strings.Builder) {
	if v.drawn > 0 {
		fmt.Fprintf(b, lineUp, v.drawn)
	}
	b.WriteString(eraseBelow + v.scroll.String())
	v.scroll.Reset()
	v.drawn = 0
}

// verdictOrder is how counts are listed.
var verdictOrder = []bench.Verdict{engine.Pass, engine.Review, engine.NotApplicable, engine.VerdictUnknown, engine.NotRun, engine.Fail}

// lines are at most n lines: the state of the run, then what runs now, the oldest first.
func (v *liveView) lines(n int) []string {
	elapsed := time.Since(v.start)
	head := fmt.Sprintf("%s  step %d of %d  %s", v.run, v.done, v.total, elapsed.Round(time.Second))
	if text := v.left.text(elapsed); text != "" {
		head += "  " + text
	}
	for _, verdict := range verdictOrder {
		if c := v.counts[verdict]; c > 0 {
			head += fmt.Sprintf("  %s %d", verdict, c)
		}
	}
	list := []string{head}
	if v.window != "" {
		list = append(list, "  measuring "+v.window+"; nothing is drawn until it is done")
	}
	for _, r := range v.active {
		list = append(list, fmt.Sprintf("  %s  %s", terminal.Line(r.step), time.Since(r.since).Round(100*time.Millisecond)))
	}
	return list[:min(n, len(list))]
}

// clipTo shortens a line so that it does not wrap.
func clipTo(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(0, width)])
}

// Close takes the live lines away, leaves what scrolled by and shows the cursor again. Idempotent.
func (v *liveView) Close() {
	v.mu.Lock()
	if !v.closed {
		v.closed = true
		close(v.stop)
		var b strings.Builder
		v.erase(&b)
		_, _ = io.WriteString(v.w, b.String()+showCursor)
	}
	v.mu.Unlock()
	v.ended.Wait()
}

//go:build linux && !elsewhere

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func finished(n int, id string, v bench.Verdict) engine.Event {
	e := engine.Event{Kind: engine.StepFinished, Done: n, Total: 12, Step: bench.Step{Id: id, Kind: "gate"}, Verdict: v, Elapsed: 1204 * time.Millisecond}
	if v == engine.Fail {
		e.Findings = []bench.Finding{{Verdict: engine.Fail, Subject: "lock", Text: "is \x1b[2Jgone\nnow", Hint: "repair it"}}
		e.Failure = &bench.Failure{Text: "restore: crashed", Log: "/log"}
	}
	return e
}

func TestPlainView(t *testing.T) {
	var out bytes.Buffer
	v := &plainView{w: &out, run: "drums cold", left: newRemaining(nil)}
	v.Event(engine.Event{Kind: engine.RunStarted, Total: 12})
	v.Event(engine.Event{Kind: engine.StepStarted})
	v.Event(finished(1, "r0/restore", engine.Pass))
	v.Event(finished(10, "r0/gate-locks", engine.Fail))
	v.Event(finished(11, "r0/act", engine.NotRun))
	v.Event(engine.Event{Kind: engine.RunFinished})
	want := `drums cold: 12 steps
 1/12  pass               1.20 s  r0/restore
10/12  fail               1.20 s  r0/gate-locks
    lock: is ?[2Jgone now
    hint: repair it
    restore: crashed
    log: /log
drums cold: 1 steps were not run
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// How far the rollouts are stands on a line of its own behind each, with the time
// that the others take by the medians of this run's steps; on a terminal it stands
// in the first line. Programs are told events and nothing of it.
func TestTimeLeft(t *testing.T) {
	var plan []bench.Step
	for i := range int64(4) {
		for _, name := range []string{"restore", "act"} {
			s := bench.Step{Id: fmt.Sprintf("r%d/%s", i, name), Kind: name, Rollout: &i}
			if i == 0 {
				s.Control = "none"
			}
			plan = append(plan, s)
		}
	}
	plan = append(plan, bench.Step{Id: "release", Kind: "release"})
	var out, programs bytes.Buffer
	views := []engine.Progress{&plainView{w: &out, run: "fake cold", left: newRemaining(plan)}, jsonView{&programs, "fake cold"}}
	at := time.Duration(0)
	for i, s := range plan {
		took := map[string]time.Duration{"restore": 2 * time.Second, "act": 10 * time.Second}[s.Kind]
		if s.Control != "" { // in a control others act: it says nothing of the rollouts behind it, once there is one of those
			took = time.Second
		}
		at += took
		verdict := engine.Pass
		if s.Id == "r3/act" { // such a rollout is no more than left out
			verdict = engine.NotRun
		}
		for _, v := range views {
			v.Event(engine.Event{Kind: engine.StepFinished, At: at, Done: i + 1, Total: len(plan), Step: s, Verdict: verdict, Elapsed: took})
		}
	}
	var said []string
	for _, l := range strings.Split(out.String(), "\n") {
		if strings.Contains(l, "rollout") {
			said = append(said, l)
		}
	}
	want := []string{"fake cold: rollout 1 of 4, about 6s left, 2s since its start", "fake cold: rollout 2 of 4, about 24s left, 14s since its start",
		"fake cold: rollout 3 of 4, about 12s left, 26s since its start"}
	if strings.Join(said, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
	}
	if strings.Contains(programs.String(), "left") {
		t.Errorf("a program is told: %s", &programs)
	}
	cut := newRemaining(plan) // the last rollout never began, which the third ends after
	for _, i := range []int{0, 1, 2, 3, 4, 6, 7, 5} {
		e := finished(i, plan[i].Id, engine.Pass)
		if e.Step = plan[i]; i > 5 {
			e.Verdict = engine.NotRun
		}
		cut.Event(e)
	}
	if text := cut.text(time.Second); text != "rollout 3 of 4, 1 not begun" {
		t.Error(text)
	}
	half := newRemaining(plan)
	if text := half.text(time.Second); text != "rollout 0 of 4, time left not known yet" {
		t.Error(text)
	}
	v := newLiveView(&fakeTerminal{}, "fake cold", half, func() (int, int) { return 80, 4 })
	defer v.Close()
	v.mu.Lock()
	defer v.mu.Unlock()
	if head := v.lines(1)[0]; !strings.Contains(head, "rollout 0 of 4, time left not known yet") {
		t.Error(head)
	}
}

func TestJSONView(t *testing.T) {
	var out bytes.Buffer
	v := jsonView{&out, "drums cold"}
	v.Event(finished(1, "a", engine.Fail))
	v.Event(engine.Event{Kind: engine.RunFinished, Outcome: engine.RunFailed, Reason: "because"})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("%q", lines)
	}
	var first, last eventLine
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil || first.Run != "drums cold" || first.Step != "a" || first.Verdict != engine.Fail || first.Elapsed != 1204000000 || len(first.Findings) != 1 {
		t.Errorf("%v %+v", err, first)
	}
	if err := json.Unmarshal([]byte(lines[1]), &last); err != nil || last.Outcome != engine.RunFailed || last.Reason != "because" {
		t.Errorf("%v %+v", err, last)
	}
}

// fakeTerminal notes each write and when it came.
type fakeTerminal struct {
	mu     sync.Mutex
	writes []string
	times  []time.Time
}

func (t *fakeTerminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writes, t.times = append(t.writes, string(p)), append(t.times, time.Now())
	return len(p), nil
}

func (t *fakeTerminal) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.writes)
}

func TestLiveView(t *testing.T) {
	term := &fakeTerminal{}
	v := newLiveView(term, "drums cold", newRemaining(nil), func() (int, int) { return 40, 4 })
	v.Event(engine.Event{Kind: engine.RunStarted, Total: 12})
	for i := range 6 {
		v.Event(engine.Event{Kind: engine.StepStarted, Done: i, Total: 12, Step: bench.Step{Id: fmt.Sprintf("step-%d-%s", i, strings.Repeat("x", 60))}})
	}
	v.Event(finished(3, "r0/gate-locks", engine.Fail))
	time.Sleep(350 * time.Millisecond)
	if n := term.count(); n < 2 || n > 5 {
		t.Errorf("%d writes in 350 ms", n)
	}

	v.Event(engine.Event{Kind: engine.WindowOpened, Done: 3, Total: 12, Window: "reset-0"})
	before := term.count()
	if !strings.Contains(term.writes[before-1], "measuring reset-0") {
		t.Errorf("the window is not announced: %q", term.writes[before-1])
	}
	time.Sleep(250 * time.Millisecond)
	if after := term.count(); after != before {
		t.Errorf("%d writes inside the window", after-before)
	}
	v.Event(engine.Event{Kind: engine.WindowClosed, Done: 3, Total: 12, Window: "reset-0"})
	time.Sleep(150 * time.Millisecond)
	if term.count() == before {
		t.Error("nothing is drawn after the window")
	}
	v.Close()
	v.Close()
	v.Event(finished(4, "late", engine.Fail))

	all := strings.Join(term.writes, "")
	if !strings.HasPrefix(all, hideCursor) || !strings.HasSuffix(all, showCursor) || strings.Count(all, showCursor) != 1 {
		t.Error("the cursor is not put back")
	}
	if strings.Count(all, "lock: is ?[2Jgone now") != 1 || strings.Contains(all, "late") {
		t.Errorf("the failure does not stand there once:\n%q", all)
	}
	if !strings.Contains(all, "step 3 of 12") || !strings.Contains(all, "fail 1") {
		t.Errorf("the state of the run is not shown:\n%q", all)
	}
	for _, w := range term.writes[1:] {
		live := w[strings.LastIndex(w, eraseBelow)+len(eraseBelow):]
		if i := strings.LastIndex(live, "log: /log\n"); i >= 0 {
			live = strings.TrimPrefix(live[i+len("log: /log\n"):], plainText)
		}
		if lines := strings.Split(strings.TrimSuffix(live, showCursor), "\n"); len(lines) > 4 {
			t.Errorf("more lines than the terminal has: %q", lines)
		}
		for _, l := range strings.Split(live, "\n") {
			if strings.Contains(l, "xxx") && len(l) > 39 {
				t.Errorf("a line wraps: %q", l)
			}
		}
	}
}

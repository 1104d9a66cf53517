package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strconv"
	"time"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Sink takes the receipts of a run in their order. Append fills in seq and prev.
type Sink interface {
	Append(bench.Receipt) error
}

// Executor runs one plan once. Plan, Bindings and Workspace are required; the
// other fields have useful zero values.
type Executor struct {
	Plan      *Plan
	Bindings  Bindings
	Arm       Arm
	Workspace *Workspace
	// Sink gets run_start, one receipt a step, run_end.
	Sink     Sink
	Progress Progress
	// Digests go into run_start; plan and workload are added.
	Digests map[string]bench.SHA256
	// Parallel steps at most; 0 is the number of CPUs, at least 2.
	Parallel int
	// Grace is how long a step may take to return once its context is done, to end what
	// it started and take it away; 0 is 15 s.
	Grace time.Duration
	// Keep is asked once, before the first release step or, in a plan without one,
	// before the undo stack runs, with the verdict so far, if a slot has a place. Where
	// it says true one slot is not released, nor what it stands on: see Kept.
	Keep func(bench.RunVerdict) bool
	// Until is when the time for rollouts is over; zero is never. From then on no rollout
	// begins: its steps, and what needs them, are not_run. Rollouts that have begun, and
	// release steps, run on; a run that has not started by then runs its release steps only.
	Until time.Time
	// Facts go into run_start.
	Facts []bench.Fact
	// Resume says what another executor finished of the plan; nil for a run from its beginning.
	Resume *Resume
	// Paused says how the engine itself did not run for a while, once it did not: it was
	// stopped by a signal, or the host slept. Empty if it always ran; nil where nobody
	// looks. What ran meanwhile was not measured, and is invalid: the run is blocked.
	Paused func() string
	// UndoDeadline is how long each function of the undo stack may take; 0 is 1 minute.
	UndoDeadline time.Duration
}

// Result of a run.
type Result struct {
	// Outcomes in the order of the plan.
	Outcomes []bench.StepOutcome
	// Findings of the run itself: it was interrupted, a step was given up, something could not be undone.
	Findings []bench.Finding
	Verdict  bench.RunVerdict
	// Reason for a verdict other than passed.
	Reason         string
	Started, Ended time.Time
	// Kept is what was not released; nil if everything was.
	Kept *Kept
}

// state of a step within a run.
type state uint8

const (
	waiting  state = iota // for a step that it needs
	ready                 // to be started
	running               //
	finished              // or not run
)

// run is one execution. All fields but the undo stack belong to the goroutine
// of Run; steps read values of steps that finished before they were started.
type run struct {
	*Executor
	plan  *Plan
	bound []stepFunc
	arm   string
	start time.Time
	undo  undoStack

	// cancelled says whether the caller's context is done.
	cancelled func() bool

	states   []state
	pending  []int  // steps that a step still waits for
	bad      []bool // finished in a way that stops dependants
	values   []any
	outcomes []bench.StepOutcome
	left     int // not finished
	reported int // finished, in the order of the receipts
	active   int // running now
	working  int // of these, no release steps
	queue    indexHeap
	done     chan *Exec

	// late are steps that an earlier attempt finished, by the step that has their values again.
	late map[int][]int

	windows []window
	doors   indexHeap // windows that could open, by their first step
	opening int       // window that is waited for, -1 for none
	open    int       // window that is open, -1 for none
	held    []func()  // what is written once it closes

	asked bool // whether to keep a slot
	kept  *Kept

	findings []bench.Finding
	stopped  string // why nothing more is started; release steps are
	expired  bool   // whether Until was seen to be over
	failed   bool   // by a finding of the run's own
	broken   error  // the sink failed
}

// Run executes the plan and returns when every step is finished or was not run,
// and the undo stack was run. It returns an error when the run could not start
// or its receipts could not be written; a failed step is not an error but a
// verdict. A cancelled ctx interrupts the run:
//
//	step                     on error, fail,     on interruption
//	                         unknown of a need
//	running                  -                   its context is cancelled
//	not started              not_run             not_run
//	not started, release     runs, once all its needs are finished in whatever way and no other kind of step runs
//
// review_required stops nobody; not_applicable stops nobody if the step is
// optional. An interrupted run is blocked, or failed if anything failed.
func (e *Executor) Run(ctx context.Context) (Result, error) {
	bound, err := e.Bindings.prepare(e.Plan)
	if err != nil {
		return Result{}, err
	}
	r := e.newRun(ctx, bound)
	if err := r.begin(); err != nil {
		return Result{}, err
	}
	r.resumed()
	for r.left > 0 {
		switch {
		case r.broken != nil:
			r.stop(Fail, r.broken.Error())
		case r.cancelled():
			r.stop(NotRun, "interrupted")
		case r.Paused() != "":
			r.stop(VerdictUnknown, r.Paused())
		}
		r.expire()
		r.startReady(ctx)
		if r.active > 0 {
			r.wait(ctx)
		}
	}
	r.unwind(ctx)
	return r.end()
}

// wait for a step to finish, or for the interruption if it was not seen yet.
func (r *run) wait(ctx context.Context) {
	interrupted := ctx.Done()
	if r.stopped != "" {
		interrupted = nil
	}
	select {
	case x := <-r.done:
		r.finish(x)
	case <-interrupted:
	}
}

func (e *Executor) newRun(ctx context.Context, bound []stepFunc) *run {
	c := *e
	if c.Parallel <= 0 {
		c.Parallel = max(2, runtime.NumCPU())
	}
	if c.Grace <= 0 {
		c.Grace = 15 * time.Second
	}
	if c.UndoDeadline <= 0 {
		c.UndoDeadline = time.Minute
	}
	if c.Progress == nil {
		c.Progress = noProgress{}
	}
	if c.Paused == nil {
		c.Paused = func() string { return "" }
	}
	n := len(c.Plan.nodes)
	r := &run{
		Executor: &c, plan: c.Plan, bound: bound,
		cancelled: func() bool { return ctx.Err() != nil },
		states:    make([]state, n), pending: make([]int, n), bad: make([]bool, n),
		values: make([]any, n), outcomes: make([]bench.StepOutcome, n),
		left: n, done: make(chan *Exec, c.Parallel), opening: -1, open: -1,
	}
	r.undo.limit, r.undo.grace = c.UndoDeadline, c.Grace
	if c.Arm != nil {
		r.arm = c.Arm.Describe().Kind
	}
	r.countNeeds()
	return r
}

// begin starts the clock and writes the first receipt.
func (r *run) begin() error {
	r.start = time.Now()
	digests := maps.Clone(r.Digests)
	if digests == nil {
		digests = map[string]bench.SHA256{}
	}
	digests["plan"], digests["workload"] = r.plan.Digest(), r.plan.Workload
	first := bench.Receipt{Time: Timestamp(r.start), Event: "run_start", Digests: digests, Facts: r.Facts}
	if r.Resume != nil {
		first = r.Resume.Receipt
		first.Time, first.Event = Timestamp(r.start), "resume"
		// On the monotonic clock of this process: steps of all attempts lie on one line.
		if before := r.start.Sub(r.Resume.Since); before > 0 {
			r.start = r.start.Add(-before)
		}
	}
	if err := r.append(first); err != nil {
		return err
	}
	r.tell(Event{Kind: RunStarted})
	return nil
}

func (r *run) append(receipt bench.Receipt) error {
	if r.Sink == nil {
		return nil
	}
	return r.Sink.Append(receipt)
}

func (r *run) store(name string, data []byte) (bench.Evidence, error) {
	if r.Workspace == nil || r.Workspace.Evidence == nil {
		return bench.Evidence{}, &Error{Op: "store evidence " + name, Err: errors.New("the run has no evidence store")}
	}
	return r.Workspace.Evidence.Put(name, data)
}

// Timestamp writes t as the schema's #Time wants it.
func Timestamp(t time.Time) bench.Time { return bench.Time(t.UTC().Format(time.RFC3339Nano)) }

// countNeeds fills in what each step and each window waits for.
func (r *run) countNeeds() {
	r.windows = make([]window, len(r.plan.windows))
	for i := range r.plan.nodes {
		n := &r.plan.nodes[i]
		r.pending[i] = len(n.needs)
		if n.window < 0 {
			continue
		}
		w := &r.windows[n.window]
		w.left++
		for _, from := range n.needs {
			if r.plan.nodes[from].window != n.window {
				w.outside++
			}
		}
	}
	for i := range r.plan.nodes {
		if r.pending[i] == 0 {
			r.makeReady(i)
		}
	}
	for w := range r.windows {
		if r.windows[w].outside == 0 {
			r.doors.push(r.plan.windows[w].steps[0])
		}
	}
}

// makeReady queues a step all of whose needs are finished.
func (r *run) makeReady(i int) {
	r.states[i] = ready
	if w := r.plan.nodes[i].window; w >= 0 {
		r.windows[w].queue.push(i)
		return
	}
	r.queue.push(i)
}

// launch starts a step.
func (r *run) launch(ctx context.Context, i int) {
	s := r.plan.Steps[i]
	if s.Release && r.keeps(s) {
		r.notRun(i, bench.Finding{Verdict: NotRun, Subject: r.kept.Slot, Text: "the slot is kept"})
		r.conclude(i, true)
		return
	}
	r.states[i] = running
	r.active++
	if !s.Release {
		r.working++
	}
	r.tell(Event{Kind: StepStarted, At: time.Since(r.start), Done: r.reported, Step: s})
	if s.Release {
		ctx = context.WithoutCancel(ctx)
	}
	x := &Exec{run: r, index: i}
	x.begin(ctx, r.around(i, r.bound[i]), r.plan.nodes[i].deadline, r.Grace, r.done)
}

// finish takes a step that returned or was given up.
func (r *run) finish(x *Exec) {
	r.active--
	if !x.Step().Release {
		r.working--
	}
	s := r.plan.Steps[x.index]
	x.mu.Lock()
	x.closed = true
	receipt := bench.Receipt{
		Time: Timestamp(x.ended), Event: "step", Step: s.Id, Kind: s.Kind,
		Start: int64Text(x.began.Sub(r.start)), End: int64Text(x.ended.Sub(r.start)),
		Spans: x.spans, Facts: x.facts, Findings: x.findings, Evidence: x.evidence,
	}
	held, elapsed := x.held, x.ended.Sub(x.began)
	x.mu.Unlock()
	receipt.Verdict = r.judge(x, &receipt)
	r.values[x.index] = x.value
	if !Stops(receipt.Verdict, s.Optional) {
		for i, step := range r.plan.Steps {
			if v, recovered := x.others[step.Id]; recovered {
				r.values[i] = v
			}
		}
	}
	r.report(x.index, receipt, held, elapsed)
	r.conclude(x.index, Stops(receipt.Verdict, s.Optional))
	if x.late {
		r.stop(Fail, fmt.Sprintf("step %s does not heed its context", s.Id))
	}
}

// judge decides a step from its findings and its error, and puts what the error
// says into the receipt.
func (r *run) judge(x *Exec, receipt *bench.Receipt) bench.Verdict {
	s, err := r.plan.Steps[x.index], x.err
	v := Judgement{Findings: receipt.Findings}.Verdict()
	if err == nil && !Stops(v, s.Optional) {
		if missing := lacks(r.plan.nodes[x.index].out, x.value); missing != "" {
			err = &Error{Op: "finish step", Err: fmt.Errorf("it returned no %s and no error", missing)}
		}
	}
	paused := ""
	if !s.Release && !r.cancelled() {
		paused = r.Paused()
	}
	if err == nil && paused != "" {
		err = &Error{Op: "run step", Err: errors.New(paused)}
	}
	if err == nil {
		return v
	}
	for _, e := range Within(err) {
		if e.Step == "" {
			e.Step = s.Id
		}
		if e.Arm == "" {
			e.Arm = r.arm
		}
		receipt.Findings = append(receipt.Findings, e.Findings...)
	}
	v = Judgement{Findings: receipt.Findings}.Verdict()
	receipt.Error = Failure(err)
	switch {
	case paused != "": // a deadline that it slept through says nothing of the step
		receipt.Error.Cause = CauseInterrupted
		receipt.Findings = append(receipt.Findings, bench.Finding{Verdict: VerdictUnknown, Subject: s.Id, Text: paused})
		return Worst(v, VerdictUnknown)
	case errors.Is(err, ErrRefused):
		return Worst(v, Fail)
	case errors.Is(err, ErrUnknown):
		return Worst(v, VerdictUnknown)
	case !s.Release && !x.late && r.cancelled() && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		// What the step would have come to is not known.
		receipt.Error.Cause = CauseInterrupted
		receipt.Findings = append(receipt.Findings, bench.Finding{Verdict: VerdictUnknown, Subject: s.Id, Text: "interrupted"})
		return Worst(v, VerdictUnknown)
	}
	return Worst(v, Fail)
}

// Stops says whether a step's verdict keeps its dependants from running.
func Stops(v bench.Verdict, optional bool) bool {
	switch v {
	case Pass, Review:
		return false
	case NotApplicable:
		return !optional
	}
	return true
}

// OutcomeOf is a receipt of a step as a line of the record.
func OutcomeOf(r bench.Receipt) bench.StepOutcome {
	o := bench.StepOutcome{Step: r.Step, Kind: r.Kind, Verdict: r.Verdict, Findings: r.Findings, Error: r.Error}
	start, err := strconv.ParseInt(string(r.Start), 10, 64)
	end, also := strconv.ParseInt(string(r.End), 10, 64)
	if err == nil && also == nil {
		o.Nanoseconds = int64Text(time.Duration(end - start))
	}
	return o
}

// report writes a finished step down and tells it, outside of windows.
func (r *run) report(i int, receipt bench.Receipt, held []heldEvidence, elapsed time.Duration) {
	r.reported++
	r.outcomes[i] = OutcomeOf(receipt)
	event := Event{Kind: StepFinished, At: time.Since(r.start), Done: r.reported, Step: r.plan.Steps[i], Elapsed: elapsed}
	r.publish(func() {
		for _, h := range held {
			stored, err := r.store(h.name, h.data)
			if err != nil {
				receipt.Findings = append(receipt.Findings, bench.Finding{Verdict: Fail, Subject: h.name, Text: err.Error()})
				receipt.Verdict = Fail
				r.outcomes[i] = OutcomeOf(receipt)
				continue
			}
			receipt.Evidence = append(receipt.Evidence, stored)
		}
		if err := r.append(receipt); err != nil && r.broken == nil {
			r.broken = err
		}
		event.Verdict, event.Findings, event.Failure = receipt.Verdict, receipt.Findings, receipt.Error
		r.tell(event)
	})
}

// tell an event, outside of windows.
func (r *run) tell(e Event) {
	e.Total = len(r.plan.nodes)
	r.publish(func() { r.Progress.Event(e) })
}

// conclude marks a step finished and passes it on: to steps that can run now,
// and, if it is bad, to those that never will.
func (r *run) conclude(i int, bad bool) {
	type end struct {
		step int
		root int // whose fault it is
		kept bool
	}
	todo := []end{{step: i, root: i}}
	r.bad[i] = bad
	for len(todo) > 0 {
		at := todo[0]
		todo = todo[1:]
		if at.step != i && !at.kept {
			r.skip(at.step, at.root)
		}
		r.states[at.step] = finished
		r.left--
		for _, late := range r.late[at.step] { // what an earlier attempt finished has its value now, or never
			r.bad[late] = r.bad[at.step]
			todo = append(todo, end{late, at.root, true})
		}
		for _, to := range r.plan.dependants[at.step] {
			r.satisfied(at.step, to)
			if r.states[to] != waiting {
				continue
			}
			switch {
			case r.bad[at.step] && !r.plan.Steps[to].Release:
				r.states[to], r.bad[to] = finished, true
				todo = append(todo, end{step: to, root: at.root})
			case r.pending[to] == 0:
				r.makeReady(to)
			}
		}
		r.leaveWindow(at.step)
	}
}

// satisfied counts off one need of a step and of its window.
func (r *run) satisfied(from, to int) {
	r.pending[to]--
	w := r.plan.nodes[to].window
	if w < 0 || w == r.plan.nodes[from].window {
		return
	}
	if r.windows[w].outside--; r.windows[w].outside == 0 && r.windows[w].left > 0 {
		r.doors.push(r.plan.windows[w].steps[0])
	}
}

// skip writes down a step that is not run because of root.
func (r *run) skip(i, root int) {
	r.notRun(i, bench.Finding{Verdict: NotRun, Subject: r.plan.Steps[root].Id, Text: "the step depends on it, and it ended " + string(r.outcomes[root].Verdict)})
}

func (r *run) notRun(i int, why bench.Finding) {
	s := r.plan.Steps[i]
	receipt := bench.Receipt{Time: Timestamp(time.Now()), Event: "step", Step: s.Id, Kind: s.Kind, Verdict: NotRun, Findings: []bench.Finding{why}}
	r.report(i, receipt, nil, 0)
}

// stop keeps everything that has not started from starting, except release steps.
func (r *run) stop(v bench.Verdict, why string) {
	if r.stopped != "" {
		return
	}
	r.stopped = why
	r.failed = r.failed || v == Fail
	r.findings = append(r.findings, bench.Finding{Verdict: v, Subject: "run", Text: why})
	for i, s := range r.plan.Steps {
		if !s.Release && r.unstarted(i) {
			r.leaveOut(i, why)
		}
	}
}

func (r *run) unstarted(i int) bool { return r.states[i] == waiting || r.states[i] == ready }

// leaveOut finishes a step that has not started without running it. What needs it
// is left out by the caller, who goes through the plan in its order.
func (r *run) leaveOut(i int, why string) {
	r.notRun(i, bench.Finding{Verdict: NotRun, Subject: "run", Text: why})
	for _, at := range append([]int{i}, r.late[i]...) {
		r.states[at], r.bad[at] = finished, true
		r.left--
		for _, to := range r.plan.dependants[at] {
			r.satisfied(at, to)
			if r.states[to] == waiting && r.pending[to] == 0 && r.plan.Steps[to].Release {
				r.makeReady(to)
			}
		}
		r.leaveWindow(at)
	}
}

// unwind runs the undo stack, unless a slot is kept.
func (r *run) unwind(ctx context.Context) {
	if r.keeping() != nil {
		return
	}
	for _, err := range r.undo.close(context.WithoutCancel(ctx)).WrappedErrors() {
		r.failed = true
		f := bench.Finding{Verdict: Fail, Subject: "undo", Text: err.Error()}
		var e *Error
		if errors.As(err, &e) {
			f.Hint = e.Hint
		}
		r.findings = append(r.findings, f)
	}
}

// end decides the run and writes the last receipt.
func (r *run) end() (Result, error) {
	if text := r.Paused(); text != "" && !r.cancelled() {
		r.stop(VerdictUnknown, text) // also where it was seen after the last step
	}
	outcomes := make([]Outcome, len(r.outcomes))
	for i, o := range r.outcomes {
		outcomes[i] = Outcome{Verdict: o.Verdict, Optional: r.plan.Steps[i].Optional}
	}
	res := Result{Outcomes: r.outcomes, Findings: r.findings, Verdict: RunVerdict(outcomes), Started: r.start, Ended: time.Now(), Kept: r.kept}
	switch {
	case r.failed:
		res.Verdict = RunFailed
	case r.stopped != "" && res.Verdict != RunFailed:
		res.Verdict = RunBlocked
	}
	res.Reason = Reason(res.Verdict, r.findings, r.outcomes)
	receipt := bench.Receipt{Time: Timestamp(res.Ended), Event: "run_end", Outcome: res.Verdict, Findings: r.findings}
	if err := r.append(receipt); err != nil && r.broken == nil {
		r.broken = err
	}
	if r.broken != nil {
		res.Verdict, res.Reason = RunFailed, r.broken.Error()
	}
	r.tell(Event{Kind: RunFinished, At: res.Ended.Sub(r.start), Done: r.reported, Outcome: res.Verdict, Reason: res.Reason, Findings: res.Findings})
	return res, r.broken
}

// Reason says in one line why a run has its verdict; empty if it passed. What
// is wrong with the run itself comes first, then the first step that decides.
func Reason(v bench.RunVerdict, run []bench.Finding, steps []bench.StepOutcome) string {
	if v == RunPassed {
		return ""
	}
	if len(run) > 0 {
		return run[0].Text
	}
	decides := map[bench.RunVerdict][]bench.Verdict{
		RunFailed:  {Fail},
		RunBlocked: {VerdictUnknown, NotApplicable, NotRun},
		RunReview:  {Review},
	}
	for _, want := range decides[v] {
		for _, o := range steps {
			if o.Verdict == want {
				return StepReason(o)
			}
		}
	}
	return "no step was run"
}

// StepReason says in one line why a step has its verdict.
func StepReason(o bench.StepOutcome) string {
	text := "step " + o.Step + ": " + string(o.Verdict)
	for _, f := range o.Findings {
		if f.Verdict == o.Verdict {
			return text + ": " + f.Subject + ": " + f.Text
		}
	}
	if o.Error != nil {
		return text + ": " + o.Error.Text
	}
	return text
}

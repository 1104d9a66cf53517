package steps

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// FactIsolation is what the detectors saw, the JSON of bench.IsolationReading.
const FactIsolation = "isolation"

const (
	// plantTime is how long canaries may take to be held, and to be gone, on a host that is very busy.
	plantTime   = 30 * time.Second
	plantPeriod = 50 * time.Millisecond
	lookTime    = 30 * time.Second
	// deadlineIsolate is what the step may take beside the watch.
	deadlineIsolate = 3 * time.Minute
)

// Isolate has every slot hold a canary of its own in each channel, and look for
// those of all others. First comes the positive control, in the same slots and
// with the same detector: the second slot also holds the first one's canary, as if
// it had leaked, and has to report it in every channel. Then all hold new ones, and
// whatever a slot sees that is not its own is contamination.
func Isolate(b *engine.Builder, at At, slots []engine.Promise[engine.Slot], p bench.IsolateParams, after ...engine.Input) engine.Promise[engine.Measured] {
	var in []engine.Input
	for _, s := range slots {
		in = append(in, engine.Use(s))
	}
	return engine.Add[engine.Measured](b, at.spec(KindIsolate, p, duration(string(p.Isolation.Watch))+deadlineIsolate), append(in, after...)...)
}

var bindIsolate = engine.Bind(KindIsolate, func(ctx context.Context, x *engine.Exec, p bench.IsolateParams) (_ engine.Measured, err error) {
	const op = "look whether slots see each other"
	program, err := os.ReadFile(x.Workspace().Canary)
	if err != nil {
		return engine.Measured{}, &engine.Error{Op: op, Err: fmt.Errorf("%w: read the detector's program: %w", engine.ErrUnknown, err), Hint: "build it: scripts/build"}
	}
	x.Fact(bench.Fact{Name: "detector.sha256", Known: true, Value: string(canonical.Sum(program)), Source: x.Workspace().Canary, View: engine.ViewHost})
	var spots []spot
	for i := range x.Inputs() {
		slot := engine.In[engine.Slot](x, i)
		s := &slotSpot{slot: slot.Name(), client: dial(slot, p.Port), at: strings.TrimSuffix(string(p.Home), "/") + "/.drums-canary"}
		if err := s.client.WriteFile(ctx, s.at, program, 0o755); err != nil {
			return engine.Measured{}, err
		}
		spots = append(spots, s)
	}
	w := watcher{spots: spots, expect: isolationChannels, watch: duration(string(p.Isolation.Watch)), period: duration(p.Isolation.Period)}
	if p.Clipboard {
		w.expect = append(slices.Clip(w.expect), "clipboard")
	}
	r, err := w.run(ctx)
	for _, s := range spots {
		err = errors.Join(err, s.(*slotSpot).leave(ctx))
	}
	if err != nil {
		return engine.Measured{}, &engine.Error{Op: op, Err: err}
	}
	fact(x, FactIsolation, r, "canary program in each slot")
	x.Judge(judgeIsolation(r))
	return engine.Measured{}, nil
})

// isolationChannels are those that every slot has; one with a display has its clipboard too.
var isolationChannels = []string{"abstract-socket", "file", "port", "shm", "sysv-shm"}

// judgeIsolation fails for every canary that another slot saw, and does not know
// where the leak that was made on purpose was not seen: then nothing else would be.
func judgeIsolation(r bench.IsolationReading) (j engine.Judgement) {
	for _, e := range r.Events {
		j.Findings = append(j.Findings, bench.Finding{Verdict: engine.Fail, Subject: string(e.Slot), Text: fmt.Sprintf("sees the canary of %s in %s", e.From, e.Channel), Hint: "slots share what they must not; its numbers are of no separate environments"})
	}
	if len(r.Fired) == 0 || len(r.Missed) > 0 {
		j.Findings = append(j.Findings, bench.Finding{Verdict: engine.VerdictUnknown, Subject: "positive control", Text: fmt.Sprintf("the deliberate leak was caught in %q and missed in %q", r.Fired, r.Missed)})
	}
	return j
}

// canary is a token with the port that it is held on.
type canary struct {
	token string
	port  int
}

func (c canary) String() string { return fmt.Sprintf("%s:%d", c.token, c.port) }

// newCanary draws one; ports are below those that kernels give out by themselves.
func newCanary() (canary, error) {
	var b [18]byte
	if _, err := rand.Read(b[:]); err != nil {
		return canary{}, err
	}
	return canary{hex.EncodeToString(b[:16]), 10000 + (int(b[16])<<8|int(b[17]))%20000}, nil
}

// sighting is what a detector reported: the tokens by channel, and the channels in which it could not look.
type sighting struct {
	tokens map[string][]string
	blind  map[string]string
}

// spot is a slot as the watcher uses it.
type spot interface {
	name() string
	// hold keeps canaries until stop, which takes them away and reads that back.
	hold(ctx context.Context, all []canary) (stop func(context.Context) error)
	// seek looks for canaries.
	seek(ctx context.Context, all []canary) (sighting, error)
}

// watcher looks whether spots see each other; two at least.
type watcher struct {
	spots []spot
	// expect are the channels that every spot must see its own canary in; one in which it does not is blind.
	expect        []string
	watch, period time.Duration
}

func (w watcher) run(ctx context.Context) (r bench.IsolationReading, err error) {
	r = bench.IsolationReading{Fired: []string{}, Missed: []string{}, Watched: []string{}, Events: []bench.ContaminationEvent{}}
	blind := map[string]string{}
	// The control: what the second holds of the first is what its detector must report.
	leaked, _, err := w.round(ctx, true, 0, blind)
	if err != nil {
		return r, fmt.Errorf("positive control: %w", err)
	}
	found, exposure, err := w.round(ctx, false, w.watch, blind)
	if err != nil {
		return r, err
	}
	for _, c := range found.channels {
		if _, is := blind[c]; is {
			continue
		}
		r.Watched = append(r.Watched, c)
		if slices.Contains(leaked.events, bench.ContaminationEvent{Channel: c, Slot: bench.Name(w.spots[1].name()), From: bench.Name(w.spots[0].name())}) {
			r.Fired = append(r.Fired, c)
		} else {
			r.Missed = append(r.Missed, c)
		}
	}
	if len(blind) > 0 {
		r.Blind = blind
	}
	r.Events, r.Looks, r.Exposure = append(r.Events, found.events...), found.looks, whole(exposure.Nanoseconds())
	return r, nil
}

// sight is what all detectors saw in one round.
type sight struct {
	channels []string // in which some detector saw its own
	events   []bench.ContaminationEvent
	looks    int64
}

// round holds a new canary in each spot, and looks for all of them in each until
// the watch is over, once at least. A channel in which a spot does not even see its
// own canary is blind: nothing seen there means nothing. exposure sums, over spots,
// the time in which canaries were held and looked for.
func (w watcher) round(ctx context.Context, leak bool, watch time.Duration, blind map[string]string) (s sight, exposure time.Duration, err error) {
	all := make([]canary, len(w.spots))
	for i := range all {
		if all[i], err = newCanary(); err != nil {
			return s, 0, err
		}
	}
	stops := make([]func(context.Context) error, len(w.spots))
	for i, sp := range w.spots {
		mine := []canary{all[i]}
		if leak && i == 1 {
			mine = []canary{all[0], all[1]} // held in this order: where its own is, the leak is
		}
		stops[i] = sp.hold(ctx, mine)
	}
	defer func() {
		for _, stop := range stops {
			err = errors.Join(err, stop(context.WithoutCancel(ctx)))
		}
	}()
	// Held is what its own slot sees of it; what is not there in time is blind.
	deadline := time.Now().Add(plantTime)
	var own map[string]int
	for {
		own = map[string]int{}
		if err := w.look(ctx, all, &s, own, blind); err != nil {
			return s, 0, err
		}
		complete := len(own) > 0
		for _, n := range own {
			complete = complete && n == len(w.spots)
		}
		for _, c := range w.expect { // a canary is held in one channel after the other
			complete = complete && (own[c] > 0 || blind[c] != "")
		}
		if complete || time.Now().After(deadline) {
			if err := w.look(ctx, all, &s, map[string]int{}, blind); err != nil { // all are held from the start of this one
				return s, 0, err
			}
			break
		}
		if err := sleep(ctx, plantPeriod); err != nil {
			return s, 0, err
		}
	}
	for c, n := range own {
		s.channels = append(s.channels, c)
		if n < len(w.spots) && blind[c] == "" {
			blind[c] = fmt.Sprintf("%d of %d slots see their own canary there", n, len(w.spots))
		}
	}
	slices.Sort(s.channels)
	for _, c := range w.expect {
		if own[c] == 0 && blind[c] == "" {
			blind[c] = "no slot sees its own canary there"
		}
	}
	if len(own) == 0 {
		return s, 0, fmt.Errorf("%w: no slot sees its own canary anywhere", engine.ErrUnknown)
	}
	began := time.Now()
	for time.Since(began) < watch {
		if err := sleep(ctx, min(w.period, watch-time.Since(began))); err != nil {
			return s, 0, err
		}
		if err := w.look(ctx, all, &s, own, blind); err != nil {
			return s, 0, err
		}
	}
	return s, time.Since(began) * time.Duration(len(w.spots)), nil
}

// look has every spot look once, at the same time.
func (w watcher) look(ctx context.Context, all []canary, s *sight, own map[string]int, blind map[string]string) error {
	found, errs := make([]sighting, len(w.spots)), make([]error, len(w.spots))
	var wait sync.WaitGroup
	for i, sp := range w.spots {
		wait.Go(func() { found[i], errs[i] = sp.seek(ctx, all) })
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, f := range found {
		for c, why := range f.blind {
			blind[c] = why
		}
		for c, tokens := range f.tokens {
			for k, o := range all {
				if !slices.Contains(tokens, o.token) {
					continue
				}
				e := bench.ContaminationEvent{Channel: c, Slot: bench.Name(w.spots[i].name()), From: bench.Name(w.spots[k].name())}
				if k == i {
					own[c]++
				} else if !slices.Contains(s.events, e) { // one that stays is one
					s.events = append(s.events, e)
				}
			}
		}
	}
	s.looks++
	return nil
}

// slotSpot is a slot whose guest server runs the canary program.
type slotSpot struct {
	slot   string
	client *guest.Client
	at     string
}

func (s *slotSpot) name() string { return s.slot }

func arguments(at, what string, all []canary) []string {
	argv := []string{at, what}
	for _, c := range all {
		argv = append(argv, c.String())
	}
	return argv
}

func (s *slotSpot) hold(ctx context.Context, all []canary) func(context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		r, err := s.client.Execute(ctx, arguments(s.at, "hold", all), time.Hour)
		if err == nil {
			err = fmt.Errorf("%s: the canaries were let go: exit %d: %s%s", s.slot, r.Exit, r.Stdout, r.Stderr)
		}
		if ctx.Err() != nil { // ended as asked
			err = nil
		}
		done <- err
	}()
	return func(ctx context.Context) error {
		cancel() // the guest server ends the program with its tree
		held := <-done
		ctx, stop := context.WithTimeout(ctx, plantTime)
		defer stop()
		for {
			r, err := s.client.Execute(ctx, arguments(s.at, "clean", all), lookTime)
			if err == nil && r.Exit == 0 {
				return held
			}
			if serr := sleep(ctx, plantPeriod); serr != nil {
				return errors.Join(held, fmt.Errorf("%s: take canaries away: %w: exit %d: %s", s.slot, errors.Join(serr, err), r.Exit, r.Stderr))
			}
		}
	}
}

func (s *slotSpot) seek(ctx context.Context, all []canary) (sighting, error) {
	r, err := s.client.Execute(ctx, arguments(s.at, "seek", all), lookTime)
	if err == nil && (r.Exit != 0 || r.Truncated) {
		err = fmt.Errorf("%w: the detector exited with %d: %s", engine.ErrUnknown, r.Exit, r.Stderr)
	}
	if err != nil {
		return sighting{}, fmt.Errorf("%s: %w", s.slot, err)
	}
	return parseSeen(string(r.Stdout))
}

// parseSeen reads what the program printed; anything else is no report.
func parseSeen(text string) (sighting, error) {
	out := sighting{tokens: map[string][]string{}, blind: map[string]string{}}
	for line := range strings.Lines(text) {
		word, rest, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch {
		case !ok:
			return sighting{}, fmt.Errorf("%w: the detector printed %q", engine.ErrUnknown, line)
		case word == "blind":
			channel, why, _ := strings.Cut(rest, " ")
			out.blind[channel] = why
		default:
			out.tokens[word] = append(out.tokens[word], rest)
		}
	}
	return out, nil
}

// leave takes the program away and reads back that it is gone.
func (s *slotSpot) leave(ctx context.Context) error {
	if _, err := s.client.Execute(ctx, []string{s.at, "leave"}, lookTime); err != nil {
		return fmt.Errorf("%s: take the detector away: %w", s.slot, err)
	}
	if _, err := s.client.ReadFile(ctx, s.at, 1<<20); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s: the detector is still there: %v", engine.ErrUnknown, s.slot, err)
	}
	return nil
}

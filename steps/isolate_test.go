package steps

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// yard is some spots in memory. What is held in a channel of one is seen in others as shared says.
type yard struct {
	held map[string]map[string][]string // by spot and channel
	// shared says that what is held in a channel of from is seen in to.
	shared func(channel, from, to string) bool
	// deaf are channels in which a spot sees nothing.
	deaf func(channel, spot string) bool
}

type yardSpot struct {
	*yard
	slot string
}

var yardChannels = []string{"file", "port"}

func (s yardSpot) name() string { return s.slot }

func (s yardSpot) hold(_ context.Context, all []canary) func(context.Context) error {
	s.held[s.slot] = map[string][]string{}
	for _, c := range all {
		for _, ch := range yardChannels {
			s.held[s.slot][ch] = append(s.held[s.slot][ch], c.token)
		}
	}
	return func(context.Context) error {
		delete(s.held, s.slot)
		return nil
	}
}

func (s yardSpot) seek(_ context.Context, all []canary) (sighting, error) {
	out := sighting{tokens: map[string][]string{}, blind: map[string]string{}}
	for from, by := range s.held {
		for ch, tokens := range by {
			if s.deaf(ch, s.slot) || from != s.slot && !s.shared(ch, from, s.slot) {
				continue
			}
			for _, c := range all {
				if slices.Contains(tokens, c.token) {
					out.tokens[ch] = append(out.tokens[ch], c.token)
				}
			}
		}
	}
	return out, nil
}

// A detector that works catches the leak that is made on purpose, and nothing
// where nothing is shared; one that is deaf, or slots that share, show.
func TestIsolate(t *testing.T) {
	event := func(channel, slot, from string) bench.ContaminationEvent {
		return bench.ContaminationEvent{Channel: channel, Slot: bench.Name(slot), From: bench.Name(from)}
	}
	for name, c := range map[string]struct {
		shared  func(channel, from, to string) bool
		deaf    func(channel, spot string) bool
		fired   []string
		blind   string
		events  []bench.ContaminationEvent
		verdict bench.Verdict
	}{
		"separate": {nil, nil, []string{"file", "port"}, "", []bench.ContaminationEvent{}, engine.Pass},
		"one way": {func(ch, from, to string) bool { return ch == "port" && from == "c" && to == "a" }, nil,
			[]string{"file", "port"}, "", []bench.ContaminationEvent{event("port", "a", "c")}, engine.Fail},
		"deaf in one": {nil, func(ch, spot string) bool { return ch == "port" && spot == "c" }, []string{"file"}, "port", []bench.ContaminationEvent{}, engine.Pass},
	} {
		t.Run(name, func(t *testing.T) {
			y := &yard{held: map[string]map[string][]string{}, shared: c.shared, deaf: c.deaf}
			if y.shared == nil {
				y.shared = func(string, string, string) bool { return false }
			}
			if y.deaf == nil {
				y.deaf = func(string, string) bool { return false }
			}
			synctest.Test(t, func(t *testing.T) {
				r, err := watcher{spots: []spot{yardSpot{y, "a"}, yardSpot{y, "b"}, yardSpot{y, "c"}}, watch: 5 * time.Second, period: time.Second}.run(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(c.fired, r.Fired); diff != "" || len(r.Missed) != 0 {
					t.Errorf("%s missed %q", diff, r.Missed)
				}
				if diff := cmp.Diff(c.events, r.Events); diff != "" {
					t.Error(diff)
				}
				if c.blind != "" && r.Blind[c.blind] == "" || c.blind == "" && r.Blind != nil {
					t.Errorf("blind %v", r.Blind)
				}
				if r.Exposure != "15000000000" || r.Looks < 6 {
					t.Errorf("exposure %s, %d looks", r.Exposure, r.Looks)
				}
				if v := judgeIsolation(r).Verdict(); v != c.verdict {
					t.Errorf("verdict %s, want %s", v, c.verdict)
				}
			})
			if len(y.held) != 0 {
				t.Errorf("still held: %v", y.held)
			}
		})
	}
	// A detector that sees its own and never another's: the control does not fire, and nothing is known.
	y := &yard{held: map[string]map[string][]string{}, shared: func(string, string, string) bool { return false }, deaf: func(string, string) bool { return false }}
	blinkered := func(s yardSpot) spot { return selfish{s} }
	synctest.Test(t, func(t *testing.T) {
		r, err := watcher{spots: []spot{blinkered(yardSpot{y, "a"}), blinkered(yardSpot{y, "b"})}, watch: time.Second, period: time.Second}.run(t.Context())
		if err != nil || len(r.Fired) != 0 || len(r.Missed) != 2 || judgeIsolation(r).Verdict() != engine.VerdictUnknown {
			t.Errorf("%+v, %v", r, err)
		}
		y.deaf = func(string, string) bool { return true }
		if _, err := (watcher{spots: []spot{yardSpot{y, "a"}, yardSpot{y, "b"}}, watch: time.Second, period: time.Second}).run(t.Context()); !errors.Is(err, engine.ErrUnknown) {
			t.Errorf("nobody sees anything: %v", err)
		}
	})
}

// selfish reports its own canary and no other.
type selfish struct{ yardSpot }

func (s selfish) seek(ctx context.Context, all []canary) (sighting, error) {
	out, err := s.yardSpot.seek(ctx, all)
	for ch, tokens := range s.held[s.slot] {
		out.tokens[ch] = tokens[len(tokens)-1:]
	}
	return out, err
}

func TestParseSeen(t *testing.T) {
	have, err := parseSeen("file ab\nfile cd\nblind port permission denied\n")
	if err != nil || strings.Join(have.tokens["file"], " ") != "ab cd" || have.blind["port"] != "permission denied" {
		t.Errorf("%+v, %v", have, err)
	}
	if _, err := parseSeen("Killed\n"); !errors.Is(err, engine.ErrUnknown) {
		t.Error(err)
	}
}

// Slots look for each other where there are two of them, after they were read and before anybody acts.
func TestIsolateInPlan(t *testing.T) {
	m := swept()
	m.Experiment.Sweep.Isolation = &bench.Isolation{Watch: "2s", Period: "1s"}
	digest, err := compile.Workload(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, slots := range []int64{1, 2} {
		p, err := BlockOf(m, digest, "restore", &bench.Part{Kind: PartLevel, Slots: slots})
		if err != nil {
			t.Fatal(err)
		}
		up := ancestors(p, "r2/evaluate-before")
		if !up["density"] || up["isolate"] != (slots > 1) || slots > 1 && !ancestors(p, "isolate")["density"] {
			t.Errorf("%d slots: it waits for %v", slots, up)
		}
	}
}

package steps

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// moment is what the guest says at one poll of its screen.
type moment struct {
	facts   *guest.Screen
	picture []byte // nil: it has none
}

// scripted is a guest with a screen: a probe moves on to the next moment, the last one stays.
type scripted struct {
	engine.Slot
	server *httptest.Server

	mu      sync.Mutex
	moments []moment
	probes  int
	taken   []time.Time
	// answers are the pictures that programs of these names leave on the screen; "fail" has every program fail.
	answers map[string][]byte
	// later are those of the second time that one is called and of each after it.
	later  map[string][]byte
	called map[string]int
	shown  *[]byte // by the last of them
	// fails is how many programs fail before the first that does not.
	fails int
	// patient: instead of a deadline, stop ends the run once there were so many pictures: what is refused then stays so.
	patient bool
	stop    context.CancelFunc
}

const enough = 8

func (s *scripted) Dial(ctx context.Context, _ int) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", s.server.Listener.Addr().String())
}

func (s *scripted) now() moment {
	m := s.moments[min(s.probes, len(s.moments))-1]
	if s.shown != nil {
		m.picture = *s.shown
	}
	return m
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	say := func(status int, v any) {
		text, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.Write(text)
	}
	switch r.URL.Path {
	case proto.PathProbe:
		s.probes++
		say(http.StatusOK, proto.Probe{Version: proto.Version, Phase: proto.PhaseRunning, Pid: 1, Uptime: "1", Clock: "1", Screen: s.now().facts,
			Live:         bench.LiveState{Token: strings.Repeat("0f", 16), Counter: "7"},
			ServerSHA256: bench.SHA256(strings.Repeat("ab", 32)), Mounts: []bench.Mount{{Point: "/"}}, Network: bench.Network{Links: []bench.Link{{Name: "lo"}}}})
	case proto.PathScreenshot:
		if s.taken = append(s.taken, time.Now()); len(s.taken) == enough && s.stop != nil {
			s.stop()
		}
		if s.now().picture == nil {
			say(http.StatusInternalServerError, proto.ErrorResponse{Error: "connect to X server :0: no such file"})
			return
		}
		w.Header().Set("Content-Type", "image/png")
		w.Write(s.now().picture)
	case proto.PathCursorPosition:
		say(http.StatusOK, []int{300, 190})
	case proto.PathExecute:
		exit := 0
		var q struct{ Command []string }
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || len(q.Command) == 0 {
			say(http.StatusBadRequest, proto.ErrorResponse{Error: "no command"})
			return
		}
		picture, ok := s.answers[q.Command[0]]
		if again, changed := s.later[q.Command[0]]; changed && s.called[q.Command[0]] > 0 {
			picture = again
		}
		if s.called[q.Command[0]]++; ok {
			s.shown = &picture
		}
		if _, ok := s.answers["fail"]; ok {
			exit, s.shown = 1, nil
		}
		if s.fails > 0 {
			s.fails, exit = s.fails-1, 1
		}
		say(http.StatusOK, proto.ExecuteResponse{Status: proto.StatusSuccess, Returncode: &exit})
	case proto.PathCheck:
		exit, sum := 0, bench.SHA256(strings.Repeat("ab", 32))
		say(http.StatusOK, proto.CheckResponse{ExecuteResponse: proto.ExecuteResponse{Status: proto.StatusSuccess, Returncode: &exit}, Resolved: "/check", Server: sum,
			Before: []proto.ClosureEntry{{Path: "/check", Kind: proto.EntryFile, Mode: "0755", Sha256: sum}}})
	default:
		http.NotFound(w, r)
	}
}

// evidence keeps what a step put there.
type evidence map[string][]byte

func (e evidence) Put(name string, data []byte) (bench.Evidence, error) {
	e[name] = data
	return bench.Evidence{Name: name, Sha256: canonical.Sum(data), Size: int64(len(data))}, nil
}
func (e evidence) Path(v bench.Evidence) string { return v.Name }

type receipts map[string]bench.Receipt

func (r receipts) Append(v bench.Receipt) error { r[v.Step] = v; return nil }

// await runs one readiness step against a scripted guest.
func await(t *testing.T, rule bench.Readiness, moments ...moment) (*scripted, bench.Receipt, evidence) {
	t.Helper()
	rule.Deadline = "600ms"
	return (&scripted{moments: moments, called: map[string]int{}}).await(t, rule)
}

// awaitAnswer is await without a deadline and with a guest that some programs change the screen of.
func awaitAnswer(t *testing.T, rule bench.Readiness, answers map[string][]byte, moments ...moment) (*scripted, bench.Receipt, evidence) {
	t.Helper()
	rule.Deadline = "5m"
	return (&scripted{moments: moments, answers: answers, called: map[string]int{}, patient: true}).await(t, rule)
}

func (s *scripted) await(t *testing.T, rule bench.Readiness) (*scripted, bench.Receipt, evidence) {
	t.Helper()
	rule.Server, rule.Period = true, "10ms"
	receipt, kept := s.step(t, func(b *engine.Builder, at At, slot engine.Promise[engine.Slot]) {
		Readiness(b, at, slot, bench.ReadinessParams{Port: 5000, Readiness: rule, Services: []string{}, Display: &display})
	})
	return s, receipt, kept
}

var display = bench.Display{Width: 320, Height: 200, Depth: 24}

// step runs one step on the scripted slot.
func (s *scripted) step(t *testing.T, add func(*engine.Builder, At, engine.Promise[engine.Slot])) (bench.Receipt, evidence) {
	t.Helper()
	s.server = httptest.NewUnstartedServer(s)
	s.server.Config.SetKeepAlivesEnabled(false)
	s.server.Start()
	t.Cleanup(s.server.Close)
	b := engine.NewBuilder()
	const kind = "test-slot"
	slot := engine.Add[engine.Slot](b, engine.StepSpec{ID: "slot", Kind: kind, Deadline: time.Second})
	add(b, At{ID: "step"}, slot)
	p, err := b.Build(bench.SHA256(strings.Repeat("0", 64)), "cold")
	if err != nil {
		t.Fatal(err)
	}
	bindings := Bindings()
	bindings[kind] = engine.Bind(kind, func(context.Context, *engine.Exec, struct{}) (engine.Slot, error) { return s, nil }, []reflect.Type{}...)
	kept, got := evidence{}, receipts{}
	e := engine.Executor{Plan: p, Bindings: bindings, Workspace: &engine.Workspace{Evidence: kept}, Sink: got, Parallel: 2}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if s.patient {
		s.stop = cancel
	}
	if _, err := e.Run(ctx); err != nil {
		t.Fatal(err)
	}
	s.server.Close() // waits for a request that a step no longer did
	return got["step"], kept
}

func encoded(t *testing.T, at func(x, y int) color.Color) []byte {
	t.Helper()
	img := image.NewRGBA(image.Rect(0, 0, 320, 200))
	for y := range 200 {
		for x := range 320 {
			img.Set(x, y, at(x, y))
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestReadinessOfTheScreen(t *testing.T) {
	black := encoded(t, func(x, y int) color.Color { return color.Black })
	desk := encoded(t, func(x, y int) color.Color { return color.RGBA{uint8(x * 5), uint8(y * 7), 100, 255} })
	moved := encoded(t, func(x, y int) color.Color { return color.RGBA{uint8(x*5 + 1), uint8(y * 7), 100, 255} })
	wrong := []byte("no picture at all")
	facts := func(manager string, windows ...guest.Window) *guest.Screen {
		return &guest.Screen{Width: 320, Height: 200, Manager: manager, Work: proto.Rect{Width: 320, Height: 200}, Windows: append([]guest.Window{}, windows...)}
	}
	term := guest.Window{Instance: "xterm", Class: "XTerm", Rect: proto.Rect{Width: 300, Height: 150}}
	up := facts("Openbox", term)
	screen := bench.Readiness{Screen: true}
	windows := bench.Readiness{Screen: true, Windows: []bench.Window{{Class: "XTerm"}}}
	windowsOnly := bench.Readiness{Windows: []bench.Window{{Class: "XTerm"}}}
	for _, c := range []struct {
		name    string
		rule    bench.Readiness
		moments []moment
		// want is what the error says; empty is ready, after so many pictures, with this one as evidence.
		want     string
		pictures int
		evidence map[string][]byte
	}{
		{"ready at once", windows, []moment{{up, desk}}, "", 2, map[string][]byte{"screen.png": desk}},
		{"comes up", windows, []moment{{nil, nil}, {&guest.Screen{Unknown: "no X server"}, nil}, {facts(""), black}, {facts("Openbox"), black}, {up, black}, {up, black}, {up, desk}, {up, moved}, {up, moved}},
			"", 5, map[string][]byte{"screen.png": moved}},
		{"nothing asked", bench.Readiness{}, []moment{{nil, nil}}, "", 0, map[string][]byte{}},
		{"windows only", windowsOnly, []moment{{up, nil}}, "", 0, map[string][]byte{}},
		{"window absent", windowsOnly, []moment{{facts("Openbox"), nil}}, "window XTerm: no mapped window has this class", 0, map[string][]byte{}},
		{"no facts", screen, []moment{{nil, desk}}, "the guest server says nothing of one", 0, map[string][]byte{}},
		{"no X server", screen, []moment{{&guest.Screen{Unknown: "connect: refused"}, desk}}, "it is not known: connect: refused", 0, map[string][]byte{}},
		{"no manager", screen, []moment{{facts("", term), desk}}, "manager: no window manager", 0, map[string][]byte{}},
		{"black", screen, []moment{{up, black}}, "colours: the screen has too few colours (want at least 50, have 1); lit:", -1, map[string][]byte{"screen-refused.png": black}},
		{"no picture", screen, []moment{{up, nil}}, "the guest has no picture of its screen", -1, map[string][]byte{}},
		{"bad picture", screen, []moment{{up, wrong}}, "decode picture of the screen", -1, map[string][]byte{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, receipt, kept := await(t, c.rule, c.moments...)
			have := ""
			if receipt.Error != nil {
				have = receipt.Error.Text
			}
			if (have == "") != (c.want == "") || !strings.Contains(have, c.want) {
				t.Errorf("%s: %q, want %q", receipt.Verdict, have, c.want)
			}
			if c.pictures >= 0 && len(s.taken) != c.pictures {
				t.Errorf("%d pictures, want %d", len(s.taken), c.pictures)
			}
			// One may be late on its way, all of them together are not.
			if n := len(s.taken); n > 1 {
				if apart := s.taken[n-1].Sub(s.taken[0]) / time.Duration(n-1); apart < screenPeriod*8/10 {
					t.Errorf("pictures %s apart", apart)
				}
			}
			if diff := cmp.Diff(evidence(c.evidence), kept); diff != "" {
				t.Error(diff)
			}
			if c.want == "" && c.rule.Screen {
				values := map[string]string{}
				for _, f := range receipt.Facts {
					values[f.Name] = f.Value
				}
				if values["screen-size"] != "320x200" || values["screen-colours"] == "" || values["screen-lit"] == "" || values["screen_picture_ns"] == "" {
					t.Errorf("%v", values)
				}
			}
			if c.want != "" && receipt.Verdict == engine.Pass {
				t.Error("it passed")
			}
		})
	}
}

// The screen of a moving picture is never ready.
func TestScreenThatNeverStandsStill(t *testing.T) {
	var moments []moment
	facts := &guest.Screen{Width: 320, Height: 200, Manager: "m", Windows: []guest.Window{{Class: "X", Rect: proto.Rect{Width: 300, Height: 150}}}}
	for i := range 100 {
		moments = append(moments, moment{facts, encoded(t, func(x, y int) color.Color { return color.RGBA{uint8(x*5 + i), uint8(y * 7), 100, 255} })})
	}
	_, receipt, kept := await(t, bench.Readiness{Screen: true}, moments...)
	if receipt.Error == nil || !strings.Contains(receipt.Error.Text, "frames: the screen is still changing") || receipt.Error.Cause != "deadline" {
		t.Errorf("%+v", receipt.Error)
	}
	if kept["screen-refused.png"] == nil || kept["screen.png"] != nil {
		t.Error("evidence")
	}
}

// An evaluation keeps the screen as it found it. Without a picture it is a score all the same.
func TestPictureOfAnEvaluation(t *testing.T) {
	desk := encoded(t, func(x, y int) color.Color { return color.RGBA{uint8(x * 5), uint8(y * 7), 100, 255} })
	for _, c := range []struct {
		name    string
		display *bench.Display
		picture []byte
		want    evidence
		// reason is why there is no picture.
		reason string
	}{
		{"kept", &display, desk, evidence{"screen-before.png": desk}, ""},
		{"no screen", nil, desk, evidence{}, ""},
		{"screen gone", &display, nil, evidence{}, "no picture of its screen"},
		{"no picture", &display, []byte("no picture at all"), evidence{}, "decode picture"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &scripted{moments: []moment{{nil, c.picture}}, probes: 1}
			checker := bench.Checker{Exec: []string{"check"}, Timeout: "1s"}
			checker.Failure.Exit = 4
			receipt, kept := s.step(t, func(b *engine.Builder, at At, slot engine.Promise[engine.Slot]) {
				Evaluate(b, at, slot, engine.Promise[engine.Score]{}, bench.EvaluateParams{Port: 5000, When: "before", Display: c.display, Checker: checker})
			})
			delete(kept, "checker-closure after.json")
			maps.DeleteFunc(kept, func(name string, _ []byte) bool { return !strings.HasPrefix(name, "screen-") })
			if diff := cmp.Diff(c.want, kept); diff != "" {
				t.Error(diff)
			}
			facts := map[string]bench.Fact{}
			for _, f := range receipt.Facts {
				facts[f.Name] = f
			}
			if receipt.Verdict != engine.Pass || facts["score"].Value != "1.0" {
				t.Errorf("%s: %+v", receipt.Verdict, receipt)
			}
			f, said := facts["screen-before"]
			if said != (c.display != nil) || f.Known != (len(c.want) > 0) || !strings.Contains(f.Reason, c.reason) {
				t.Errorf("%+v", f)
			}
		})
	}
}

// Probes are asked between the two pictures of the screen's rule, or once it holds; what the record says is of the last
// look, once.
func TestProbesBesideTheScreen(t *testing.T) {
	desk := lively(t, nothing)
	other := lively(t, filled(termRect, color.RGBA{0, 0, 90, 255}))
	for _, c := range []struct {
		name                    string
		moments                 []moment
		fails                   int
		pictures, polls, probes string
	}{
		{"between two pictures that agree", []moment{{termFacts(), desk}}, 0, "2", "2", "1"},
		// The third picture agrees with the second, and the probe holds after it.
		{"fails twice", []moment{{termFacts(), desk}}, 2, "3", "3", "3"},
		{"the pictures do not agree", []moment{{termFacts(), other}, {termFacts(), desk}}, 0, "3", "3", "2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &scripted{moments: c.moments, called: map[string]int{}, fails: c.fails}
			_, receipt, _ := s.await(t, bench.Readiness{Screen: true, Deadline: "4s", Windows: []bench.Window{}, Probes: []bench.Command{{Exec: []string{"probe"}, Timeout: "5s"}}})
			count := map[string]string{}
			for _, f := range receipt.Facts {
				if count[f.Name] != "" {
					t.Errorf("%s is told twice", f.Name)
				}
				count[f.Name] = f.Value
			}
			if receipt.Verdict != engine.Pass || count["screen-pictures"] != c.pictures || count["readiness-polls"] != c.polls || fmt.Sprint(s.called["probe"]) != c.probes {
				t.Errorf("%s: %v, %d probes, want %s pictures, %s polls, %s probes", receipt.Verdict, count, s.called["probe"], c.pictures, c.polls, c.probes)
			}
		})
	}
}

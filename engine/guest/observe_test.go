package guest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

var everything = []string{proto.AspectMounts, proto.AspectNetwork, proto.AspectProcesses, proto.AspectLocks, proto.AspectState, proto.AspectLimits}

func validObservation() Observation {
	return Observation{
		Version:   Version,
		Mounts:    &[]bench.Mount{{Point: "/", Options: []string{}, Super: []string{}}},
		Network:   &bench.Network{Links: []bench.Link{{Name: "lo"}}, Addresses: []string{}, Routes: []string{}, Rules: []string{}},
		Processes: &[]bench.Process{{Pid: 1, Argv: []string{"init"}, Uids: []int64{}, Gids: []int64{}, Groups: []int64{}}},
		Locks:     &[]bench.Lock{{Path: "/a", Pid: 7, Type: "POSIX", Mode: "READ", Start: "0", End: "-1"}},
		State:     &bench.StateManifest{Entries: []bench.StateEntry{{Path: "/a", Type: "file"}, {Path: "/b", Type: "whiteout"}}, Exclude: []string{"/run", "/tmp"}},
		Limits:    &MachineLimits{Memory: "1000", Swap: "0", CPUs: 1, Pids: 5, Tasks: 2},
	}
}

func TestObserveAnswers(t *testing.T) {
	want := validObservation()
	h := serve(t, Limits{}, say(jsonReply(200, text(t, want))))
	got, err := h.Observe(t.Context(), everything, []string{"/tmp", "/run"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	q := <-h.requests
	body, _ := io.ReadAll(q.Body)
	if q.Method != "POST" || q.URL.Path != "/observe" || string(body) != `{"aspects":["mounts","network","processes","locks","state","limits"],"exclude":["/tmp","/run"]}` {
		t.Errorf("%s %s %s", q.Method, q.URL, body)
	}
	// Unknown with a reason is an answer; no locks are one too.
	want.Limits, want.Locks, want.Unknown = nil, &[]bench.Lock{}, map[string]string{"limits": "no machine"}
	h = serve(t, Limits{}, say(jsonReply(200, text(t, want))))
	if got, err := h.Observe(t.Context(), everything, []string{"/tmp", "/run"}); err != nil || got.Locks == nil || got.Unknown["limits"] == "" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestObserveWithoutSubstance(t *testing.T) {
	for name, change := range map[string]func(*Observation){
		"version":         func(o *Observation) { o.Version = "" },
		"nothing known":   func(o *Observation) { o.State = nil },
		"no reason":       func(o *Observation) { o.State, o.Unknown = nil, map[string]string{"state": ""} },
		"known and not":   func(o *Observation) { o.Unknown = map[string]string{"state": "x"} },
		"no mounts":       func(o *Observation) { o.Mounts = &[]bench.Mount{} },
		"no links":        func(o *Observation) { o.Network.Links = nil },
		"no processes":    func(o *Observation) { o.Processes = &[]bench.Process{} },
		"lock's path":     func(o *Observation) { (*o.Locks)[0].Path = "" },
		"lock's pid":      func(o *Observation) { (*o.Locks)[0].Pid = 0 },
		"lock's end":      func(o *Observation) { (*o.Locks)[0].End = "x" },
		"exclude":         func(o *Observation) { o.State.Exclude = []string{"/"} },
		"state's order":   func(o *Observation) { o.State.Entries[1].Path = "/A" },
		"twice":           func(o *Observation) { o.State.Entries[1].Path = "/a" },
		"state's path":    func(o *Observation) { o.State.Entries[0].Path = "" },
		"limits' memory":  func(o *Observation) { o.Limits.Memory = "" },
		"limits' swap":    func(o *Observation) { o.Limits.Swap = "-1" },
		"limits' cpus":    func(o *Observation) { o.Limits.CPUs = 0 },
		"limits' of none": func(o *Observation) { o.Limits.Tasks = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			o := validObservation()
			change(&o)
			h := serve(t, Limits{}, say(jsonReply(200, text(t, o))))
			if got, err := h.Observe(t.Context(), everything, []string{"/tmp", "/run"}); !errors.Is(err, ErrProtocol) || !cmp.Equal(got, Observation{}) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	h := serve(t, Limits{}, say(jsonReply(200, text(t, validObservation()))))
	if _, err := h.Observe(t.Context(), everything[:2], []string{"/tmp", "/run"}); !errors.Is(err, ErrProtocol) {
		t.Errorf("what was not asked for: %v", err)
	}
	h = serve(t, Limits{}, say(jsonReply(200, `{"version": "guest/v1alpha1", "more": 1}`)))
	if _, err := h.Observe(t.Context(), nil, nil); !errors.Is(err, ErrProtocol) {
		t.Errorf("an unknown field: %v", err)
	}
	h = serve(t, Limits{}, func(c net.Conn) { fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", maxObservation+1) })
	if _, err := h.Observe(t.Context(), nil, nil); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
}

func TestSetClock(t *testing.T) {
	at := time.Unix(0, 1_900_000_000_000_000_000)
	ns := func(d time.Duration) bench.Int64 { return bench.Int64(strconv.FormatInt(at.Add(d).UnixNano(), 10)) }
	good := proto.ClockResponse{Source: "request", Before: ns(-time.Minute), Set: ns(0), After: ns(time.Millisecond), Skew: bench.Int64(strconv.FormatInt(int64(time.Minute), 10))}
	h := serve(t, Limits{}, say(jsonReply(200, text(t, good))))
	c, err := h.SetClock(t.Context(), at)
	if err != nil || c.Skew != time.Minute || !c.Set.Equal(at) || c.After.Sub(c.Set) != time.Millisecond {
		t.Errorf("%+v, %v", c, err)
	}
	var q proto.ClockRequest
	body, _ := io.ReadAll((<-h.requests).Body)
	if err := json.Unmarshal(body, &q); err != nil || q.Time != ns(0) {
		t.Errorf("%s, %v", body, err)
	}
	for name, change := range map[string]func(*proto.ClockResponse){
		"source":         func(r *proto.ClockResponse) { r.Source = "rtc" },
		"another time":   func(r *proto.ClockResponse) { r.Set, r.Before = ns(time.Second), ns(-59*time.Second) },
		"not read back":  func(r *proto.ClockResponse) { r.After = ns(-time.Minute) },
		"far in future":  func(r *proto.ClockResponse) { r.After = ns(time.Hour) },
		"skew":           func(r *proto.ClockResponse) { r.Skew = "1" },
		"no numbers":     func(r *proto.ClockResponse) { r.After = "now" },
		"nothing at all": func(r *proto.ClockResponse) { *r = proto.ClockResponse{} },
	} {
		r := good
		change(&r)
		h := serve(t, Limits{}, say(jsonReply(200, text(t, r))))
		if c, err := h.SetClock(t.Context(), at); !errors.Is(err, ErrProtocol) || c != (Clock{}) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

func TestMachineErrors(t *testing.T) {
	for status, want := range map[int]error{409: engine.ErrRefused, 500: ErrMachine, 404: ErrProtocol, 200: ErrProtocol} {
		h := serve(t, Limits{}, say(jsonReply(status, `{"error": "not so"}`)))
		if _, err := h.SetClock(t.Context(), time.Time{}); !errors.Is(err, want) {
			t.Errorf("clock, %d: %v", status, err)
		}
		h = serve(t, Limits{}, say(jsonReply(status, `{"error": "not so"}`)))
		if err := h.Freeze(t.Context(), true); !errors.Is(err, want) {
			t.Errorf("freeze, %d: %v", status, err)
		}
	}
	// It says that it did what was not asked for.
	h := serve(t, Limits{}, say(jsonReply(200, `{"frozen": false}`)))
	if err := h.Freeze(t.Context(), true); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
	h = serve(t, Limits{}, say(jsonReply(200, `{"frozen": true}`)))
	if err := h.Freeze(t.Context(), true); err != nil {
		t.Error(err)
	}
	// A generator that was not made anew, or was unasked.
	h = serve(t, Limits{}, say(jsonReply(200, `{"frozen": false}`)))
	if err := h.Thaw(t.Context()); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
	h = serve(t, Limits{}, say(jsonReply(200, `{"frozen": true, "reseeded": true}`)))
	if err := h.Freeze(t.Context(), true); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
	var last []byte
	for range 2 {
		h = serve(t, Limits{}, say(jsonReply(200, `{"frozen": false, "reseeded": true}`)))
		if err := h.Thaw(t.Context()); err != nil {
			t.Error(err)
		}
		var q proto.FreezeRequest
		body, _ := io.ReadAll((<-h.requests).Body)
		if err := json.Unmarshal(body, &q); err != nil || q.Frozen || len(q.Entropy) != proto.EntropySize || bytes.Equal(q.Entropy, last) {
			t.Errorf("%s, %v", body, err)
		}
		last = q.Entropy
	}
}
